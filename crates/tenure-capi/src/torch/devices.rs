//! The devices under PyTorch: opened when they are first needed, and told what holds for all of them.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_alloc::{CachingAllocator, Tuning, paged};
use tenure_device::memory::{MemoryError, Policy};

use crate::device::Device;
use crate::failure::{Failure, Status, guarded};
use crate::options::Options;

/// What every device is told, those opened later too.
type Wish = Box<dyn Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send>;

/// What a later wish replaces an earlier one of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    History,
    MemoryFraction,
    Setting(c_int),
}

static SETUP: Mutex<Setup> = Mutex::new(Setup { options: None, wishes: Vec::new() });

/// How devices are opened.
struct Setup {
    options: Option<Options>,
    wishes: Vec<(Option<Topic>, Wish)>,
}

pub(super) unsafe extern "C" fn configure(options: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: by the header, a C string.
        let options = unsafe { CStr::from_ptr(options) };
        configure_from(options.to_str().map_err(|_| Failure::Invalid("options must be UTF-8".into()))?)
    })
}

/// [`configure`], for Rust.
pub(super) fn configure_from(options: &str) -> Result<(), Failure> {
    let options = options.parse()?;
    let mut setup = setup();
    if let Some((_, open)) = Device::all().next() {
        return Err(MemoryError::AlreadyInstalled { device: open.memory.device() }.into());
    }
    setup.options = Some(options);
    Ok(())
}

/// Whether it was said how devices are opened.
pub(super) fn is_configured() -> bool {
    setup().options.is_some()
}

pub(super) extern "C" fn is_open(number: c_int) -> bool {
    Device::get(number).is_ok()
}

/// Device number `number`, opened if this is its first use.
#[inline]
pub(super) fn device(number: c_int) -> Result<&'static Device, Failure> {
    Device::get(number).or_else(|_| open(number))
}

/// Tells every device, now or when it is opened; a wish of the same topic is forgotten.
pub(super) fn tell_all(
    topic: Option<Topic>,
    wish: impl Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let mut setup = setup();
    Device::all().try_for_each(|(number, device)| wish(number, device.memory.allocator()))?;
    setup.wishes.retain(|(earlier, _)| topic.is_none() || *earlier != topic);
    setup.wishes.push((topic, Box::new(wish)));
    Ok(())
}

/// The memory fraction that devices are opened with.
pub(super) fn fraction_at_first() -> f64 {
    setup().options.as_ref().map_or(1.0, |options| options.memory.fraction)
}

/// Has devices opened with another one.
pub(super) fn set_fraction_at_first(fraction: f64) {
    setup().options.get_or_insert_default().memory.fraction = fraction;
}

/// Whether a setting means anything for the allocator that devices are opened with.
pub(super) fn applies(tuning: &Tuning) -> bool {
    let policy = setup().options.as_ref().map(|options| options.memory.policy.clone()).unwrap_or_default();
    !matches!((policy, tuning), (Policy::Paged(_), Tuning::MaxSplitSize(_) | Tuning::GarbageCollectionThreshold(_)))
}

#[cold]
fn open(number: c_int) -> Result<&'static Device, Failure> {
    let setup = setup();
    // Another thread may have been faster.
    if let Ok(device) = Device::get(number) {
        return Ok(device);
    }
    let mut options = setup.options.clone().unwrap_or_default();
    if let Policy::Paged(config) = &mut options.memory.policy {
        *config = paged::Config::fine();
    }
    Device::open(number, options.driver(number)?, options.memory)?;
    let device = Device::get(number)?;
    setup.wishes.iter().try_for_each(|(_, wish)| wish(number, device.memory.allocator()))?;
    Ok(device)
}

fn setup() -> MutexGuard<'static, Setup> {
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}
