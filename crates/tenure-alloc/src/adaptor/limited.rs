//! [`Limited`]: an adaptor that limits the bytes in live blocks.

use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::StreamId;

use super::ledger::Ledger;
use crate::{Address, AllocError, Block, Request, Resource};

/// An adaptor that limits the bytes in live blocks, counted as the resource below rounds them.
pub struct Limited<R> {
    inner: R,
    limit: u64,
    /// Bytes in live blocks and in requests underway; at most `limit`.
    used: AtomicU64,
    ledger: Ledger,
}

impl<R: Resource> Limited<R> {
    /// Allows at most `limit` bytes of `inner`.
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, limit, used: AtomicU64::new(0), ledger: Ledger::default() }
    }

    /// Returns the resource below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns how many bytes may be live at a time.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes in live blocks.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more as used.
    ///
    /// # Errors
    /// The bytes in use, if the limit does not allow more.
    fn reserve(&self, bytes: u64) -> Result<(), u64> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= self.limit)
            })
            .map(drop)
    }

    fn unreserve(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn out_of_memory(&self, requested: u64, stream: StreamId, used: u64) -> AllocError {
        let free = self.limit - used;
        let limit = self.limit;
        AllocError::OutOfMemory {
            requested,
            stream,
            allocated: used,
            reserved: used,
            inactive: 0,
            overhead: 0,
            free,
            total: limit,
            allowed: limit,
        }
    }
}

impl<R: Resource> Resource for Limited<R> {
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the limit would be passed; the limit stands for the device in it. Any error of
    /// the resource below.
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let Request { bytes: requested, stream, .. } = request;
        self.reserve(requested).map_err(|used| self.out_of_memory(requested, stream, used))?;
        let block = self.inner.allocate(request).inspect_err(|_| self.unreserve(requested))?;
        // The size to which the resource below rounds is known only now.
        if let Err(used) = self.reserve(block.bytes - requested) {
            self.inner.free(block.address)?;
            self.unreserve(requested);
            return Err(self.out_of_memory(requested, stream, used - requested));
        }
        self.ledger.insert(request, block);
        Ok(block)
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if let Some(freed) = self.ledger.free(&self.inner, address)? {
            self.unreserve(freed.block.bytes);
        }
        Ok(())
    }
}
