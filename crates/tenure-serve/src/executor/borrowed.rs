//! A model's weights in a worker process: chunks of device memory that the server lends.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tenure_nn::networks::Network;
use tenure_nn::switched::{BorrowedNetwork, Borrower, LentTerms};
use tenure_switch::Model;

use super::ModelError;
use super::network::{Computed, unwind_error};
use super::tensors::RawTensor;

/// A network that this process builds once and binds to lent weights again and again.
pub(crate) type LentNetwork = Arc<Mutex<Option<BorrowedNetwork>>>;

/// Weights that are lent to this process until they are given back.
pub(crate) struct BorrowedWeights {
    network: LentNetwork,
    /// The reason why the weights cannot be used.
    failure: Mutex<Option<ModelError>>,
    stop: Mutex<StopState>,
}

/// Whether computation is stopped, and the model that it must stop.
#[derive(Default)]
struct StopState {
    is_stopped: bool,
    /// Set once the weights are mapped.
    model: Option<Arc<Model>>,
}

impl BorrowedWeights {
    /// Creates a loan whose weights are still to be mapped.
    pub(crate) fn new(network: LentNetwork) -> Self {
        Self { network, failure: Mutex::default(), stop: Mutex::default() }
    }

    /// Maps the weights as the descriptors of their chunks arrive. If this fails,
    /// [`BorrowedWeights::compute`] returns the reason.
    pub(crate) fn borrow(
        &self,
        device: &Borrower,
        build: impl FnOnce() -> Result<Box<dyn Network>, ModelError>,
        terms: &LentTerms,
        tables: Option<OwnedFd>,
        chunks: impl IntoIterator<Item = OwnedFd>,
    ) {
        let mut network = self.network.lock();
        let borrowed = catch_unwind(AssertUnwindSafe(|| {
            if network.is_none() {
                *network = Some(BorrowedNetwork::new(build()?)?);
            }
            let Some(network) = &mut *network else { return Ok(None) };
            network.borrow(device, terms, tables, chunks)?;
            Ok::<_, ModelError>(network.model().cloned())
        }));
        match borrowed.map_err(unwind_error).flatten() {
            Ok(model) => {
                let mut stop = self.stop.lock();
                if let Some(model) = model.as_ref().filter(|_| stop.is_stopped) {
                    model.stop();
                }
                stop.model = model;
            }
            Err(error) => *self.failure.lock() = Some(error),
        }
    }

    /// Computes the answers to inputs. Waits for weights.
    pub(crate) fn compute(&self, device: &Borrower, inputs: &[RawTensor]) -> Result<Computed, ModelError> {
        if let Some(failure) = self.failure.lock().take() {
            return Err(failure);
        }
        let mut network = self.network.lock();
        let network = network.as_mut().filter(|network| network.is_borrowed()).ok_or(ModelError::NoWeights)?;
        let inputs = inputs.iter().map(RawTensor::to_tensor).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let computed = catch_unwind(AssertUnwindSafe(|| network.forward(device, &inputs)));
        let (answers, measured) = computed.map_err(unwind_error)??;
        // This waits for the device.
        let outputs = answers.iter().map(RawTensor::of).collect::<Result<_, _>>()?;
        Ok(Computed { outputs, begun, ended: Instant::now(), first_uses: Vec::new(), measured })
    }

    /// Stops the model: a running call unwinds at the next weight that it uses.
    pub(crate) fn stop(&self) {
        let mut stop = self.stop.lock();
        stop.is_stopped = true;
        if let Some(model) = &stop.model {
            model.stop();
        }
    }

    /// Allows the model to be computed again.
    pub(crate) fn resume(&self) {
        let mut stop = self.stop.lock();
        stop.is_stopped = false;
        if let Some(model) = &stop.model {
            model.go_on();
        }
    }

    /// Unmaps the weights once the computation that uses them is done.
    pub(crate) fn give_back(&self) {
        if let Some(network) = &mut *self.network.lock() {
            network.give_back();
        }
    }
}
