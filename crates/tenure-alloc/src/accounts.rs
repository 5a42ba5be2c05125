//! The accounts of an allocator: its statistics and its limit, for the memory of all its pools.

use crate::{AllocError, Backing, PoolKind, Statistics};

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
            pool.inactive_split.replace(before.0, after.0);
            pool.inactive_split_bytes.replace(before.1, after.1);
        }
    }
}

/// The limit on the bytes of the device that may be held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The fraction of the device, less than 1; as in PyTorch, all of the device means no limit.
    fraction: Option<f64>,
    /// The fraction of the device beyond which requests are rejected: a second limit, whose refusals are counted apart.
    rejection: Option<f64>,
    /// Whether the memory that the process holds beside the allocator counts.
    pub(crate) counts_overhead: bool,
    /// Bytes of the device.
    pub(crate) total: u64,
}

impl Limit {
    /// Allows the whole device.
    pub(crate) fn new(total: u64) -> Self {
        Self { fraction: None, rejection: None, counts_overhead: true, total }
    }

    /// Limits the bytes held to a fraction of the device.
    pub(crate) fn set(&mut self, fraction: f64) -> Result<(), AllocError> {
        self.fraction = checked(fraction)?;
        Ok(())
    }

    /// Rejects requests beyond a fraction of the device; `None` ends that.
    pub(crate) fn set_rejection(&mut self, fraction: Option<f64>) -> Result<(), AllocError> {
        self.rejection = fraction.map(checked).transpose()?.flatten();
        Ok(())
    }

    /// Returns the fraction set, or 1 if there is no limit.
    pub(crate) fn fraction(&self) -> f64 {
        self.fraction.unwrap_or(1.0)
    }

    /// Returns whether a memory fraction is set.
    pub(crate) fn is_set(&self) -> bool {
        self.fraction.is_some()
    }

    /// Returns how many bytes may be held.
    pub(crate) fn bytes(&self) -> u64 {
        let fraction = self.fraction().min(self.rejection.unwrap_or(1.0));
        (fraction * self.total as f64) as u64
    }

    /// Returns whether the rejection limit alone keeps this process from holding so many bytes.
    pub(crate) fn rejects(&self, bytes: u64) -> bool {
        self.rejection.is_some_and(|rejection| rejection < self.fraction()) && bytes > self.bytes()
    }

    /// Returns the bytes that count beside those that the allocator reserved, for reports.
    pub(crate) fn counted_overhead(&self, backing: &dyn Backing) -> u64 {
        if self.counts_overhead { backing.overhead_bytes() } else { 0 }
    }

    /// Returns the same bytes for checks against the limit, but 0 if all of the device may be held: then the device
    /// itself is the limit, and the query of the overhead, which is slow, is spared.
    pub(crate) fn overhead(&self, backing: &dyn Backing) -> u64 {
        if self.bytes() < self.total { self.counted_overhead(backing) } else { 0 }
    }
}

/// Checks a fraction of the device; returns `None` for all of it.
fn checked(fraction: f64) -> Result<Option<f64>, AllocError> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(AllocError::invalid("memory fraction", fraction, "it must lie between 0 and 1"));
    }
    Ok((fraction < 1.0).then_some(fraction))
}
