//! The accounts of an allocator: its statistics and its limit, for the memory of all its pools.

use crate::limit::Limit;
use crate::{Backing, PoolKind, Stat, Statistics};

/// The statistics and the limit of a whole allocator. The code of each pool changes them through a reference.
pub(crate) struct Accounts {
    pub(crate) statistics: Statistics,
    pub(crate) limit: Limit,
}

impl Accounts {
    /// Makes the accounts of an allocator that holds nothing, on a device of `total` bytes.
    pub(crate) fn new(total: u64) -> Self {
        Self { statistics: Statistics::default(), limit: Limit::new(total) }
    }

    /// Returns the bytes reserved in all.
    pub(crate) fn reserved(&self) -> u64 {
        self.statistics.all.reserved_bytes.current
    }

    /// Returns the bytes that count against the limit: those reserved, and the overhead if it matters.
    pub(crate) fn held(&self, backing: &dyn Backing) -> u64 {
        self.reserved() + self.limit.overhead(backing)
    }

    /// Replaces, in the statistics, free blocks of segments in use by others; both are (blocks, bytes).
    pub(crate) fn count_inactive(&mut self, kind: PoolKind, gone: (u64, u64), come: (u64, u64)) {
        for pool in self.statistics.both(kind) {
            change(&mut pool.inactive_split, gone.0, come.0);
            change(&mut pool.inactive_split_bytes, gone.1, come.1);
        }
    }
}

/// Changes a statistic by the bytes or blocks that go and those that come, as one step.
fn change(stat: &mut Stat, gone: u64, come: u64) {
    if come > gone {
        stat.increase(come - gone);
    } else {
        stat.decrease(gone - come);
    }
}
