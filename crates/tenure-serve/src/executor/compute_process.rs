//! The interface to the process that computes models on the CPU: this one, or a worker.

use std::sync::Arc;

use tenure_nn::networks::Network;
use tenure_switch::Image;

use super::ModelError;
use super::network::{BoundNetwork, Computed, Placed};
use super::tensors::RawTensor;
use crate::repository::StoredModel;

/// A process that computes one batch at a time.
pub(crate) trait ComputeProcess: Send + Sync {
    /// Creates the runner of a model in that process, which builds the network itself if it is another one.
    fn open(&self, network: Box<dyn Network>, stored: &StoredModel) -> Box<dyn ModelRunner>;

    /// Reports that no request waits for the current batch any more. The batch may end early.
    fn abandon(&self) {}

    /// Stops waiting for results that are not computed yet.
    fn end(&self) {}

    /// Returns the ids of the worker processes, the active one first; empty if this process computes.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Computes one model in a [`ComputeProcess`].
pub(crate) trait ModelRunner: Send {
    /// Makes the model use the weights of an image, which may still be loading. The caller must have released an
    /// earlier image with [`unbind`](Self::unbind).
    fn bind(&mut self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError>;

    /// Releases the image: afterwards the process no longer uses it.
    fn unbind(&mut self);

    /// Computes the answers to inputs. Waits for weights.
    fn compute(&mut self, inputs: &[RawTensor]) -> Result<Computed, ModelError>;
}

/// Computes in this process.
pub(crate) struct ThisProcess;

impl ComputeProcess for ThisProcess {
    fn open(&self, network: Box<dyn Network>, _: &StoredModel) -> Box<dyn ModelRunner> {
        Box::new(BoundNetwork::new(network))
    }
}

impl ModelRunner for BoundNetwork<Arc<Image>> {
    fn bind(&mut self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError> {
        Self::bind(self, Arc::clone(image), &placed)
    }

    fn unbind(&mut self) {
        Self::unbind(self);
    }

    fn compute(&mut self, inputs: &[RawTensor]) -> Result<Computed, ModelError> {
        Self::compute(self, inputs)
    }
}
