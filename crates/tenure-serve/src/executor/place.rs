//! Where models are computed.

use std::sync::Arc;

use tenure_nn::networks::Network;
use tenure_switch::Image;

use super::ModelError;
use super::network::{Bound, Computed, Placed};
use super::tensors::RawTensor;
use crate::repository::StoredModel;

/// A place that computes one batch at a time.
pub(crate) trait Place: Send + Sync {
    /// What computes a model there, whose network was built.
    fn open(&self, network: Box<dyn Network>, stored: &StoredModel) -> Box<dyn Computer>;

    /// Nobody waits for what is computed there now. It may end early.
    fn abandon(&self) {}

    /// Nothing is waited for any more that is not computed yet.
    fn end(&self) {}

    /// The processes that compute, the active one first; none beside this one.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// What computes one model.
pub(crate) trait Computer: Send {
    /// Takes an image, which may be on its way, in the place of none.
    fn bind(&mut self, image: &Arc<Image>, placed: Vec<Placed>) -> Result<(), ModelError>;

    /// Lets go of the image: nobody there uses it any more.
    fn unbind(&mut self);

    /// Answers inputs. Weights are waited for.
    fn compute(&mut self, inputs: &[RawTensor]) -> Result<Computed, ModelError>;
}

/// This process.
pub(crate) struct Here;

impl Place for Here {
    fn open(&self, network: Box<dyn Network>, _: &StoredModel) -> Box<dyn Computer> {
        Box::new(Bound::new(network))
    }
}

impl Computer for Bound<Arc<Image>> {
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
