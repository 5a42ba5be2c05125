//! The memory of every device of this process, found without a lock.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tenure_core::{Allocator, Device};

use super::{DeviceMemory, MemoryConfig, MemoryError, Preemption};
use crate::platform::MAX_DEVICES;
use crate::{Driver, Platform, cuda};

/// The memory of each device, by its number.
static DEVICES: [OnceLock<DeviceMemory>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// A lock held while a device's memory is created, so that it is created once. It contains the preemption of all
/// devices, if there is one.
static CREATING: Mutex<Option<Arc<Preemption>>> = Mutex::new(None);

/// Creates the memory of `driver`'s device with the settings `config`, for the rest of the process.
///
/// # Errors
/// [`MemoryError::AlreadyInstalled`]; those of [`DeviceMemory::new`].
pub fn install(driver: Arc<dyn Driver>, config: MemoryConfig) -> Result<&'static DeviceMemory, MemoryError> {
    let device = driver.device();
    let preemption = CREATING.lock();
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

/// Installs `preemption` for all devices of this process, also those whose memory is created later. While it is
/// stopped, threads wait where they allocate memory of a device or launch a graph. Later calls have no effect.
pub fn preempt(preemption: Arc<Preemption>) {
    let mut installed = CREATING.lock();
    let preemption = installed.get_or_insert(preemption);
    for memory in DEVICES.iter().filter_map(OnceLock::get) {
        memory.preempt(Arc::clone(preemption));
    }
}

/// Returns the memory of CUDA device number `index`, and makes it with the default settings if that was not done
/// before.
///
/// # Errors
/// There is no such device; those of [`install`].
pub fn device(index: u8) -> Result<&'static DeviceMemory, MemoryError> {
    if let Some(memory) = installed(index.into()) {
        return Ok(memory);
    }
    match install(cuda::platform().driver(index)?, MemoryConfig::default()) {
        // Another thread made it meanwhile.
        Err(MemoryError::AlreadyInstalled { device }) => {
            installed(index.into()).ok_or(MemoryError::AlreadyInstalled { device })
        }
        made => made,
    }
}

/// Returns [`device`]'s memory as the allocator that storages use.
///
/// # Errors
/// The errors of [`device`].
pub fn allocator(index: u8) -> Result<Arc<dyn Allocator>, MemoryError> {
    static ALLOCATORS: [OnceLock<Arc<dyn Allocator>>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    let memory = device(index)?;
    Ok(Arc::clone(ALLOCATORS[usize::from(index)].get_or_init(|| Arc::new(memory))))
}

/// Returns the memory of CUDA device number `index`, if it was made.
#[inline]
pub fn installed(index: usize) -> Option<&'static DeviceMemory> {
    DEVICES.get(index)?.get()
}

fn slot(device: Device) -> Result<&'static OnceLock<DeviceMemory>, MemoryError> {
    DEVICES.get(usize::from(device.index())).ok_or(MemoryError::DeviceOutOfRange { device })
}
