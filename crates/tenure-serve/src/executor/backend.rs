//! A device that serves models: its memory for weights, and what computes there.

use std::sync::Arc;
use std::time::Duration;

use tenure_nn::networks::Network;

use super::ModelError;
use super::stored::Stored;
use super::tensors::RawTensor;
use crate::http::Tier;
use crate::repository::StoredModel;

/// A device that has the weights of models and computes them.
pub(crate) trait Backend: Send + Sync {
    /// A model's weights, which were found and none of which are read yet.
    fn open(&self, network: Box<dyn Network>, stored: &Stored) -> Result<Box<dyn Weights>, ModelError>;

    /// The weights of a PyTorch module, which is loaded to see how many bytes they are.
    fn open_python(&self, _: &Arc<StoredModel>) -> Result<Box<dyn Weights>, ModelError> {
        Err(ModelError::NoPython)
    }

    /// The name of the memory that models are computed in, and of that which weights come from.
    fn tiers(&self) -> [&str; 2];

    /// The memory that weights take.
    fn usage(&self) -> Vec<Tier>;

    /// Gives memory of the device that no model has back to the driver, for other processes.
    fn trim(&self) {}

    /// Ends what is computed now as early as can be: its answer is for nobody.
    fn abandon(&self) {}

    /// Waits for nothing any more that is not computed yet.
    fn end(&self) {}

    /// The processes that compute, the active one first; none beside this one.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Is told how long weights took to come, or that they do not come.
pub(crate) type Done = Box<dyn FnOnce(Option<Duration>) + Send>;

/// The weights of one model on a [`Backend`]. Dropped, they give back their memory.
pub(crate) trait Weights: Send + Sync {
    /// Bytes of all of them, whatever their order.
    fn bytes(&self) -> u64;

    /// Bytes of them in the backend's memory now, or on their way.
    fn resident_bytes(&self) -> u64;

    /// Begins to bring them, if they are not there. Room that others still give back is waited for so long.
    fn load(&self, patience: Duration) -> Result<(), ModelError>;

    /// Calls `done` when all of them are there, or do not come.
    fn when_loaded(&self, done: Done);

    /// Waits until all of them are there, of the files that were looked at.
    fn loaded(&self) -> Result<(), ModelError>;

    /// Frees so many bytes of their memory, or more.
    fn evict(&self, bytes: u64);

    /// Answers inputs. Weights are waited for.
    fn compute(&self, inputs: &[RawTensor]) -> Result<Timed, ModelError>;
}

/// The answers to a batch, and where its time went.
pub(crate) struct Timed {
    pub(crate) outputs: Vec<RawTensor>,
    /// The time that was waited for the first weights, and for later ones.
    pub(crate) copy: Duration,
    pub(crate) wait: Duration,
    pub(crate) compute: Duration,
}
