//! Calls that name a device by its index: c10's `CUDAFunctions` (`c10/cuda/CUDAFunctions.cpp`).
//!
//! A thread has a current device, 0 at first. It is only a number: calls that use it check that the device exists.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use tenure_alloc::MemoryInfo;

use crate::platform::MAX_DEVICES;
use crate::{Call, CallError, Driver, DriverError, ErrorKind, Platform, Properties};

/// Returns the number of devices: 0 where there is no driver or no device, so that a program for any machine can ask
/// this first.
///
/// # Errors
/// The driver is too old, or did not start, or failed in an unknown way ([`ErrorKind::CountFailed`]), or there are more
/// than [`MAX_DEVICES`] devices ([`ErrorKind::TooManyDevices`]).
#[track_caller]
pub fn device_count(platform: &dyn Platform) -> Result<u8, DriverError> {
    match platform.device_count() {
        Err(CallError { kind: ErrorKind::NoDriver { .. } | ErrorKind::NoDevice, .. }) => Ok(0),
        count => checked_count(count),
    }
}

/// Returns the number of devices, at least one, for callers that need a device.
///
/// # Errors
/// The errors of [`device_count`]. It is also an error if there is no driver or no device; the message says which.
#[track_caller]
pub fn device_count_ensure_non_zero(platform: &dyn Platform) -> Result<u8, DriverError> {
    match checked_count(platform.device_count())? {
        0 => Err(DriverError::new(Call::DeviceCount, ErrorKind::NoDevice)),
        count => Ok(count),
    }
}

/// Returns the calling thread's current device.
pub fn current_device() -> u8 {
    CURRENT.get()
}

/// Makes `device` the calling thread's current device.
pub fn set_device(device: u8) {
    CURRENT.set(device);
}

/// Makes `device` the calling thread's current device, and returns the one before.
pub fn exchange_device(device: u8) -> u8 {
    CURRENT.replace(device)
}

/// Makes a device the calling thread's current one for as long as the guard lives, through a panic too. c10's
/// `CUDAGuard`.
///
/// ```
/// use tenure_device::functions::{DeviceGuard, current_device};
///
/// let guard = DeviceGuard::new(1);
/// assert_eq!(current_device(), 1);
/// drop(guard);
/// assert_eq!(current_device(), 0);
/// ```
#[derive(Debug)]
#[must_use = "the device before is current again as soon as the guard is dropped"]
pub struct DeviceGuard {
    before: u8,
    /// A guard must end on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl DeviceGuard {
    /// Makes `device` the current one.
    pub fn new(device: u8) -> Self {
        Self { before: exchange_device(device), not_send: PhantomData }
    }
}

impl Drop for DeviceGuard {
    fn drop(&mut self) {
        set_device(self.before);
    }
}

/// Returns the properties of a device.
///
/// # Errors
/// The errors of [`device_count_ensure_non_zero`]; there is no such device ([`ErrorKind::NoSuchDevice`]), or a driver
/// call failed.
#[track_caller]
pub fn properties(platform: &dyn Platform, device: u8) -> Result<Properties, DriverError> {
    check_device(platform, Call::Properties, device)?;
    Ok(platform.properties(device)?)
}

/// Returns the driver of a device, started on the first call.
///
/// # Errors
/// The errors of [`properties`].
#[track_caller]
pub fn driver(platform: &dyn Platform, device: u8) -> Result<Arc<dyn Driver>, DriverError> {
    check_device(platform, Call::RetainContext, device)?;
    Ok(platform.driver(device)?)
}

/// Returns the free and total physical memory of a device, in bytes. Starts its driver.
///
/// # Errors
/// The errors of [`properties`].
#[track_caller]
pub fn memory_info(platform: &dyn Platform, device: u8) -> Result<MemoryInfo, DriverError> {
    Ok(driver(platform, device)?.memory_info()?)
}

/// Blocks the host until everything put on a device has completed. Starts its driver.
///
/// # Errors
/// The errors of [`properties`]; or earlier work on the device failed.
#[track_caller]
pub fn synchronize(platform: &dyn Platform, device: u8) -> Result<(), DriverError> {
    Ok(driver(platform, device)?.synchronize()?)
}

/// Returns whether `device` can reach the memory of `peer` in place.
///
/// # Errors
/// The errors of [`properties`] for either device; or the two are one device ([`ErrorKind::PeerOfItself`]).
#[track_caller]
pub fn can_access_peer(platform: &dyn Platform, device: u8, peer: u8) -> Result<bool, DriverError> {
    check_device(platform, Call::CanAccessPeer, device)?;
    check_device(platform, Call::CanAccessPeer, peer)?;
    if device == peer {
        return Err(DriverError::new(Call::CanAccessPeer, ErrorKind::PeerOfItself(device)));
    }
    Ok(platform.can_access_peer(device, peer)?)
}

thread_local! {
    /// The number of the thread's current device.
    static CURRENT: Cell<u8> = const { Cell::new(0) };
}

/// Returns the count if it is not too large, or else an error that says what to do.
#[track_caller]
fn checked_count(count: Result<u32, CallError>) -> Result<u8, DriverError> {
    let count = count.map_err(|CallError { call, kind }| CallError { call, kind: explained(kind) })?;
    match u8::try_from(count) {
        Ok(count) if usize::from(count) <= MAX_DEVICES => Ok(count),
        _ => Err(DriverError::new(Call::DeviceCount, ErrorKind::TooManyDevices(count))),
    }
}

/// Returns an error whose message says what to do: errors of a driver's start do so already, and any other one is
/// wrapped in one that does.
fn explained(kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::NoDriver { .. }
        | ErrorKind::NoDevice
        | ErrorKind::DriverTooOld { .. }
        | ErrorKind::StartFailed { .. } => kind,
        unknown => ErrorKind::CountFailed(Box::new(unknown)),
    }
}

/// Checks that a device exists.
#[track_caller]
fn check_device(platform: &dyn Platform, call: Call, device: u8) -> Result<(), DriverError> {
    let count = device_count_ensure_non_zero(platform)?;
    if device < count { Ok(()) } else { Err(DriverError::new(call, ErrorKind::NoSuchDevice { device, count })) }
}
