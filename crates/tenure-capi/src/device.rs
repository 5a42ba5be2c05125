//! The open devices, and the streams that their drivers have adopted.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tenure_core::StreamId;
use tenure_device::Driver;
use tenure_device::cuda::CudaDriver;
use tenure_device::memory::{self, DeviceMemory, MAX_DEVICES, MemoryConfig, MemoryError};
use tenure_device::sim::SimDriver;

use crate::failure::Failure;

/// The number of adopted streams to remember for each device. A power of two.
const STREAMS: usize = 256;

/// The open devices, by number.
static DEVICES: [OnceLock<OpenDevice>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// One more than the highest number of an open device.
static END: AtomicI32 = AtomicI32::new(0);

/// A lock that is held while a device is opened.
static OPENING: Mutex<()> = Mutex::new(());

/// An open device.
pub(crate) struct OpenDevice {
    pub(crate) memory: &'static DeviceMemory,
    driver: DeviceDriver,
    /// Streams that the driver has adopted, each in a slot computed from its handle. A stream whose slot another one
    /// has taken is adopted again, which changes nothing.
    adopted: [AtomicU64; STREAMS],
}

/// A device's driver, which can adopt streams: accept handles of streams that other code created.
pub(crate) enum DeviceDriver {
    Cuda(Arc<CudaDriver>),
    Sim(Arc<SimDriver>),
}

impl OpenDevice {
    /// Opens device number `number`.
    pub(crate) fn open(number: c_int, driver: DeviceDriver, config: MemoryConfig) -> Result<(), Failure> {
        let shared: Arc<dyn Driver> = match &driver {
            DeviceDriver::Cuda(driver) => Arc::clone(driver) as _,
            DeviceDriver::Sim(driver) => Arc::clone(driver) as _,
        };
        let slot = DEVICES.get(number as usize).ok_or(Failure::NotOpen { device: number })?;
        // Held so that a caller that gets `AlreadyInstalled` finds the device open.
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = memory::install(shared, config)?;
        let device = Self { memory, driver, adopted: [const { AtomicU64::new(0) }; STREAMS] };
        slot.set(device).map_err(|_| MemoryError::AlreadyInstalled { device: memory.device() })?;
        END.fetch_max(number + 1, Ordering::Release);
        Ok(())
    }

    /// Iterates over the open devices and their numbers.
    #[inline]
    pub(crate) fn all() -> impl Iterator<Item = (c_int, &'static Self)> {
        (0..END.load(Ordering::Acquire)).filter_map(|number| Some((number, DEVICES[number as usize].get()?)))
    }

    /// Returns device number `number`.
    #[inline]
    pub(crate) fn get(number: c_int) -> Result<&'static Self, Failure> {
        DEVICES.get(number as usize).and_then(OnceLock::get).ok_or(Failure::NotOpen { device: number })
    }

    /// Makes the driver adopt `stream`, unless it has already.
    ///
    /// # Safety
    /// `stream` is the null stream or an existing stream of this device.
    #[inline]
    pub(crate) unsafe fn adopt(&self, stream: StreamId) {
        // Handles are addresses or small numbers. The high bits of the product depend on all of their bits.
        let slot = stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - STREAMS.trailing_zeros());
        let slot = &self.adopted[slot as usize];
        // The driver knows the null stream, whose id is also the value of an empty slot.
        if slot.load(Ordering::Relaxed) != stream.0 && stream != StreamId::NULL {
            // SAFETY: by the function's contract.
            unsafe { self.driver.adopt(stream) };
            slot.store(stream.0, Ordering::Relaxed);
        }
    }
}

impl DeviceDriver {
    /// Adopts a stream.
    ///
    /// # Safety
    /// As [`OpenDevice::adopt`].
    #[cold]
    unsafe fn adopt(&self, stream: StreamId) {
        match self {
            // SAFETY: by the function's contract.
            Self::Cuda(driver) => unsafe { driver.adopt_stream(stream) },
            Self::Sim(driver) => driver.adopt_stream(stream),
        }
    }
}
