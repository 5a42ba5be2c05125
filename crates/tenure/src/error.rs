//! [`Error`]: the one error type that every error of the crates below converts into.

#[cfg(feature = "nn")]
use tenure_agent::{PolicyError, serve::ServeError, train::TrainError};
use tenure_alloc::{Address, AllocError};
use tenure_core::{AllocatorError, DTypeError, DeviceError, LayoutError, StorageError};
use tenure_device::memory::MemoryError;
use tenure_device::pinned::PinnedError;
use tenure_device::share::ShareError;
use tenure_device::{CallError, DriverError};
#[cfg(feature = "nn")]
use tenure_nn::{
    StateError, checkpoint::CheckpointError, data::DataError, networks::NetworkError, switched::SwitchedError, train,
};
use tenure_offload::{OffloadError, ProfileError};
use tenure_plan::packing::PackingError;
use tenure_plan::planner::PlannerError;
use tenure_plan::{MappingError, PlanError, ProblemError, TraceError};
#[cfg(feature = "nn")]
use tenure_tensor::TensorError;
use tenure_tier::{DiskError, MoverError, TierError};

use crate::replay::AllocatorKind;

/// Anything that can go wrong, by the subsystem that it went wrong in. One line, but for a device out of memory, which
/// says who holds what.
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
    /// A device's memory: out of it, or used wrongly.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Pinned host memory.
    #[error(transparent)]
    Pinned(#[from] PinnedError),
    /// Memory shared between processes.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// An operation on tensors.
    #[cfg(feature = "nn")]
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Models, data, checkpoints, training.
    #[cfg(feature = "nn")]
    #[error(transparent)]
    Nn(Box<tenure_nn::Error>),
    /// A trace could not be read or written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Buffers to be packed could not be read, or make no sense.
    #[error(transparent)]
    Packing(#[from] PackingError),
    /// A problem of placement could not be read, or makes no sense.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A mapping could not be read or written, or does not fit its problem.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A planner found no plan.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// A plan breaks a rule of its problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A tier of memory could not be opened, or is full.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A disk could not be opened, or lost bytes.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Bytes could not leave a device, or come back.
    #[error(transparent)]
    Mover(Box<MoverError>),
    /// A step could not be kept within its budget.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A measured step makes no sense.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The planning agent could not be reached, or refused.
    #[cfg(feature = "nn")]
    #[error(transparent)]
    Agent(#[from] ServeError),
    /// The learned policy could not be read or written.
    #[cfg(feature = "nn")]
    #[error(transparent)]
    Policy(Box<PolicyError>),
    /// The learned policy could not be trained further.
    #[cfg(feature = "nn")]
    #[error(transparent)]
    PolicyTraining(Box<TrainError>),
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
    /// A report's page may not be as large as its charts.
    #[error("the page takes at least {least_bytes} bytes, which is more than {page_bytes}: allow it that many")]
    PageTooSmall {
        /// Bytes that the page may have.
        page_bytes: u64,
        /// Bytes that it has without any block.
        least_bytes: u64,
    },
    /// The caller stopped a replay that it watched.
    #[error("stopped after event {event}")]
    Stopped {
        /// The last event that was replayed, from 0.
        event: usize,
    },
    /// A block of a replay on a device did not keep what its stream wrote: two blocks share memory, or a mapping is
    /// wrong.
    #[error(
        "the block at {block:#x} was damaged: the byte at {address:#x} is {found:#04x}, written was {written:#04x}"
    )]
    Damaged {
        /// Where the block begins.
        block: Address,
        /// The first byte that is wrong.
        address: Address,
        /// The byte that the stream wrote there.
        written: u8,
        /// The byte that is there.
        found: u8,
    },
}

impl From<CallError> for Error {
    #[track_caller]
    fn from(error: CallError) -> Self {
        Self::Device(error.into())
    }
}

/// Converts errors by way of another error type, which contains them; a large one is boxed.
macro_rules! convert {
    ($variant:ident(Box<$through:ty>): $($error:ty),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(<$through>::from(error)))
            }
        })+
    };
    ($variant:ident($through:ty): $($error:ty),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(<$through>::from(error))
            }
        })+
    };
}

convert!(Core(tenure_core::Error): AllocatorError, DTypeError, DeviceError, LayoutError, StorageError);
convert!(Mover(Box<MoverError>): MoverError);
#[cfg(feature = "nn")]
convert!(Nn(Box<tenure_nn::Error>): tenure_nn::Error, CheckpointError, DataError, NetworkError, StateError);
#[cfg(feature = "nn")]
convert!(Nn(Box<tenure_nn::Error>): SwitchedError, train::TrainError);
#[cfg(feature = "nn")]
convert!(Policy(Box<PolicyError>): PolicyError);
#[cfg(feature = "nn")]
convert!(PolicyTraining(Box<TrainError>): TrainError);
