//! The devices that PyTorch uses: each is opened at its first use, and all get the same configuration.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_alloc::{CachingAllocator, PagedConfig, Tuning};
use tenure_core::{Device, StreamId};
use tenure_device::Stream;
use tenure_device::memory::{AllocatorPolicy, MemoryError};

use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};
use crate::options::DeviceOptions;

/// A configuration step for every device, also for those opened later.
type ConfigStep = Box<dyn Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send>;

/// The subject of a configuration step: a later step replaces an earlier one with the same topic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    History,
    MemoryFraction,
    Setting(c_int),
}

static SETUP: Mutex<Setup> = Mutex::new(Setup { options: None, steps: Vec::new() });

/// The options with which devices are opened, and the configuration steps so far, each with its topic.
struct Setup {
    options: Option<DeviceOptions>,
    steps: Vec<(Option<Topic>, ConfigStep)>,
}

pub(super) unsafe extern "C" fn configure(options: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: by the header, a C string.
        let options = unsafe { CStr::from_ptr(options) };
        configure_from(options.to_str().map_err(|_| Failure::Invalid("options must be UTF-8".into()))?)
    })
}

/// Does the work of [`configure`], for Rust.
pub(super) fn configure_from(options: &str) -> Result<(), Failure> {
    let options = options.parse()?;
    let mut setup = setup();
    if let Some((_, open)) = OpenDevice::all().next() {
        return Err(MemoryError::AlreadyInstalled { device: open.memory.device() }.into());
    }
    setup.options = Some(options);
    Ok(())
}

/// Returns whether options for opening devices were given.
pub(super) fn is_configured() -> bool {
    setup().options.is_some()
}

pub(super) extern "C" fn is_open(number: c_int) -> bool {
    OpenDevice::get(number).is_ok()
}

/// Returns device number `number`, which is opened if this is its first use.
#[inline]
pub(super) fn device(number: c_int) -> Result<&'static OpenDevice, Failure> {
    OpenDevice::get(number).or_else(|_| open(number))
}

/// Returns the stream that PyTorch knows as `handle`, if the device is open.
///
/// # Safety
/// The handle is null, or a stream of the device that exists for as long as it is in use, as PyTorch's do.
pub unsafe fn stream(device: Device, handle: usize) -> Option<Stream> {
    let device = OpenDevice::get(device.index().into()).ok()?;
    let id = StreamId(handle as u64);
    // SAFETY: by the function's contract.
    unsafe { device.adopt(id) };
    let streams = device.memory.streams();
    Some(if id == StreamId::NULL { streams.null() } else { streams.external(id) })
}

/// Runs a configuration step for every open device now, and for every other device when it is opened. Replaces an
/// earlier step with the same topic.
pub(super) fn configure_all(
    topic: Option<Topic>,
    step: impl Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let mut setup = setup();
    OpenDevice::all().try_for_each(|(number, device)| step(number, device.memory.allocator()))?;
    setup.steps.retain(|(earlier, _)| topic.is_none() || *earlier != topic);
    setup.steps.push((topic, Box::new(step)));
    Ok(())
}

/// Returns the memory fraction with which devices are opened.
pub(super) fn initial_fraction() -> f64 {
    setup().options.as_ref().map_or(1.0, |options| options.memory.fraction)
}

/// Returns the limit on cached pinned memory, in bytes, if the options say one.
pub(super) fn pinned_cache_bytes() -> Option<u64> {
    setup().options.as_ref().and_then(|options| options.pinned_cache_bytes)
}

/// Sets the memory fraction with which devices are opened.
pub(super) fn set_initial_fraction(fraction: f64) {
    setup().options.get_or_insert_default().memory.fraction = fraction;
}

/// Returns whether a setting has an effect on the allocator with which devices are opened.
pub(super) fn has_effect(tuning: &Tuning) -> bool {
    let policy = setup().options.as_ref().map(|options| options.memory.policy.clone()).unwrap_or_default();
    !matches!(
        (policy, tuning),
        (AllocatorPolicy::Paged(_), Tuning::MaxSplitSize(_) | Tuning::GarbageCollectionThreshold(_))
    )
}

/// Opens a device and runs the configuration steps for it.
#[cold]
fn open(number: c_int) -> Result<&'static OpenDevice, Failure> {
    let setup = setup();
    // Another thread may have opened it first.
    if let Ok(device) = OpenDevice::get(number) {
        return Ok(device);
    }
    let mut options = setup.options.clone().unwrap_or_default();
    if let AllocatorPolicy::Paged(config) = &mut options.memory.policy {
        *config = PagedConfig::fine();
    }
    OpenDevice::open(number, options.driver(number)?, options.memory)?;
    let device = OpenDevice::get(number)?;
    setup.steps.iter().try_for_each(|(_, step)| step(number, device.memory.allocator()))?;
    Ok(device)
}

/// Locks the setup.
fn setup() -> MutexGuard<'static, Setup> {
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}
