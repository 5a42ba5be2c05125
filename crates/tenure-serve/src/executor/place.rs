//! The interface to the process that computes models.

use std::sync::Arc;

use tenure_nn::networks::Network;
use tenure_switch::Image;

use super::ModelError;
use super::network::{BoundNetwork, Computed, Placed};
use super::tensors::RawTensor;
use crate::repository::StoredModel;

/// A place that computes one batch at a time.
pub(crate) trait ComputePlace: Send + Sync {
    /// Creates the computer of a model there, from the network that was built for it.
    fn open(&self, network: Box<dyn Network>, stored: &StoredModel) -> Box<dyn Computer>;

    /// Says that no request waits for the current batch any more. The batch may end early.
    fn abandon(&self) {}

    /// Stops waiting for results that are not computed yet.
    fn end(&self) {}

    /// Returns the ids of the worker processes, the active one first; empty if this process computes.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// The computer of one model.
pub(crate) trait Computer: Send {
    /// Binds an image, which may still be loading. No image may be bound before.
    fn bind(&mut self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError>;

    /// Releases the image: afterwards the place no longer uses it.
    fn unbind(&mut self);

    /// Computes the answers to inputs. Waits for weights.
    fn compute(&mut self, inputs: &[RawTensor]) -> Result<Computed, ModelError>;
}

/// This process.
pub(crate) struct Here;

impl ComputePlace for Here {
    fn open(&self, network: Box<dyn Network>, _: &StoredModel) -> Box<dyn Computer> {
        Box::new(BoundNetwork::new(network))
    }
}

impl Computer for BoundNetwork<Arc<Image>> {
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
