//! The memory of every device of this process, found without a lock.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tenure_core::{Allocator, Device};

use super::{DeviceMemory, MemoryConfig, MemoryError, Preemption};
use crate::{Driver, Platform, cuda};

/// More devices than this no process has: PyTorch counts them in a signed byte. Where there are more,
/// [`device_count`](crate::functions::device_count) fails.
pub const MAX_DEVICES: usize = 128;

static DEVICES: [OnceLock<DeviceMemory>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// Held while a device's memory is made, so that it is made once. It has what every device is preempted by, if anything.
static MAKING: Mutex<Option<Arc<Preemption>>> = Mutex::new(None);

/// Makes the memory of `driver`'s device as `config` says, for the rest of the process.
///
/// # Errors
/// [`MemoryError::AlreadyInstalled`]; those of [`DeviceMemory::new`].
pub fn install(driver: Arc<dyn Driver>, config: MemoryConfig) -> Result<&'static DeviceMemory, MemoryError> {
    let device = driver.device();
    let preemption = MAKING.lock();
    match slot(device)? {
        slot if slot.get().is_some() => Err(MemoryError::AlreadyInstalled { device }),
        slot => {
            let memory = DeviceMemory::new(driver, config)?;
            if let Some(preemption) = &*preemption {
                memory.preempt(Arc::clone(preemption));
            }
            Ok(slot.get_or_init(|| memory))
        }
    }
}

/// Has the threads of this process stop when `preemption` says so: where they allocate memory of a device or launch a
/// graph. That holds for devices whose memory is made later too. The first call counts.
pub fn preempt(preemption: Arc<Preemption>) {
    let mut all = MAKING.lock();
    let preemption = all.get_or_insert(preemption);
    let made = DEVICES.iter().filter_map(OnceLock::get);
    made.for_each(|memory| memory.preempt(Arc::clone(preemption)));
}

/// The memory of CUDA device number `index`, made with the default settings if it was not made before.
///
/// # Errors
/// There is no such device; those of [`install`].
pub fn device(index: u8) -> Result<&'static DeviceMemory, MemoryError> {
    if let Some(memory) = installed(index.into()) {
        return Ok(memory);
    }
    match install(cuda::platform().driver(index)?, MemoryConfig::default()) {
        // By another thread, meanwhile.
        Err(MemoryError::AlreadyInstalled { device }) => {
            installed(index.into()).ok_or(MemoryError::AlreadyInstalled { device })
        }
        made => made,
    }
}

/// The same as [`device`], as what storages are allocated from.
///
/// # Errors
/// Those of [`device`].
pub fn allocator(index: u8) -> Result<Arc<dyn Allocator>, MemoryError> {
    static ALLOCATORS: [OnceLock<Arc<dyn Allocator>>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    let memory = device(index)?;
    Ok(Arc::clone(ALLOCATORS[usize::from(index)].get_or_init(|| Arc::new(memory))))
}

/// The memory of CUDA device number `index`, if it was made.
#[inline]
pub fn installed(index: usize) -> Option<&'static DeviceMemory> {
    DEVICES.get(index)?.get()
}

fn slot(device: Device) -> Result<&'static OnceLock<DeviceMemory>, MemoryError> {
    DEVICES.get(usize::from(device.index())).ok_or(MemoryError::DeviceOutOfRange { device })
}
