//! Memory donated to an allocator from outside, such as a shared pool's: PipeSwitch's `insertSharedCache` and
//! `clearSharedCache` (its patch of PyTorch 1.3).

mod caching;
mod gate;
mod placement;
mod ranges;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tenure_core::StreamId;

use crate::{Address, AllocError, Backing, Block, Request, Resource};
use gate::EnteredGate;
pub use gate::RangeGate;
pub use placement::{PlacedBlock, RangePlacement};
use ranges::Ranges;

/// An allocator that is given further memory for a while. Requests on the memory's stream are served from that memory
/// first, as its [`RangePlacement`] says, and then by the allocator below. While no memory is donated, the wrapper
/// costs an allocation one load and branch.
///
/// Streams that are captured into a private pool get no donated memory. Donated memory counts as reserved; its bytes
/// are in the statistics and the snapshot of the whole. A peak of the whole is the sum of the peaks of both parts, an
/// upper bound.
pub struct Donated<A> {
    inner: A,
    donated: DonatedRanges,
}

/// The memory donated to a [`Donated`]: adds and removes ranges.
pub struct DonatedRanges {
    backing: Arc<dyn Backing>,
    /// It is boxed, so that its lock shares no cache line with data that every allocation reads.
    ranges: Box<Mutex<Ranges>>,
    /// The smallest request in bytes that any range serves.
    least: AtomicU64,
    /// The bounds of the donated addresses, `lowest..highest`: a free of any other address takes no lock.
    lowest: AtomicU64,
    highest: AtomicU64,
}

impl<A> Donated<A> {
    /// Wraps `inner`, with no donated memory yet. `backing` tells whether streams that were recorded for a donated
    /// block have passed it.
    pub fn new(inner: A, backing: Arc<dyn Backing>) -> Self {
        let least = AtomicU64::new(u64::MAX);
        let lowest = AtomicU64::new(u64::MAX);
        let highest = AtomicU64::new(0);
        Self { inner, donated: DonatedRanges { backing, ranges: Box::default(), least, lowest, highest } }
    }

    /// Returns the allocator below.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// Returns the memory donated to this allocator.
    pub fn donated(&self) -> &DonatedRanges {
        &self.donated
    }
}

impl DonatedRanges {
    /// Gives `address..address + bytes` to requests on `stream`, until [`clear`](Self::clear). The memory must be
    /// accessible, and nothing else may use it. Work of other streams on it must have finished, or `stream` must wait
    /// for it.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if the range is empty, is not made of whole multiples of 512 bytes, or overlaps a
    /// range given before; if a recorded block does not lie in it; or if the stream has a range that takes every
    /// request.
    pub fn insert(
        &self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        placement: RangePlacement,
    ) -> Result<(), AllocError> {
        self.insert_range(address, bytes, stream, placement, None)
    }

    /// Gives memory that may be used only while `gate` is entered; otherwise the same as [`insert`](Self::insert) with
    /// [`RangePlacement::BestFit`].
    ///
    /// # Errors
    /// The same as for [`insert`](Self::insert).
    pub fn insert_behind(
        &self,
        gate: Arc<dyn RangeGate>,
        address: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        self.insert_range(address, bytes, stream, RangePlacement::BestFit, Some(gate))
    }

    fn insert_range(
        &self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        placement: RangePlacement,
        gate: Option<Arc<dyn RangeGate>>,
    ) -> Result<(), AllocError> {
        let mut ranges = self.ranges.lock();
        ranges.insert(address, bytes, stream, placement, gate)?;
        self.least.store(ranges.least(), Ordering::Release);
        self.lowest.fetch_min(address, Ordering::Release);
        self.highest.fetch_max(address + bytes, Ordering::Release);
        Ok(())
    }

    /// Takes back the range at `address`. Work put on its stream may still use it. Waits on the host for other streams
    /// that use a freed block.
    ///
    /// # Errors
    /// [`AllocError::StillInUse`] if blocks live in it: free them first. During a capture no stream can be waited for,
    /// so freed blocks that other streams use count as live. [`AllocError::UnknownAddress`] if there is no such range.
    pub fn clear(&self, address: Address) -> Result<(), AllocError> {
        let mut ranges = self.ranges.lock();
        let cleared = ranges.clear(address, &*self.backing);
        self.least.store(ranges.least(), Ordering::Release);
        cleared
    }

