//! The NVIDIA devices of this machine, and starting the CUDA driver.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUuuid};
use parking_lot::Mutex;

use super::error::{check, started};
use super::{CudaDriver, nvml};
use crate::{Call, CallError, Driver, ErrorKind, LinkKind, Platform, Properties};

/// The oldest CUDA version that has every driver function used here: `cuEventElapsedTime_v2` came with 12.8.
const NEEDED_VERSION: u32 = 12_080;

/// The NVIDIA devices that `CUDA_VISIBLE_DEVICES` shows to this process.
///
/// There is one such value in a process: [`platform`].
pub struct CudaPlatform {
    started: OnceLock<Result<(), CallError>>,
    drivers: Mutex<BTreeMap<u8, Arc<CudaDriver>>>,
}

/// Returns the NVIDIA devices. No library is loaded before the first call on them.
pub fn platform() -> &'static CudaPlatform {
    static PLATFORM: CudaPlatform = CudaPlatform { started: OnceLock::new(), drivers: Mutex::new(BTreeMap::new()) };
    &PLATFORM
}

impl CudaPlatform {
    /// Returns the driver of a device, which [`Platform::driver`] returns too, with the features that only CUDA devices
    /// have: kernels, streams of other code, timings.
    ///
    /// # Errors
    /// There is no driver or no such device, or its context cannot be started.
    pub fn cuda_driver(&self, device: u8) -> Result<Arc<CudaDriver>, CallError> {
        self.start()?;
        let mut drivers = self.drivers.lock();
        if let Some(driver) = drivers.get(&device) {
            return Ok(Arc::clone(driver));
        }
        let ordinal = ordinal(device)?;
        let properties = self.properties(device)?;
        let driver =
            CudaDriver::start(device, ordinal, properties).map_err(|kind| failed(Call::RetainContext, kind))?;
        let driver = Arc::new(driver);
        drivers.insert(device, Arc::clone(&driver));
        Ok(driver)
    }

    /// Starts the driver library, once. Creates no context.
    fn start(&self) -> Result<(), CallError> {
        self.started.get_or_init(start).clone()
    }
}

impl Platform for CudaPlatform {
    fn device_count(&self) -> Result<u32, CallError> {
        self.start()?;
        let mut count = 0;
        // SAFETY: `count` is writable, and the driver is started.
        check(unsafe { sys::cuDeviceGetCount(&mut count) }).map_err(|kind| failed(Call::DeviceCount, kind))?;
        match u32::try_from(count) {
            Ok(0) | Err(_) => Err(failed(Call::DeviceCount, ErrorKind::NoDevice)),
            Ok(count) => Ok(count),
        }
    }

    fn driver_version(&self) -> Result<u32, CallError> {
        find_library().and_then(|()| version()).map_err(|kind| failed(Call::DriverVersion, kind))
    }

    fn properties(&self, device: u8) -> Result<Properties, CallError> {
        self.start()?;
        properties(ordinal(device)?).map_err(|kind| failed(Call::Properties, kind))
    }

    fn can_access_peer(&self, device: u8, peer: u8) -> Result<bool, CallError> {
        self.start()?;
        let device = ordinal(device)?;
        let peer = ordinal(peer)?;
        if device == peer {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: `can` is writable, and both devices exist.
        check(unsafe { sys::cuDeviceCanAccessPeer(&mut can, device, peer) })
            .map_err(|kind| failed(Call::CanAccessPeer, kind))?;
        Ok(can != 0)
    }

    fn link(&self, device: u8, peer: u8) -> Option<LinkKind> {
        nvml::link(&self.properties(device).ok()?, &self.properties(peer).ok()?)
    }

    fn driver(&self, device: u8) -> Result<Arc<dyn Driver>, CallError> {
        Ok(self.cuda_driver(device)?)
    }
}

fn failed(call: Call, kind: ErrorKind) -> CallError {
    CallError { call, kind }
}

fn start() -> Result<(), CallError> {
    load_and_start().map_err(|kind| failed(Call::Start, kind))
}

fn load_and_start() -> Result<(), ErrorKind> {
    find_library()?;
    check_version(version()?)?;
    // SAFETY: the library is loaded.
    started(unsafe { sys::cuInit(0) })
}

/// Returns whether the driver library can be loaded.
pub(crate) fn is_driver_present() -> bool {
    find_library().is_ok()
}

/// Checks that the driver library can be loaded. Without it, every call to it would panic.
fn find_library() -> Result<(), ErrorKind> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading a library runs its initialisers; this one is the driver's own.
    if *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Ok(());
    }
    Err(ErrorKind::NoDriver { reason: "libcuda.so.1 is not where the system's loader looks".to_owned() })
}

/// Returns the newest CUDA version that the driver supports. Needs the library, but not a started driver.
fn version() -> Result<u32, ErrorKind> {
    let mut version = 0;
    // SAFETY: `version` is writable.
    started(unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version.unsigned_abs())
}

