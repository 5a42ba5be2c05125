//! The interface to the process that computes models on the CPU: this one, or a worker.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_nn::networks::Network;
use tenure_switch::Image;

use super::ModelError;
use super::batch_control::BatchControl;
use super::network::{BoundNetwork, Computed, Placed};
use super::tensors::RawTensor;
use crate::repository::StoredModel;

/// A process that computes batches, or several processes that compute one each.
pub(crate) trait ComputeProcess: Send + Sync {
    /// Returns the most batches that are computed at once, each of another model.
    fn max_batches(&self) -> usize {
        1
    }

    /// Creates the runner of a model in that process, which builds the network itself if it is another one.
    fn open(&self, network: Box<dyn Network>, stored: &StoredModel) -> Box<dyn ModelRunner>;

    /// Stops waiting for results that are not computed yet.
    fn end(&self) {}

    /// Returns whether the processes give signs of life.
    fn is_answering(&self) -> bool {
        true
    }

    /// Returns the ids of the worker processes, the one that stands by last; empty if this process computes.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Computes one model in a [`ComputeProcess`]. One thread at a time binds, unbinds and computes.
pub(crate) trait ModelRunner: Send + Sync {
    /// Makes the model use the weights of an image, which may still be loading. The caller must have released an
    /// earlier image with [`unbind`](Self::unbind).
    fn bind(&self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError>;

    /// Releases the image: afterwards the process no longer uses it.
    fn unbind(&self);

    /// Computes the answers to inputs. Waits for weights.
    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<Computed, ModelError>;
}

/// Computes in this process.
pub(crate) struct ThisProcess;

impl ComputeProcess for ThisProcess {
    fn open(&self, network: Box<dyn Network>, _: &StoredModel) -> Box<dyn ModelRunner> {
        Box::new(Mutex::new(BoundNetwork::new(network)))
    }
}

impl ModelRunner for Mutex<BoundNetwork<Arc<Image>>> {
    fn bind(&self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError> {
        self.lock().bind(Arc::clone(image), &placed)
    }

    fn unbind(&self) {
        self.lock().unbind();
    }

    fn compute(&self, inputs: &[RawTensor], _: &BatchControl) -> Result<Computed, ModelError> {
        self.lock().compute(inputs)
    }
}
