//! The devices under PyTorch: opened at their first use, and configured alike.

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
type Wish = Box<dyn Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send>;

/// The subject of a wish: a later wish replaces an earlier one about the same subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    History,
    MemoryFraction,
    Setting(c_int),
}

static SETUP: Mutex<Setup> = Mutex::new(Setup { options: None, wishes: Vec::new() });

/// The options for opening devices, and the wishes so far.
struct Setup {
    options: Option<DeviceOptions>,
    wishes: Vec<(Option<Topic>, Wish)>,
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

/// Applies a wish to every device, now or when it is opened, and forgets an earlier wish of the same topic.
pub(super) fn tell_all(
    topic: Option<Topic>,
    wish: impl Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let mut setup = setup();
    OpenDevice::all().try_for_each(|(number, device)| wish(number, device.memory.allocator()))?;
    setup.wishes.retain(|(earlier, _)| topic.is_none() || *earlier != topic);
    setup.wishes.push((topic, Box::new(wish)));
    Ok(())
}

/// Returns the memory fraction with which devices are opened.
pub(super) fn fraction_at_first() -> f64 {
    setup().options.as_ref().map_or(1.0, |options| options.memory.fraction)
}

/// Sets the memory fraction with which devices are opened.
pub(super) fn set_fraction_at_first(fraction: f64) {
    setup().options.get_or_insert_default().memory.fraction = fraction;
}

/// Returns whether a setting has an effect on the allocator with which devices are opened.
pub(super) fn applies(tuning: &Tuning) -> bool {
    let policy = setup().options.as_ref().map(|options| options.memory.policy.clone()).unwrap_or_default();
    !matches!(
        (policy, tuning),
        (AllocatorPolicy::Paged(_), Tuning::MaxSplitSize(_) | Tuning::GarbageCollectionThreshold(_))
    )
}

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
    setup.wishes.iter().try_for_each(|(_, wish)| wish(number, device.memory.allocator()))?;
    Ok(device)
}

fn setup() -> MutexGuard<'static, Setup> {
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}
