//! [`Counted`]: an adaptor that keeps statistics of the resource below it.

use parking_lot::Mutex;

use super::ledger::Ledger;
use crate::{Address, AllocError, Block, PoolKind, Request, Resource, Statistics};

/// PyTorch's bound between its small and its large pool, in bytes.
const SMALL_LIMIT: u64 = 1 << 20;

/// An adaptor that counts blocks and bytes, by PyTorch's pools and by tag, and out-of-memory errors.
///
/// A block is counted until its free has returned. With several threads, a peak may therefore count both a block and
/// the next user of its memory. Segments and reserved bytes belong to the resource below and stay zero here. A freed
/// block never counts as active: only the resource below knows which streams it waits for.
pub struct Counted<R> {
    inner: R,
    statistics: Mutex<Statistics>,
    ledger: Ledger,
}

impl<R: Resource> Counted<R> {
    /// Counts the use of `inner`.
    pub fn new(inner: R) -> Self {
        Self { inner, statistics: Mutex::default(), ledger: Ledger::default() }
    }

    /// Returns the resource below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns the current counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics.lock().clone()
    }

    /// Sets every peak to the current value.
    pub fn reset_peak_statistics(&self) {
        self.statistics.lock().reset_peak();
    }

    /// Sets every accumulated counter to zero.
    pub fn reset_accumulated_statistics(&self) {
        self.statistics.lock().reset_accumulated();
    }
}

impl<R: Resource> Resource for Counted<R> {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let block = self.inner.allocate(request).inspect_err(|error| {
            if matches!(error, AllocError::OutOfMemory { .. }) {
                self.statistics.lock().num_ooms += 1;
            }
        })?;
        if block.address != 0 {
            self.ledger.insert(request, block);
            self.statistics.lock().block_allocated(kind(block), request.tag, request.bytes, block.bytes);
        }
        Ok(block)
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if let Some(freed) = self.ledger.free(&self.inner, address)? {
            let request = freed.request;
            let block = freed.block;
            let mut statistics = self.statistics.lock();
            statistics.block_freed(kind(block), request.tag, block.bytes);
            statistics.block_completed(kind(block), request.tag, request.bytes, block.bytes);
        }
        Ok(())
    }
}

fn kind(block: Block) -> PoolKind {
    if block.bytes <= SMALL_LIMIT { PoolKind::Small } else { PoolKind::Large }
}
