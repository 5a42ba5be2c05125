//! Kernel launches: a record of a device's last ones, so that errors that turn up later can name them, and checks after
//! a launch.

use std::panic::Location;
use std::ptr;

use tenure_core::StreamId;

use crate::ring::Ring;
use crate::{CallError, Driver, DriverError, Launch};

/// The number of launches that a [`LaunchRegistry`] keeps.
pub const RECENT_LAUNCHES: usize = 1024;

/// The last [`RECENT_LAUNCHES`] kernel launches of a device, so that an error that turns up later can name the launches
/// it may come from. c10's `CUDAKernelLaunchRegistry` (`c10/cuda/CUDADeviceAssertionHost.h`), without its lock:
/// recording a launch is two atomic operations and a row of stores into one cache line, cheap enough to leave on.
pub struct LaunchRegistry(Ring<RECENT_LAUNCHES, WORDS>);

impl LaunchRegistry {
    /// Creates a registry without launches.
    pub fn new() -> Self {
        Self(Ring::new())
    }

    /// Records a launch of kernel `name` with `grid` blocks of `block` threads, made at `at`. Returns its number, which
    /// is larger than that of every launch recorded before.
    #[inline]
    pub fn record(
        &self,
        name: &'static str,
        stream: StreamId,
        grid: [u32; 3],
        block: [u32; 3],
        at: &'static Location<'static>,
    ) -> u64 {
        self.0.push(encode(name, stream, grid, block, at))
    }

    /// Removes a launch that was recorded, and then refused.
    pub fn withdraw(&self, number: u64) {
        self.0.withdraw(number);
    }

    /// Returns up to `count` launches, the newest first. A launch that another thread is recording at the moment may be
    /// missing.
    pub fn recent(&self, count: usize) -> Vec<Launch> {
        // SAFETY: every record of the ring was made by `encode`.
        self.0.recent().take(count).map(|(number, words)| unsafe { decode(number, words) }).collect()
    }
}

impl Default for LaunchRegistry {
    fn default() -> Self {
        Self::new()
    }
}

/// The words of a record: address and length of the name, the stream, three words for the six sizes, the address of the
/// call site.
const WORDS: usize = 7;

/// Packs a launch into the words of a record.
#[inline]
fn encode(
    name: &'static str,
    stream: StreamId,
    grid: [u32; 3],
    block: [u32; 3],
    at: &'static Location<'static>,
) -> [u64; WORDS] {
    [
        name.as_ptr().expose_provenance() as u64,
        name.len() as u64,
        stream.0,
        pair(grid[0], grid[1]),
        pair(grid[2], block[0]),
        pair(block[1], block[2]),
        ptr::from_ref(at).expose_provenance() as u64,
    ]
}

/// Packs two numbers into one word.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Unpacks the launch with this number.
///
/// # Safety
/// `words` came from [`encode`].
unsafe fn decode(number: u64, words: [u64; WORDS]) -> Launch {
    let [name, name_len, stream, a, b, c, at] = words;
    // SAFETY: address and length are those of a `&'static str`.
    let name = unsafe {
        let bytes = std::slice::from_raw_parts(ptr::with_exposed_provenance(name as usize), name_len as usize);
        str::from_utf8_unchecked(bytes)
    };
    // SAFETY: the address is that of a `&'static Location`.
    let at = unsafe { &*ptr::with_exposed_provenance::<Location<'static>>(at as usize) };
    let (low, high) = (|pair: u64| pair as u32, |pair: u64| (pair >> 32) as u32);
    let grid = [low(a), high(a), low(b)];
    let block = [high(b), low(c), high(c)];
    Launch { name, stream: StreamId(stream), number, grid: Some(grid), block: Some(block), at: Some(at) }
}

/// A launch, and the error found after it. The error may come from the launch or from earlier work on the device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("after {launch}: {error}")]
pub struct LaunchError {
    /// The launch after which the check was made.
    pub launch: Box<Launch>,
    /// The error.
    pub error: DriverError,
}

/// Checks for an error after `launch`. c10's `C10_CUDA_KERNEL_LAUNCH_CHECK`.
///
/// Takes the value that `launch` of the [CUDA](crate::cuda::CudaDriver::launch) or the
/// [simulated](crate::sim::SimDriver::launch) driver returned. Never waits, so an error of the launch itself may turn
/// up only in a later call; `CUDA_LAUNCH_BLOCKING=1` in the environment makes the CUDA driver wait for each launch. May
/// be used while the stream is captured.
///
/// # Errors
/// The error that the driver [knows](crate::StreamCalls::check_stream) of the launch's stream.
#[track_caller]
pub fn check_launch(driver: &dyn Driver, launch: &Launch) -> Result<(), LaunchError> {
    let at = Location::caller();
    let failed = |error| LaunchError { launch: Box::new(*launch), error: DriverError { error, at } };
    driver.check_stream(launch.stream).map_err(failed)
}

/// Logs a failed call as a warning that names the call and the caller's file and line, and carries on. Returns the
/// call's value, if it succeeded. c10's `C10_CUDA_CHECK_WARN`, for clean-up and for calls that may fail without harm.
#[track_caller]
pub fn check_warn<T>(result: Result<T, CallError>) -> Option<T> {
    let at = Location::caller();
    result.inspect_err(|error| tracing::warn!(file = at.file(), line = at.line(), "{error} (called at {at})")).ok()
}
