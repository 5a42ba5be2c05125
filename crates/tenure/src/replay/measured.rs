//! Measurements of a replay on a real device.

use serde::{Serialize, Serializer};

/// The measurements that a real device adds to a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OnDevice {
    /// The measured time of the calls that the cost model covers, over all passes, in µs; compare with
    /// [`modelled_driver_us`](super::ReplayOutcome::modelled_driver_us).
    #[serde(serialize_with = "to_nanoseconds")]
    pub measured_driver_us: f64,
    /// Every kind of call that the allocator made, over all passes.
    pub calls: Vec<MeasuredCall>,
    /// The memory held when most was reserved, as far as seen between two events.
    pub at_peak: HeldMemory,
    /// The memory held after the last pass, with everything freed and released.
    pub at_end: HeldMemory,
    /// The number of blocks that were read before their free and held what was written to them.
    pub blocks_checked: u64,
}

/// The memory that the allocator holds, by its own count and by the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldMemory {
    /// The bytes that the allocator got from the device and did not return.
    pub reserved_bytes: u64,
    /// The bytes in use by the device's count, minus those in use before the first allocation.
    pub used_bytes: u64,
}

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredCall {
    /// The driver function. Calls for events count the allocator's requests, which do not always need a driver call.
    pub call: &'static str,
    /// The number of calls; a call over several chunks counts once for each.
    pub count: u64,
    /// The wall-clock time of all calls, in µs.
    #[serde(serialize_with = "to_nanoseconds")]
    pub measured_us: f64,
    /// The time of all calls by the model [`tenure_device::cost`], in µs; `None` if the model does not cover the call.
    pub modelled_us: Option<f64>,
}

impl OnDevice {
    pub(super) fn new(calls: Vec<MeasuredCall>, at_peak: HeldMemory, at_end: HeldMemory, blocks_checked: u64) -> Self {
        let modelled = calls.iter().filter(|call| call.modelled_us.is_some());
        Self { measured_driver_us: modelled.map(|call| call.measured_us).sum(), calls, at_peak, at_end, blocks_checked }
    }

    /// Returns whether the device's own figures agree with the allocator's within 64 MiB, at the peak and at the end.
    pub fn agrees(&self) -> bool {
        [self.at_peak, self.at_end].iter().all(|held| held.difference_bytes().unsigned_abs() <= 64 << 20)
    }
}

impl HeldMemory {
    /// Returns the bytes by which the device's count exceeds the allocator's; negative if it is lower.
    pub fn difference_bytes(&self) -> i64 {
        self.used_bytes.cast_signed() - self.reserved_bytes.cast_signed()
    }
}

/// Rounds to nanoseconds: finer digits are rounding errors of a sum.
pub(super) fn to_nanoseconds<S: Serializer>(us: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((us * 1e3).round() / 1e3)
}
