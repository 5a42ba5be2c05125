//! Failures as C sees them: a status, and a message for each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_alloc::AllocError;
use tenure_core::AllocatorError;
use tenure_device::memory::{MemoryError, OutOfMemoryReport};
use tenure_device::pinned::PinnedError;
use tenure_device::share::ShareError;
use tenure_device::{CallError, DriverError, ErrorKind};
use tenure_tensor::TensorError;

/// `tenure_status` of `tenure.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// There is not enough memory.
    OutOfMemory = 1,
    /// The device was not opened.
    NotOpen = 2,
    /// The device was opened before.
    AlreadyOpen = 3,
    /// The address is not that of a live block.
    UnknownAddress = 4,
    /// An argument is invalid.
    Invalid = 5,
    /// A driver call failed.
    DriverFailed = 6,
    /// Tenure has a defect: the call panicked.
    Panic = 7,
    /// The address is not that of a live block in memory that processes can share.
    NotShareable = 8,
    /// An argument has a type that the function does not take.
    WrongType = 9,
    /// There is no shared cache: it was not allocated, received or sent, or its owner is gone.
    NoSharedCache = 10,
    /// The shared cache is used in a way that excludes the call.
    SharedCacheInUse = 11,
}

impl Status {
    /// Returns the status that a function of C has returned: `Invalid` for a number that is none.
    pub(crate) fn of(number: c_int) -> Self {
        const ALL: [Status; 12] = [
            Status::Ok,
            Status::OutOfMemory,
            Status::NotOpen,
            Status::AlreadyOpen,
            Status::UnknownAddress,
            Status::Invalid,
            Status::DriverFailed,
            Status::Panic,
            Status::NotShareable,
            Status::WrongType,
            Status::NoSharedCache,
            Status::SharedCacheInUse,
        ];
        ALL.into_iter().find(|status| *status as c_int == number).unwrap_or(Self::Invalid)
    }
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("device {device} is not open: call tenure_open first")]
    NotOpen { device: c_int },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    WrongType(String),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("{}", .0.in_pytorch())]
    OutOfMemoryInPytorch(Box<OutOfMemoryReport>),
    #[error(transparent)]
    Cpu(#[from] AllocatorError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Share(#[from] ShareError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        Self::Memory(error.into())
    }
}

impl Failure {
    /// Returns the failure of a call whose argument `what` is NULL.
    pub(crate) fn null(what: &str) -> Self {
        Self::Invalid(format!("{what} must not be NULL"))
    }

    /// Returns the status that C gets.
    fn status(&self) -> Status {
        match self {
            Self::NotOpen { .. } => Status::NotOpen,
            Self::Invalid(_) => Status::Invalid,
            Self::WrongType(_) => Status::WrongType,
            Self::OutOfMemoryInPytorch(_) => Status::OutOfMemory,
            Self::Cpu(AllocatorError::OutOfMemory { .. } | AllocatorError::DeviceOutOfMemory { .. }) => {
                Status::OutOfMemory
            }
            Self::Cpu(_) => Status::Invalid,
            Self::Tensor(TensorError::Core(tenure_core::Error::Allocator(
                AllocatorError::OutOfMemory { .. } | AllocatorError::DeviceOutOfMemory { .. },
            ))) => Status::OutOfMemory,
            Self::Tensor(_) => Status::Invalid,
            Self::Call(_) => Status::DriverFailed,
            Self::Share(error) => share_status(error),
            Self::Memory(error) => match error {
                MemoryError::OutOfMemory(_) | MemoryError::Pinned(PinnedError::LimitReached { .. }) => {
                    Status::OutOfMemory
                }
                MemoryError::AlreadyInstalled { .. } => Status::AlreadyOpen,
                MemoryError::Allocator(AllocError::UnknownAddress(_))
                | MemoryError::Pinned(PinnedError::Allocator(AllocError::UnknownAddress(_))) => Status::UnknownAddress,
                MemoryError::Allocator(AllocError::Backing(_))
                | MemoryError::Pinned(PinnedError::NotPinned { .. } | PinnedError::Allocator(AllocError::Backing(_)))
                | MemoryError::Driver(_) => Status::DriverFailed,
                _ => Status::Invalid,
            },
        }
    }
}

fn share_status(error: &ShareError) -> Status {
    match error {
        ShareError::NotShareable { .. } => Status::NotShareable,
        ShareError::InvalidSetting { .. } => Status::Invalid,
        ShareError::Driver(DriverError { error: CallError { kind: ErrorKind::OutOfMemory { .. }, .. }, .. })
        | ShareError::ParametersTooLarge { .. } => Status::OutOfMemory,
        ShareError::NoDaemon { .. }
        | ShareError::DaemonGone { .. }
        | ShareError::NoPool { .. }
        | ShareError::NoRange(_)
        | ShareError::NotAllocated
        | ShareError::NotReceived => Status::NoSharedCache,
        ShareError::AlreadyAllocated
        | ShareError::AlreadySent { .. }
        | ShareError::AlreadyServed { .. }
        | ShareError::StillInserted
        | ShareError::AlreadyInserted(_)
        | ShareError::NotInserted(_)
        | ShareError::RangeInUse { .. }
        | ShareError::Refused(_)
        | ShareError::NothingPublished
        | ShareError::Incomplete
        | ShareError::Outstanding { .. }
        | ShareError::PlacedOtherwise { .. } => Status::SharedCacheInUse,
        _ => Status::DriverFailed,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a call, and turns errors and panics into a status.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => report(failure.status(), failure.to_string()),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            report(Status::Panic, format!("a defect in Tenure, please report it: {message}"))
        }
    }
}

/// Returns the message of this thread's last failure. It is valid until the next failure.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|message| message.as_ptr())
}

/// Forgets the message of this thread's last failure.
pub(crate) fn clear_last_error() {
    // This fails only in a thread that is ending.
    let _ = LAST_ERROR.try_with(|last| last.replace(CString::default()));
}

/// Stores the message for [`last_error`]. Returns `status`.
#[cold]
fn report(status: Status, message: String) -> Status {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // This fails only in a thread that is ending.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
    status
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message() -> String {
        // SAFETY: a C string, and no call fails while it is read.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_number_of_c_is_a_status_or_invalid() {
        for number in 0..=11 {
            assert_eq!(Status::of(number) as c_int, number);
        }
        assert_eq!([Status::of(12), Status::of(-1)], [Status::Invalid; 2]);
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guarded(|| panic!("broken {}", 7)), Status::Panic);
        assert_eq!(message(), "a defect in Tenure, please report it: broken 7");
    }

    #[test]
    fn a_message_belongs_to_its_thread_and_survives_success() {
        assert_eq!(guarded(|| Err(Failure::NotOpen { device: 3 })), Status::NotOpen);
        assert_eq!(guarded(|| Ok(())), Status::Ok);
        assert_eq!(message(), "device 3 is not open: call tenure_open first");
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
    }
}
