//! The weights on a device that the server lends to this worker process.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};

use parking_lot::Mutex;
use tenure_nn::networks::Network;
use tenure_nn::switched::{Borrower, LentTerms};
use tenure_tensor::Device;

use super::message::{BorrowingDevice, Description, Lend, OrderError};
use crate::executor::{BorrowedWeights, Computed, LentNetwork, ModelError, RawTensor};

/// The most chunk descriptors that wait to be mapped: each is an open file.
const OPEN_CHUNKS: usize = 16;

/// All weights that the server lends to this worker, and their device if the worker uses one.
#[derive(Default)]
pub(super) struct Loans {
    device: OnceLock<Borrower>,
    /// The loans by number.
    loans: Mutex<HashMap<u64, ArrivingLoan>>,
    /// The networks by model, for models that were lent at least once.
    networks: Mutex<HashMap<u64, LentNetwork>>,
}

/// A loan whose chunks arrive one after the other.
struct ArrivingLoan {
    loan: Arc<BorrowedWeights>,
    /// The channel to the thread that maps chunks; `None` once all have arrived.
    chunks: Option<mpsc::SyncSender<OwnedFd>>,
    /// The number of chunks that have not arrived.
    missing: u64,
}

/// The job to map a loan.
pub(super) struct Borrow {
    loan: Arc<BorrowedWeights>,
    network: Description,
    terms: LentTerms,
    tables: Option<OwnedFd>,
    chunks: mpsc::Receiver<OwnedFd>,
}

impl Loans {
    /// Prepares the device.
    pub(super) fn start(&self, device: BorrowingDevice) -> Result<(), OrderError> {
        let BorrowingDevice { index, chunk_bytes } = device;
        // There is only one start order.
        let _ = self.device.set(Borrower::new(Device::cuda(index), chunk_bytes)?);
        Ok(())
    }

    /// Registers a loan whose chunks will follow.
    pub(super) fn lend(&self, lend: Lend, tables: Option<OwnedFd>) -> Borrow {
        let Lend { loan: number, model, network, terms, chunks: missing } = lend;
        let loan = Arc::new(BorrowedWeights::new(Arc::clone(self.networks.lock().entry(model).or_default())));
        let (sender, chunks) = mpsc::sync_channel(OPEN_CHUNKS);
        let sender = (missing > 0).then_some(sender);
        self.loans.lock().insert(number, ArrivingLoan { loan: Arc::clone(&loan), chunks: sender, missing });
        Borrow { loan, network, terms, tables, chunks }
    }

    /// Passes a chunk to the thread that maps it; waits while that thread has enough of them.
    pub(super) fn take_chunk(&self, number: u64, chunk: OwnedFd) -> Result<(), OrderError> {
        let sender = {
            let mut loans = self.loans.lock();
            let lent = loans.get_mut(&number).ok_or(OrderError::NoImage(number))?;
            lent.missing = lent.missing.saturating_sub(1);
            if lent.missing > 0 { lent.chunks.clone() } else { lent.chunks.take() }
        };
        if let Some(sender) = sender {
            // A loan that failed accepts no more chunks.
            let _ = sender.send(chunk);
        }
        Ok(())
    }

    /// Maps a loan as its chunks arrive.
    pub(super) fn borrow(
        &self,
        borrow: Borrow,
        build: impl FnOnce(&Description) -> Result<Box<dyn Network>, ModelError>,
    ) {
        let Borrow { loan, network, terms, tables, chunks } = borrow;
        // Without a device, a loan is never computed with.
        if let Some(device) = self.device.get() {
            loan.borrow(device, || build(&network), &terms, tables, chunks);
        }
    }

    /// Returns the loan with this number.
    pub(super) fn get(&self, number: u64) -> Option<Arc<BorrowedWeights>> {
        self.loans.lock().get(&number).map(|lent| Arc::clone(&lent.loan))
    }

    /// Computes the answers to inputs. Waits for weights.
    pub(super) fn compute(&self, loan: &BorrowedWeights, inputs: &[RawTensor]) -> Result<Computed, ModelError> {
        loan.compute(self.device.get().ok_or(ModelError::NoWeights)?, inputs)
    }

    /// Returns whether there is a device and it no longer responds.
    pub(super) fn has_lost_device(&self) -> bool {
        self.device.get().is_some_and(Borrower::is_lost)
    }

    /// Unmaps the loan with this number, if there is one, once the computation with it is done.
    pub(super) fn give_back(&self, number: u64) {
        let lent = self.loans.lock().remove(&number);
        if let Some(ArrivingLoan { loan, .. }) = lent {
            loan.give_back();
        }
    }

    /// Drops a model's network, with the graphs that were captured of it.
    pub(super) fn forget(&self, model: u64) {
        let network = self.networks.lock().remove(&model);
        drop(network);
    }
}