    /// Ends allocation in the range at `address`, which was given with [`RangePlacement::InOrder`], unless it has ended
    /// already. Returns its live blocks in the order in which they were allocated. A range of the same size that is
    /// given with these blocks as [`RangePlacement::Recorded`] places the same requests at the same offsets.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if there is no such range.
    pub fn close(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        let mut ranges = self.ranges.lock();
        let placed = ranges.close(address);
        self.least.store(ranges.least(), Ordering::Release);
        placed
    }

    /// Returns the live blocks of the range at `address`, which was given with [`RangePlacement::InOrder`], in the
    /// order in which they were allocated.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if there is no such range.
    pub fn live(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        self.ranges.lock().live(address)
    }

    /// Returns the blocks of [`live`](Self::live), and the freed blocks that no later one overlaps. Together they are
    /// the last owners of each byte that was allocated.
    ///
    /// # Errors
    /// The same as for [`live`](Self::live).
    pub fn placed(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        self.ranges.lock().placed(address)
    }

    /// Returns whether a stream is captured, so that the device cannot be waited for.
    pub fn is_capturing(&self) -> bool {
        self.ranges.lock().is_capturing()
    }

    /// Returns how many of its recorded requests the range at `address` has yet to serve; 0 if it records none.
    pub fn outstanding(&self, address: Address) -> usize {
        self.ranges.lock().outstanding(address)
    }

    /// Returns whether an address lies in a range.
    #[inline]
    pub fn contains(&self, address: Address) -> bool {
        self.lock_containing(address).is_some()
    }

    /// Allocates a block for the request, if a range of its stream serves it.
    #[inline]
    fn allocate(&self, request: Request) -> Result<Option<Block>, AllocError> {
        if request.bytes < self.least.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.allocate_in_range(request)
    }

    /// Allocates a block for the request in a range, and enters the range's gate for it.
    #[cold]
    fn allocate_in_range(&self, request: Request) -> Result<Option<Block>, AllocError> {
        let mut entered: Option<EnteredGate> = None;
        loop {
            let mut ranges = self.ranges.lock();
            let Some(place) = ranges.find(request, &*self.backing)? else { return Ok(None) };
            match ranges.gate(&place) {
                // The gate is entered with no lock held, so the place may be gone afterwards: the loop searches again.
                Some(gate) if entered.as_ref().is_none_or(|entered| !entered.is_of(&gate)) => {
                    drop(ranges);
                    drop(entered.take());
                    entered = EnteredGate::new(gate)?;
                    if entered.is_none() {
                        return Ok(None);
                    }
                }
                gate => {
                    let block = ranges.place_block(request, place);
                    self.least.store(ranges.least(), Ordering::Release);
                    drop(ranges);
                    if let Some(entered) = entered.filter(|_| gate.is_some()) {
                        entered.keep();
                    }
                    return Ok(Some(block));
                }
            }
        }
    }

    #[cold]
    fn free(&self, mut ranges: MutexGuard<'_, Ranges>, address: Address) -> Result<(), AllocError> {
        let gate = ranges.free(address, &*self.backing)?;
        drop(ranges);
        if let Some(gate) = gate {
            gate.leave();
        }
        Ok(())
    }

    /// Locks the ranges and returns the guard, if an address lies in one of them.
    #[inline]
    fn lock_containing(&self, address: Address) -> Option<MutexGuard<'_, Ranges>> {
        if address < self.lowest.load(Ordering::Acquire) || address >= self.highest.load(Ordering::Acquire) {
            return None;
        }
        Some(self.ranges.lock()).filter(|ranges| ranges.contains(address))
    }
}

impl<A: Resource> Resource for Donated<A> {
    #[inline]
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        match self.donated.allocate(request)? {
            Some(block) => Ok(block),
            None => self.inner.allocate(request),
        }
    }

    #[inline]
    fn free(&self, address: Address) -> Result<(), AllocError> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return self.donated.free(ranges, address);
        }
        self.inner.free(address)
    }
}
