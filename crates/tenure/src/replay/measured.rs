use serde::Serialize;

use super::outcome::to_nanoseconds;

/// What a real device says of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OnDevice {
    /// Measured time of the calls that the model knows, all passes, in µs: to be set beside
    /// [`modelled_driver_us`](super::Outcome::modelled_driver_us).
    #[serde(serialize_with = "to_nanoseconds")]
    pub measured_driver_us: f64,
    /// Every kind of call that the allocator made, all passes.
    pub calls: Vec<MeasuredCall>,
    /// When most was reserved, as far as seen between two events.
    pub at_peak: Held,
    /// After the last pass, everything freed and given back.
    pub at_end: Held,
    /// Blocks that were read before their free, and held what was written to them.
    pub blocks_checked: u64,
}

/// Memory that the allocator holds, by its own books and by the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// What the allocator got and did not give back, in bytes.
    pub reserved_bytes: u64,
    /// What is in use beyond what was before the first allocation, in bytes, by the device's own count.
    pub used_bytes: u64,
}

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredCall {
    /// The driver function. Those for events count what the allocator asked, which not always needs a call.
    pub call: &'static str,
    /// How many; a call over several chunks counts once for each.
    pub count: u64,
    /// Wall-clock time of all, in µs.
    #[serde(serialize_with = "to_nanoseconds")]
    pub measured_us: f64,
    /// What [`tenure_device::cost`] says of them, in µs; `None` where it says nothing.
    pub modelled_us: Option<f64>,
}

impl OnDevice {
    pub(super) fn new(calls: Vec<MeasuredCall>, at_peak: Held, at_end: Held, blocks_checked: u64) -> Self {
        let modelled = calls.iter().filter(|call| call.modelled_us.is_some());
        Self { measured_driver_us: modelled.map(|call| call.measured_us).sum(), calls, at_peak, at_end, blocks_checked }
    }

    /// Whether the device's own figures agree with the allocator's within 64 MiB, at the peak and at the end.
    pub fn agrees(&self) -> bool {
        [self.at_peak, self.at_end].iter().all(|held| held.difference_bytes().unsigned_abs() <= 64 << 20)
    }
}

impl Held {
    /// What the device counts beyond the allocator's figure, in bytes; negative where it counts less.
    pub fn difference_bytes(&self) -> i64 {
        self.used_bytes.cast_signed() - self.reserved_bytes.cast_signed()
    }
}
