use std::sync::Arc;

use tenure_alloc::{Address, Backing, CachingAllocator};
use tenure_core::StreamId;
use tenure_device::Counters;

use super::OnDevice;
use crate::Error;

/// What a trace is replayed on: a device, how it keeps time, and what the program does with its blocks.
pub(super) trait Machine {
    /// What the allocator stands on.
    fn backing(&self) -> Arc<dyn Backing>;

    /// The stream here that stands for a stream of the trace.
    fn stream(&self, recorded: StreamId) -> StreamId;

    /// The pass has come to `us` after its first event.
    fn set_time(&mut self, us: u64);

    /// The program was given a block, and uses it.
    fn allocated(&mut self, block: &Live) -> Result<(), Error>;

    /// The program is about to free a block.
    fn freeing(&mut self, block: &Live) -> Result<(), Error>;

    /// An event was replayed.
    fn replayed(&mut self) -> Result<(), Error>;

    /// All of the pass is over, the work of its streams too; what follows belongs to the next. The program that waits
    /// here is not the allocator, so nothing is counted.
    fn end_pass(&mut self) -> Result<(), Error>;

    /// Bytes of the device held through the backing.
    fn reserved_bytes(&self) -> Result<u64, Error>;

    /// The most that was held at once.
    fn peak_reserved_bytes(&self) -> u64;

    /// What was done through the backing.
    fn counters(&self) -> Counters;

    /// The replay is over: what a real device says of it. May have the allocator give back what it caches.
    fn finish(&mut self, allocator: &dyn CachingAllocator) -> Result<Option<OnDevice>, Error>;
}

/// A block that the program holds.
pub(super) struct Live {
    pub(super) address: Address,
    pub(super) requested: u64,
    pub(super) allocated: u64,
    pub(super) stream: StreamId,
    /// How many blocks were allocated before, over all passes.
    pub(super) number: u64,
}
