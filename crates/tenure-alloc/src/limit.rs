use crate::{AllocError, Backing};

/// How much of the device may be held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Less than 1: all of the device is no limit, as in PyTorch.
    fraction: Option<f64>,
    /// The part of the device beyond which requests are rejected: a second limit, whose refusals are counted apart.
    rejection: Option<f64>,
    /// Whether what the process holds beside the allocator counts.
    pub(crate) counts_overhead: bool,
    /// Bytes of the device.
    pub(crate) total: u64,
}

impl Limit {
    /// The whole device.
    pub(crate) fn new(total: u64) -> Self {
        Self { fraction: None, rejection: None, counts_overhead: true, total }
    }

    /// Limits it to a part of the device.
    pub(crate) fn set(&mut self, fraction: f64) -> Result<(), AllocError> {
        self.fraction = checked(fraction)?;
        Ok(())
    }

    /// Rejects requests beyond a part of the device; `None` ends that.
    pub(crate) fn set_rejection(&mut self, fraction: Option<f64>) -> Result<(), AllocError> {
        self.rejection = fraction.map(checked).transpose()?.flatten();
        Ok(())
    }

    /// What was set; 1 if nothing less was.
    pub(crate) fn fraction(&self) -> f64 {
        self.fraction.unwrap_or(1.0)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.fraction.is_some()
    }

    /// Bytes that may be held.
    pub(crate) fn bytes(&self) -> u64 {
        let fraction = self.fraction().min(self.rejection.unwrap_or(1.0));
        (fraction * self.total as f64) as u64
    }

    /// Whether the rejection alone keeps this process from holding so many bytes.
    pub(crate) fn rejects(&self, bytes: u64) -> bool {
        self.rejection.is_some_and(|rejection| rejection < self.fraction()) && bytes > self.bytes()
    }

    /// Bytes that count beside what the allocator reserved, for reports.
    pub(crate) fn counted_overhead(&self, backing: &dyn Backing) -> u64 {
        if self.counts_overhead { backing.overhead_bytes() } else { 0 }
    }

    /// The same, where it decides: whoever may hold all of the device is stopped by the device itself, and the overhead is
    /// slow to ask for.
    pub(crate) fn overhead(&self, backing: &dyn Backing) -> u64 {
        if self.bytes() < self.total { self.counted_overhead(backing) } else { 0 }
    }
}

/// A part of the device; `None` for all of it.
fn checked(fraction: f64) -> Result<Option<f64>, AllocError> {
    if !(0.0..=1.0).contains(&fraction) {
        let (setting, value, expected) = ("memory fraction", fraction.to_string(), "it must lie between 0 and 1");
        return Err(AllocError::InvalidSetting { setting, value, expected });
    }
    Ok((fraction < 1.0).then_some(fraction))
}
