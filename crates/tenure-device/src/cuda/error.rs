//! The driver's error numbers, converted to errors.

use std::io;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

use crate::ErrorKind;

/// Converts the driver's return code to a result.
pub(super) fn check(code: CUresult) -> Result<(), ErrorKind> {
    code.result().map_err(|error| failure(code, describe(error)))
}

/// Converts the return code of a query to whether the work has completed.
pub(super) fn completed(code: CUresult) -> Result<bool, ErrorKind> {
    match code {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check(code).map(|()| true),
    }
}

/// Converts the return code of starting the driver to a result.
pub(super) fn started(code: CUresult) -> Result<(), ErrorKind> {
    code.result().map_err(|error| start_failure(code, &describe(error)))
}

/// Returns an error of the operating system in a driver call as the driver would report it.
pub(super) fn system_failure(error: &io::Error) -> ErrorKind {
    failure(CUresult::CUDA_ERROR_OPERATING_SYSTEM, error.to_string())
}

/// Returns the driver's description of an error. This works before the driver is started.
fn describe(error: DriverError) -> String {
    error.error_string().map_or_else(|_| "unknown error".to_owned(), |words| words.to_string_lossy().into_owned())
}

/// Returns the error of a return code.
fn failure(code: CUresult, description: String) -> ErrorKind {
    ErrorKind::Device { code: code as u32, name: format!("{code:?}"), description, in_flight: Vec::new() }
}

/// Returns the error of a return code of starting the driver.
fn start_failure(code: CUresult, description: &str) -> ErrorKind {
    match code {
        CUresult::CUDA_ERROR_NO_DEVICE => ErrorKind::NoDevice,
        // This code does not name the cause of the failed start; counting the devices then tells what to check.
        CUresult::CUDA_ERROR_UNKNOWN => failure(code, description.to_owned()),
        code => ErrorKind::StartFailed { reason: format!("{code:?}: {description}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::device_count;
    use crate::sim::SimPlatform;

    #[test]
    fn an_error_has_the_number_and_name_that_the_driver_gives_it() {
        let kind = failure(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered".into());
        assert_eq!(kind.code(), 700);
        assert!(kind.loses_context());
        assert_eq!(kind.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered");
    }

    #[test]
    fn an_error_that_every_later_call_gives_too_loses_the_context() {
        for code in [
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_CONTAINED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        ] {
            assert!(failure(code, String::new()).loses_context(), "{code:?}");
        }
    }

    #[test]
    fn an_error_of_the_call_alone_keeps_the_context() {
        for code in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            CUresult::CUDA_ERROR_NOT_READY,
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        ] {
            assert!(!failure(code, String::new()).loses_context(), "{code:?}");
        }
    }

    #[test]
    fn unready_work_is_not_completed() {
        assert_eq!(completed(CUresult::CUDA_SUCCESS), Ok(true));
        assert_eq!(completed(CUresult::CUDA_ERROR_NOT_READY), Ok(false));
    }

    #[test]
    fn a_driver_that_finds_no_device_has_started() {
        assert_eq!(start_failure(CUresult::CUDA_ERROR_NO_DEVICE, ""), ErrorKind::NoDevice);
        let reason = "CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized".to_owned();
        let words = "system not yet initialized";
        assert_eq!(start_failure(CUresult::CUDA_ERROR_SYSTEM_NOT_READY, words), ErrorKind::StartFailed { reason });
    }

    #[test]
    fn an_unknown_error_of_the_start_reaches_the_count_of_devices_as_one() {
        let kind = start_failure(CUresult::CUDA_ERROR_UNKNOWN, "unknown error");
        let platform = SimPlatform::new(Vec::new()).with_count(Err(kind.clone()));
        let error = device_count(&platform).unwrap_err();
        assert_eq!(error.error.kind, ErrorKind::CountFailed(Box::new(kind)));
        assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES was not changed"), "{error}");
    }
}
