//! A network that is computed in this process, bound to its weights or not, and the result of a batch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tenure_core::Storage;
use tenure_nn::networks::Network;
use tenure_nn::switched::{self, Measured};
use tenure_switch::{FirstUse, Image, Mapped, Stopped, SwitchError};
use tenure_tensor::{DType, autograd};

use super::tensors::RawTensor;
use super::{ModelError, text};

/// The position of a network's tensor in its image, stored row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placed {
    /// The name of a tensor of the network.
    pub(crate) name: String,
    #[serde(with = "text")]
    pub(crate) dtype: DType,
    /// The group that it is in: tensors of one group are loaded together.
    pub(crate) group: usize,
    /// The offset in bytes from the start of the group.
    pub(crate) begin: u64,
}

/// The result of a batch, and its times.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) outputs: Vec<RawTensor>,
    /// The time at which the computation began.
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// The first use of each group, in this run or an earlier one.
    pub(crate) first_uses: Vec<Option<FirstUse>>,
    /// The order in which lent weights were used, if it was measured.
    pub(crate) measured: Option<Measured>,
}

/// The weights of a model in groups, of which some may still be loading.
pub(crate) trait Groups {
    /// Returns the bytes of a group. Their first use waits until the group is loaded.
    fn storage(&self, group: usize) -> Storage;
    /// Returns when each group was first used, and how long that use waited.
    fn first_uses(&self) -> Vec<Option<FirstUse>>;
    /// Returns why some group could not be loaded, if so.
    fn failure(&self) -> Option<SwitchError>;
}

impl Groups for Arc<Image> {
    fn storage(&self, group: usize) -> Storage {
        Image::storage(self, group)
    }

    fn first_uses(&self) -> Vec<Option<FirstUse>> {
        Image::first_uses(self)
    }

    fn failure(&self) -> Option<SwitchError> {
        Image::failure(self)
    }
}

impl Groups for Arc<Mapped> {
    fn storage(&self, group: usize) -> Storage {
        Mapped::storage(self, group)
    }

    fn first_uses(&self) -> Vec<Option<FirstUse>> {
        Mapped::first_uses(self)
    }

    fn failure(&self) -> Option<SwitchError> {
        Mapped::failure(self)
    }
}

/// A network that is computed in this process.
pub(crate) struct BoundNetwork<G> {
    network: Box<dyn Network>,
    weights: Option<BoundWeights<G>>,
}

struct BoundWeights<G> {
    groups: G,
    bound: switched::BoundTensors,
}

impl<G: Groups> BoundNetwork<G> {
    pub(crate) fn new(network: Box<dyn Network>) -> Self {
        Self { network, weights: None }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.weights.is_some()
    }

    /// Replaces the network's empty tensors by views of the groups.
    pub(crate) fn bind(&mut self, groups: G, placed: &[Placed]) -> Result<(), ModelError> {
        let placed = placed.iter().map(|Placed { name, dtype, group, begin }| switched::Placed {
            name,
            dtype: *dtype,
            group: *group,
            begin: *begin,
        });
        let bound = switched::BoundTensors::bind(&mut *self.network, placed, |group| groups.storage(group))?;
        self.weights = Some(BoundWeights { groups, bound });
        Ok(())
    }

    /// Makes the network's tensors empty again, and releases the groups.
    pub(crate) fn unbind(&mut self) {
        let Some(BoundWeights { bound, .. }) = self.weights.take() else { return };
        if let Err(error) = bound.unbind(&mut *self.network) {
            tracing::error!("weights cannot be unbound and stay in memory: {error}");
        }
    }

    /// Computes the answers to inputs. Waits for weights.
    pub(crate) fn compute(&self, inputs: &[RawTensor]) -> Result<Computed, ModelError> {
        let groups = &self.weights.as_ref().ok_or(ModelError::NoWeights)?.groups;
        let inputs = inputs.iter().map(RawTensor::to_tensor).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        // A network that panicked can be used again: its only state is its values, which it does not write.
        let forward = AssertUnwindSafe(|| autograd::no_grad(|| self.network.forward(&inputs)));
        let computed = catch_unwind(forward).map_err(unwind_error)?;
        let ended = Instant::now();
        // A result that was computed from weights that failed to load is invalid.
        if let Some(error) = groups.failure() {
            return Err(error.into());
        }
        let outputs = computed?.iter().map(RawTensor::of).collect::<Result<_, _>>()?;
        Ok(Computed { outputs, begun, ended, first_uses: groups.first_uses(), measured: None })
    }
}

/// Returns the error for a call of a network that panicked or was stopped.
pub(super) fn unwind_error(panic: Box<dyn Any + Send>) -> ModelError {
    match panic.is::<Stopped>() {
        true => ModelError::Abandoned,
        false => ModelError::Panic(message(&*panic)),
    }
}

/// Returns the message of a panic, in one line.
fn message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("it did not say why").replace('\n', " ")
}
