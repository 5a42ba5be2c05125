//! Checks after kernel launches and other calls, which report the caller's place in the source.

use std::panic::Location;

use crate::{CallError, Driver, DriverError, Launch};

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
