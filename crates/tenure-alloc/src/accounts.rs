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

    /// Returns the bytes that count against the limit: the reserved bytes, and the overhead (see [`Limit::overhead`]).
    pub(crate) fn held(&self, backing: &dyn Backing) -> u64 {
        self.reserved() + self.limit.overhead(backing)
    }

    /// Updates the counts of inactive split blocks (free blocks of segments partly in use): of these, `before` become
    /// `after`, both (blocks, bytes).
    pub(crate) fn count_inactive(&mut self, kind: PoolKind, before: (u64, u64), after: (u64, u64)) {
        for pool in self.statistics.both(kind) {
            change(&mut pool.inactive_split, before.0, after.0);
            change(&mut pool.inactive_split_bytes, before.1, after.1);
        }
    }
}

/// Replaces `before` by `after` in a statistic, in one step so that the peak is right.
fn change(stat: &mut Stat, before: u64, after: u64) {
    if after > before {
        stat.increase(after - before);
    } else {
        stat.decrease(before - after);
    }
}
