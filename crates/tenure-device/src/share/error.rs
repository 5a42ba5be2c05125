//! Errors of shared memory.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tenure_alloc::{Address, AllocError, BackingError};
use tenure_core::Device;
use tenure_ipc::ClaimError;

use super::handle::HandleError;
use super::wire::{DaemonRefusal, WireError};
use crate::{CallError, DriverError};

/// The reason why memory could not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// No daemon serves the socket.
    #[error(
        "no memory daemon at {0}: {reason}; start one with `tenure memory daemon --socket {0}`", .socket.display()
    )]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// A process of another user, other than root, serves the socket.
    #[error(
        "{} is served by user {uid}, who is neither user {user} nor root: choose a socket in a \
         folder of your own (`--socket`, or set XDG_RUNTIME_DIR)",
        .socket.display()
    )]
    ForeignDaemon {
        /// The socket.
        socket: PathBuf,
        /// The user of the daemon.
        uid: u32,
        /// The user of this process.
        user: u32,
    },
    /// The daemon ended, or closed the connection.
    #[error(
        "the memory daemon at {} has ended or closed the connection: memory that it shared stays valid; start it again \
         and reconnect (earlier leases are lost)",
        .socket.display()
    )]
    DaemonGone {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon has no pool to attach to.
    #[error("the memory daemon at {} has no pool: start it with a size for one (`--pool-bytes`)", .socket.display())]
    NoPool {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon does not answer.
    #[error(
        "the memory daemon at {} did not answer within {waited:?}: look at what its process does",
        .socket.display()
    )]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// The daemon refused the request.
    #[error("the memory daemon refused: {0}")]
    Refused(#[from] DaemonRefusal),
    /// The bytes received are not a message.
    #[error("the other process's message cannot be read: {0}")]
    Wire(#[from] WireError),
    /// The message is not a reply to the request.
    #[error("the answer does not fit the question: the other process has another release, or is not Tenure's")]
    Unexpected,
    /// The socket is served already.
    #[error("{} is served already by {}: stop that first, or choose another socket", .socket.display(), .by)]
    AlreadyServed {
        /// The socket.
        socket: PathBuf,
        /// A description of the process that serves it.
        by: String,
    },
    /// The cache is already sent at another socket. It has one socket only.
    #[error("the shared cache is sent at {} already: receive it there", .socket.display())]
    AlreadySent {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket could not be made.
    #[error("{}: {doing}: {reason}", .path.display())]
    Socket {
        /// The file.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        reason: io::Error,
    },
    /// The block cannot be shared.
    #[error(
        "the block at {address:#x} cannot be shared: no live block begins there, or it does not lie in chunks that \
         other processes can map (the `paged` allocator and expandable segments are made of them)"
    )]
    NotShareable {
        /// The address given.
        address: Address,
    },
    /// The block lies in a shared cache, which its processes have mapped already, so it cannot be shared by itself.
    #[error(
        "the block at {address:#x} lies in a shared cache and cannot be sent by itself: receive the cache in the other \
         process, and attach to the parameters that are published there"
    )]
    InSharedCache {
        /// The address given.
        address: Address,
    },
    /// This process was forked from one that shares blocks, so it cannot share any.
    #[error(
        "this process was forked from process {parent}, which shares memory: a device cannot be used after a fork; \
         start processes anew (`spawn`)"
    )]
    Forked {
        /// The process that shares.
        parent: u32,
    },
    /// The socket over which blocks are shared could not be made.
    #[error("blocks cannot be shared, as this process's socket for it cannot be made: {0}")]
    NotServed(io::Error),
    /// The bytes are not a handle of a block.
    #[error("the handle does not name a block: {0}")]
    Handle(#[from] HandleError),
    /// The other process's memory lies on another device.
    #[error(
        "what is shared lies on device {}, and {device} is {}: open it on the device that it lies on (see \
         CUDA_VISIBLE_DEVICES of both processes)",
        hex(.lies_on), hex(.uuid)
    )]
    OtherDevice {
        /// The device on which it was to be opened.
        device: Device,
        /// The UUID of that device, the same in every process.
        uuid: [u8; 16],
        /// The UUID of the device that the memory lies on.
        lies_on: [u8; 16],
    },
    /// The process that shares a block has ended.
    #[error(
        "process {pid}, which shares the block, is gone, or in another network namespace: a process must keep what it \
         sends until it was received"
    )]
    SenderGone {
        /// The process.
        pid: u32,
    },
    /// The process that shares a block does not answer.
    #[error("process {pid}, which shares the block, did not answer within {waited:?}: look at what it does")]
    SenderSilent {
        /// The process.
        pid: u32,
        /// How long this process waited.
        waited: Duration,
    },
    /// The process that shares a block belongs to another user.
    #[error("the process that shares the block belongs to another user: run both as the same")]
    ForeignSender,
    /// The block was freed and its memory given back before it was opened.
    #[error("process {pid} has freed the block: a process must keep what it sends until it was received")]
    BlockReleased {
        /// The process that shared it.
        pid: u32,
    },
    /// The driver of the process that shares a block failed.
    #[error("process {pid}, which shares the block, could not export it: {reason}")]
    SenderFailed {
        /// The process.
        pid: u32,
        /// Its driver's error message.
        reason: String,
    },
    /// No process has published parameters in the range.
    #[error(
        "no parameters are published in the shared cache: the process that writes them must publish them, or clear the \
         cache, after it has inserted the cache for writing and allocated them there"
    )]
    NothingPublished,
    /// The parameters were written only in part.
    #[error(
        "the parameters in the shared cache are incomplete: the process that wrote them has ended, or the memory daemon \
         has, before it was done; transfer or publish them again"
    )]
    Incomplete,
    /// The list of published parameters cannot be read.
    #[error("what is published in the shared cache cannot be read, so its parameters are not used: {0}")]
    PublishedUnreadable(&'static str),
    /// The range is too small for the parameters and the list of them.
    #[error(
        "the parameters and the list of them need {needed} bytes, and their range in the shared cache has {bytes}: \
         allocate the cache with more `parameter_bytes`"
    )]
    ParametersTooLarge {
        /// Bytes needed.
        needed: u64,
        /// Bytes of the range.
        bytes: u64,
    },
    /// The published parameters are not those that were expected.
    #[error("the shared cache holds other parameters than these")]
    OtherParameters {
        /// The publisher's description of the published parameters.
        published: Vec<u8>,
    },
    /// The cache has no range for this use.
    #[error(
        "the shared cache was received without a range for {0}: its sender does not divide it, so start that with a \
         chunk for each (`tenure memory daemon --chunks 1GiB,11GiB`)"
    )]
    NoRange(RangeUse),
    /// This process has inserted the range already.
    #[error("this process has inserted the range for {0} already: use it, or call clear_shared_cache() first")]
    AlreadyInserted(RangeUse),
    /// The range cannot be cleared because blocks live in it.
    #[error(
        "{blocks} blocks of {bytes} bytes still live in the range for {range}: delete the tensors in them first, and then \
         call clear_shared_cache() again"
    )]
    RangeInUse {
        /// The range.
        range: RangeUse,
        /// The number of live blocks.
        blocks: usize,
        /// The size of the blocks together, in bytes.
        bytes: u64,
    },
    /// Some published parameters were not allocated.
    #[error(
        "{outstanding} of the published parameters were not allocated, on the stream that the cache was inserted for: \
         allocate the same tensors, in the same order, as the process that wrote them"
    )]
    Outstanding {
        /// The number of parameters that were not allocated.
        outstanding: usize,
    },
    /// Parameters that were placed before they were written do not match what was written.
    #[error(
        "tensor {index} of the parameters that were placed here {}, and what was transferred last to the shared cache {}: \
         allocate the same tensors in the same order on both sides, and insert the ranges for a model's parameters and for \
         its computation one after the other",
        placed_as(.placed), written_as(.written)
    )]
    PlacedOtherwise {
        /// The index of the tensor, from 0.
        index: usize,
        /// Its size in bytes; `None` if no more tensors were placed.
        placed: Option<u64>,
        /// The size in bytes of what was written in its place; `None` if nothing was written at its offset.
        written: Option<u64>,
    },
    /// No parameters are inserted on which this operation could work.
    #[error("this process has inserted no range for parameters that could be {0}")]
    NotInserted(&'static str),
    /// This process owns a cache of the device already.
    #[error("this process has allocated a shared cache of this device already")]
    AlreadyAllocated,
    /// This process owns no cache of the device.
    #[error("the shared cache was not allocated: call allocate_shared_cache() first")]
    NotAllocated,
    /// This process works in no cache of the device.
    #[error("the shared cache was not received: call recv_shared_cache() first")]
    NotReceived,
    /// Another cache cannot be received while ranges of this one are inserted.
    #[error("ranges of another shared cache are inserted in this process: call clear_shared_cache() first")]
    StillInserted,
    /// A setting makes no sense.
    #[error("{setting} = {value}: {expected}")]
    InvalidSetting {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The values that it accepts.
        expected: String,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The allocator refused a range, or to give one back.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// The use of a range of a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeUse {
    /// Parameters: written by one process, read by any number.
    Parameters,
    /// Computation, for one process alone.
    Computation,
}

impl fmt::Display for RangeUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Parameters => "parameters",
            Self::Computation => "computation",
        })
    }
}

impl From<CallError> for ShareError {
    #[track_caller]
    fn from(error: CallError) -> Self {
        Self::Driver(error.into())
    }
}

impl From<ClaimError> for ShareError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Taken { path, by } => Self::AlreadyServed { socket: path, by },
            ClaimError::Failed { path, doing, reason } => Self::Socket { path, doing, reason },
        }
    }
}

impl From<ShareError> for BackingError {
    fn from(error: ShareError) -> Self {
        const CALL: &str = "lease from the memory daemon";
        match error {
            ShareError::Driver(error) => error.into(),
            ShareError::Refused(DaemonRefusal::Full { requested, available }) => {
                Self::OutOfMemory { call: CALL, requested, free: available }
            }
            error => Self::Failed { call: CALL, reason: error.to_string() },
        }
    }
}

fn placed_as(bytes: &Option<u64>) -> String {
    bytes.map_or_else(|| "is missing".to_owned(), |bytes| format!("has {bytes} bytes"))
}

fn written_as(bytes: &Option<u64>) -> String {
    bytes.map_or_else(|| "ends before it".to_owned(), |bytes| format!("has {bytes} there"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
