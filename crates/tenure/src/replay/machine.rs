//! The machine on which a trace is replayed.

use std::sync::Arc;

use tenure_alloc::{Address, Backing, CachingAllocator};
use tenure_core::StreamId;
use tenure_device::Counters;

use super::OnDevice;
use crate::Error;

/// A machine for replays: a device, its clock, and the program's use of its blocks.
pub(super) trait Machine {
    /// Returns the backing of the allocator.
    fn backing(&self) -> Arc<dyn Backing>;

    /// Returns the stream of this machine that stands for a stream of the trace.
    fn stream(&self, recorded: StreamId) -> StreamId;

    /// Tells the machine that the pass has come to `us` after its first event.
    fn set_time(&mut self, us: u64);

    /// Tells the machine that the program got a block, which the program then uses.
    fn allocated(&mut self, block: &LiveBlock) -> Result<(), Error>;

    /// Tells the machine that the program is about to free a block.
    fn freeing(&mut self, block: &LiveBlock) -> Result<(), Error>;

    /// Tells the machine that an event was replayed.
    fn replayed(&mut self) -> Result<(), Error>;

    /// Ends a pass and waits for the work of its streams; later calls belong to the next pass. The program waits here,
    /// not the allocator, so the wait is not counted.
    fn end_pass(&mut self) -> Result<(), Error>;

    /// Returns the bytes of the device held through the backing.
    fn reserved_bytes(&self) -> Result<u64, Error>;

    /// Returns the most bytes that were held at once.
    fn peak_reserved_bytes(&self) -> u64;

    /// Returns the counters of calls made through the backing.
    fn counters(&self) -> Counters;

    /// Ends the replay. Returns the figures of a real device. May make the allocator release its cache.
    fn finish(&mut self, allocator: &dyn CachingAllocator) -> Result<Option<OnDevice>, Error>;
}

/// A block that the program holds.
pub(super) struct LiveBlock {
    pub(super) address: Address,
    pub(super) requested: u64,
    pub(super) allocated: u64,
    pub(super) stream: StreamId,
    /// The number of blocks allocated before, over all passes.
    pub(super) number: u64,
}