/// Checks that the driver supports the CUDA version that is needed.
fn check_version(serves: u32) -> Result<(), ErrorKind> {
    if serves < NEEDED_VERSION {
        return Err(ErrorKind::DriverTooOld { serves, needed: NEEDED_VERSION });
    }
    Ok(())
}

/// Returns the driver's handle of device number `device`.
fn ordinal(device: u8) -> Result<CUdevice, CallError> {
    let mut ordinal = 0;
    // SAFETY: `ordinal` is writable, and the driver is started.
    check(unsafe { sys::cuDeviceGet(&mut ordinal, c_int::from(device)) })
        .map_err(|kind| failed(Call::Properties, kind))?;
    Ok(ordinal)
}

/// Returns the properties of a device.
fn properties(device: CUdevice) -> Result<Properties, ErrorKind> {
    let number = |attribute| attribute_of(device, attribute).map(i32::unsigned_abs);
    let name = text::<256>(|text, len| {
        // SAFETY: `text` has room for `len` bytes, and the device exists.
        check(unsafe { sys::cuDeviceGetName(text, len, device) })
    })?;
    let pci_address = text::<32>(|text, len| {
        // SAFETY: as above.
        check(unsafe { sys::cuDeviceGetPCIBusId(text, len, device) })
    })?
    .to_ascii_lowercase();
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is writable, and the device exists.
    check(unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) })?;
    let mut total_bytes = 0;
    // SAFETY: `total_bytes` is writable, and the device exists.
    check(unsafe { sys::cuDeviceTotalMem_v2(&mut total_bytes, device) })?;
    Ok(Properties {
        uuid: uuid.bytes.map(|byte| byte as u8),
        compute_capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        total_bytes: total_bytes as u64,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        copy_engines: number(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        has_virtual_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0,
        shares_descriptors: number(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? != 0,
        numa_node: numa_node(device, &pci_address),
        name,
        pci_address,
    })
}

fn attribute_of(device: CUdevice, attribute: Attribute) -> Result<i32, ErrorKind> {
    let mut value = 0;
    // SAFETY: `value` is writable, and the device exists.
    check(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value)
}

/// Returns the host's memory node nearest to a device, from the driver or else from the system; both say -1 on a host
/// with one node.
fn numa_node(device: CUdevice, pci_address: &str) -> Option<u32> {
    let from_driver = attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID).ok();
    from_driver.and_then(|node| u32::try_from(node).ok()).or_else(|| {
        let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci_address}/numa_node")).ok()?;
        node.trim().parse().ok()
    })
}

/// Returns a text that the driver writes into a buffer of `LEN` bytes, ended by a zero.
fn text<const LEN: usize>(
    write: impl FnOnce(*mut c_char, c_int) -> Result<(), ErrorKind>,
) -> Result<String, ErrorKind> {
    let mut buffer = [0u8; LEN];
    // The driver may not use the last byte, so that there is always a zero.
    write(buffer.as_mut_ptr().cast(), LEN as c_int - 1)?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_must_serve_the_version_needed() {
        assert_eq!(check_version(13_000), Ok(()));
        assert_eq!(check_version(NEEDED_VERSION), Ok(()));
        let error = check_version(12_040).unwrap_err();
        assert!(error.to_string().contains("it serves CUDA 12.4, and 12.8 is needed"), "{error}");
    }

    #[test]
    fn a_text_ends_at_its_zero_or_with_the_buffer() {
        let write = |source: &'static [u8]| {
            text::<8>(move |target, len| {
                assert_eq!(len, 7);
                let bytes = source.len().min(7);
                // SAFETY: the buffer has eight bytes.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr().cast(), target, bytes) };
                Ok(())
            })
        };
        assert_eq!(write(b"H200\0x").unwrap(), "H200");
        assert_eq!(write(b"much too long").unwrap(), "much to");
        assert_eq!(text::<8>(|_, _| Err(ErrorKind::NoDevice)), Err(ErrorKind::NoDevice));
    }

    /// Runs everywhere: it is skipped if there is a driver; without one, every call must return the reason, and none
    /// may panic.
    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        if find_library().is_ok() {
            eprintln!("skipped: there is a CUDA driver");
            return;
        }
        let platform = platform();
        let errors = [
            platform.device_count().unwrap_err(),
            platform.driver_version().unwrap_err(),
            platform.properties(0).unwrap_err(),
            platform.can_access_peer(0, 1).unwrap_err(),
            platform.driver(0).err().unwrap(),
        ];
        for error in errors {
            assert!(matches!(error.kind, ErrorKind::NoDriver { .. }), "{error}");
            assert!(error.to_string().contains("no CUDA driver was found (libcuda.so.1 is not"), "{error}");
        }
        assert_eq!(platform.link(0, 1), None);
    }
}
