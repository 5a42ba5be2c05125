//! [`Recorded`]: an adaptor that records allocations and frees in a history.

use super::ledger::{Ledger, LedgerEntry};
use crate::{Address, AllocError, Block, History, HistoryAction, HistoryEvent, Request, Resource};

/// An adaptor that records allocations and frees, so that a trace of any resource can be saved.
///
/// The events of an address are in the order in which it changed owners. A free is recorded before it is made, as
/// requested and completed at once. If it fails, an allocation of the same block is recorded after it. The free of a
/// block that was allocated before recording began is not recorded.
pub struct Recorded<R> {
    inner: R,
    history: History,
    ledger: Ledger,
}

impl<R: Resource> Recorded<R> {
    /// Records the use of `inner` in `history`, while that is on.
    pub fn new(inner: R, history: History) -> Self {
        Self { inner, history, ledger: Ledger::default() }
    }

    /// Returns the resource below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns the recorded events; [`History::start`] begins recording and [`History::stop`] ends it.
    pub fn history(&self) -> &History {
        &self.history
    }

    fn record(&self, action: HistoryAction, address: Address, request: Request) {
        let Request { bytes, stream, tag, key } = request;
        self.history.record(|| HistoryEvent::new(action, address, bytes, stream).with_purpose(tag, key));
    }

    fn record_allocation(&self, request: Request, block: Block) {
        self.ledger.insert(request, block);
        self.record(HistoryAction::Alloc, block.address, request);
    }
}

impl<R: Resource> Resource for Recorded<R> {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let block = self.inner.allocate(request).inspect_err(|error| {
            if let AllocError::OutOfMemory { free, .. } = *error {
                self.record(HistoryAction::OutOfMemory, free, request);
            }
        })?;
        if block.address != 0 && self.history.is_on() {
            self.record_allocation(request, block);
        }
        Ok(block)
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        let Some(LedgerEntry { request, block }) = self.ledger.remove(address) else {
            return self.inner.free(address);
        };
        // Recorded before the free: after it, the next owner's allocation might be recorded first.
        self.record(HistoryAction::FreeRequested, address, request);
        self.record(HistoryAction::FreeCompleted, address, request);
        self.inner.free(address).inspect_err(|_| self.record_allocation(request, block))
    }
}
