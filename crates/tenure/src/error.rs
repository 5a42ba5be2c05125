use tenure_alloc::AllocError;
use tenure_device::{CallError, DriverError};
use tenure_plan::TraceError;

use crate::replay::AllocatorKind;

/// Anything that can go wrong, by the subsystem that it went wrong in. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Devices, dtypes, layouts, storages.
    #[error(transparent)]
    Core(#[from] tenure_core::Error),
    /// An allocator refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A driver call failed.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// A trace could not be read or written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An allocator refused an event of a trace that was replayed.
    #[error("event {event}: {allocator}: {source}")]
    Replay {
        /// Which event, from 0.
        event: usize,
        /// The allocator that refused.
        allocator: AllocatorKind,
        /// Why.
        source: AllocError,
    },
}

impl From<CallError> for Error {
    #[track_caller]
    fn from(error: CallError) -> Self {
        Self::Device(error.into())
    }
}
