//! The devices under PyTorch: opened when they are first needed, and told what holds for all of them.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_alloc::CachingAllocator;
use tenure_device::memory::MemoryError;

use crate::device::Device;
use crate::failure::{Failure, Status, guarded};
use crate::options::Options;

/// What every device is told, those opened later too.
type Wish = Box<dyn Fn(c_int, &dyn CachingAllocator) -> Result<(), Failure> + Send>;

static SETUP: Mutex<Setup> = Mutex::new(Setup { options: None, wishes: Vec::new() });

/// How devices are opened.
struct Setup {
    options: Option<Options>,
    wishes: Vec<Wish>,
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

pub(super) extern "C" fn is_open(number: c_int) -> bool {
    Device::get(number).is_ok()
}

/// Device number `number`, opened if this is its first use.
#[inline]
pub(super) fn device(number: c_int) -> Result<&'static Device, Failure> {
    Device::get(number).or_else(|_| open(number))
}

/// Tells every device, now or when it is opened.
pub(super) fn tell_all(wish: Wish) -> Result<(), Failure> {
    let mut setup = setup();
    Device::all().try_for_each(|(number, device)| wish(number, device.memory.allocator()))?;
    setup.wishes.push(wish);
    Ok(())
}

#[cold]
fn open(number: c_int) -> Result<&'static Device, Failure> {
    let setup = setup();
    // Another thread may have been faster.
    if let Ok(device) = Device::get(number) {
        return Ok(device);
    }
    let options = setup.options.clone().unwrap_or_default();
    Device::open(number, options.driver(number)?, options.memory)?;
    let device = Device::get(number)?;
    setup.wishes.iter().try_for_each(|wish| wish(number, device.memory.allocator()))?;
    Ok(device)
}

fn setup() -> MutexGuard<'static, Setup> {
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}
