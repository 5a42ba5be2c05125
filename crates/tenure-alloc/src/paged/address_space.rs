//! The reserved address space, from which windows are cut.

use crate::Address;
use crate::runs::Runs;

/// The address space of an allocator: keeps track of the parts that no window owns.
pub(super) struct AddressSpace {
    free: Runs,
    granularity: u64,
    free_bytes: u64,
}

/// A window owns at least one part in this many of the free addresses if possible, so that it has room to grow.
const SHARE: u64 = 1024;

impl AddressSpace {
    /// Makes an address space of `bytes` bytes from `first` on, all free.
    pub(super) fn new(first: Address, bytes: u64, granularity: u64) -> Self {
        let mut free = Runs::default();
        free.insert(first, bytes);
        Self { free, granularity, free_bytes: bytes }
    }

    /// Takes room for a window of `bytes` bytes and for its growth: (first address, bytes owned).
    pub(super) fn take(&mut self, bytes: u64) -> Option<(Address, u64)> {
        // One granule is never mapped, so that windows do not touch.
        let least = bytes.checked_add(self.granularity)?;
        let wanted = least.saturating_mul(2).max((self.free_bytes / SHARE).next_multiple_of(self.granularity));
        let (run, owned) = match self.free.first_fit(wanted, 0) {
            Some(run) => (run, wanted),
            None => (self.free.first_fit(least, 0)?, least),
        };
        self.free.remove(run.address, owned);
        self.free_bytes -= owned;
        Some((run.address, owned))
    }

    /// Takes back a range from [`take`](Self::take) under which nothing is mapped.
    pub(super) fn give_back(&mut self, first: Address, bytes: u64) {
        self.free.insert(first, bytes);
        self.free_bytes += bytes;
    }
}
