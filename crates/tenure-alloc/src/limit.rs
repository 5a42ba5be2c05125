//! The limit on the bytes of a device that may be held.

use crate::{AllocError, Backing};

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
        let setting = "memory fraction";
        let value = fraction.to_string();
        let expected = "it must lie between 0 and 1";
        return Err(AllocError::InvalidSetting { setting, value, expected });
    }
    Ok((fraction < 1.0).then_some(fraction))
}
