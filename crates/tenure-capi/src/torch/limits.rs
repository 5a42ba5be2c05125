//! Limits and settings of the allocators.

use std::ffi::c_int;
use std::slice;

use tenure_alloc::{CachingAllocator, Divisions, Tuning};

use super::devices::{Topic, configure_all, device, has_effect, initial_fraction, set_initial_fraction};
use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};

/// The number that stands for every device.
const ALL_DEVICES: c_int = -1;

pub(super) extern "C" fn set_memory_fraction(number: c_int, fraction: f64) -> Status {
    let set = move |_, allocator: &dyn CachingAllocator| {
        allocator.set_memory_fraction(fraction)?;
        allocator.count_overhead(false);
        Ok(())
    };
    guarded(|| match number {
        ALL_DEVICES => {
            configure_all(Some(Topic::MemoryFraction), set)?;
            set_initial_fraction(fraction);
            Ok(())
        }
        _ => set(number, device(number)?.memory.allocator()),
    })
}

pub(super) unsafe extern "C" fn memory_fraction(number: c_int, fraction: *mut f64) -> Status {
    guarded(|| {
        let set = OpenDevice::get(number).map_or_else(|_| initial_fraction(), fraction_of);
        // SAFETY: by the header, a place to write to.
        unsafe { fraction.write(set) };
        Ok(())
    })
}

/// Returns the least fraction of the open devices. If none is open, returns the one they are opened with.
pub(super) fn least_memory_fraction() -> f64 {
    OpenDevice::all().map(|(_, device)| fraction_of(device)).reduce(f64::min).unwrap_or_else(initial_fraction)
}

/// Returns the memory fraction of an open device.
fn fraction_of(device: &OpenDevice) -> f64 {
    device.memory.allocator().memory_fraction()
}

pub(super) unsafe extern "C" fn largest_free(number: c_int, bytes: *mut usize) -> Status {
    guarded(|| {
        let largest = device(number)?.memory.allocator().largest_free();
        // SAFETY: by the header, a place to write to.
        unsafe { bytes.write(largest as usize) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn tune(setting: c_int, values: *const f64, count: usize, heeded: *mut bool) -> Status {
    guarded(|| {
        // SAFETY: by the header, this many values.
        let tuning = tuning_of(setting, unsafe { slice::from_raw_parts(values, count) })?;
        // SAFETY: by the header, a place to write to.
        unsafe { heeded.write(has_effect(&tuning)) };
        configure_all(Some(Topic::Setting(setting)), move |_, allocator| Ok(allocator.tune(tuning).map(drop)?))
    })
}

/// Converts a `tenure_setting` and its values.
fn tuning_of(setting: c_int, values: &[f64]) -> Result<Tuning, Failure> {
    let unknown = || Failure::Invalid(format!("setting {setting} with {} values is unknown", values.len()));
    Ok(match (setting, values) {
        (0, values) => {
            let divisions: Vec<u64> = values.iter().map(|&value| value as u64).collect();
            Tuning::Rounding(Divisions::try_from(divisions).map_err(|_| unknown())?)
        }
        (1, &[bytes]) => Tuning::MaxSplitSize((bytes >= 0.0).then_some(bytes as u64)),
        (2, &[threshold]) => Tuning::GarbageCollectionThreshold(threshold),
        (3, &[on]) => Tuning::ExpandableSegments(on != 0.0),
        (4, &[fraction]) => Tuning::RejectAbove((fraction >= 0.0).then_some(fraction)),
        _ => return Err(unknown()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_number() {
        let tuning = |setting, values: &[f64]| tuning_of(setting, values).unwrap();
        assert_eq!(tuning(0, &[4.0; 16]), Tuning::Rounding([4; 16]));
        assert_eq!(tuning(1, &[1e9]), Tuning::MaxSplitSize(Some(1_000_000_000)));
        assert_eq!(tuning(1, &[-1.0]), Tuning::MaxSplitSize(None));
        assert_eq!(tuning(3, &[1.0]), Tuning::ExpandableSegments(true));
        assert_eq!(tuning(4, &[0.5]), Tuning::RejectAbove(Some(0.5)));
        assert_eq!(tuning(4, &[-1.0]), Tuning::RejectAbove(None));
        assert!(tuning_of(0, &[4.0; 15]).is_err() && tuning_of(5, &[0.0]).is_err());
    }
}
