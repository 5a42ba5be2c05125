//! [`AllocError`]: the errors of allocators.

use tenure_core::StreamId;

use crate::{Address, BackingError, PoolId};

/// The reason why a call of an allocator failed. The call has changed nothing that a caller can see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// There is no memory for a request, even after the allocator returned to the device all unused memory that it
    /// could.
    #[error(
        "out of memory: asked for {requested} bytes on stream {stream}; {allocated} bytes are allocated, {inactive} \
         more of {reserved} reserved are not; {free} of {total} bytes are free on the device, {allowed} allowed to \
         this process, {overhead} of them its own overhead; free tensors that are no longer needed, or raise the limit"
    )]
    OutOfMemory {
        /// The bytes of the request.
        requested: u64,
        /// The stream of the request.
        stream: StreamId,
        /// Bytes in live blocks.
        allocated: u64,
        /// Bytes that this allocator holds, in use or not.
        reserved: u64,
        /// Bytes reserved but not allocated: free ones that did not fit, and freed ones that other streams still use.
        inactive: u64,
        /// Bytes of the device that this process holds outside the allocator, and that count towards `allowed`:
        /// [`Backing::overhead_bytes`].
        ///
        /// [`Backing::overhead_bytes`]: crate::Backing::overhead_bytes
        overhead: u64,
        /// Bytes free on the device.
        free: u64,
        /// Bytes of the device's memory, free or not.
        total: u64,
        /// Bytes that this process may hold, overhead included.
        allowed: u64,
    },
    /// The request is larger than any device.
    #[error("a request of {0} bytes is larger than any device: check the shape it was computed from")]
    TooLarge(u64),
    /// The address was freed before, or was never allocated here.
    #[error("address {0:#x} is not a live block of this allocator: it was freed before, or came from elsewhere")]
    UnknownAddress(Address),
    /// The pool does not exist.
    #[error("private pool ({}, {}) does not exist: begin allocating to it first", .0.0, .0.1)]
    UnknownPool(PoolId),
    /// Blocks of the pool that are freed, or that the call would free, are still used by other streams. During a
    /// capture the host cannot wait for them.
    #[error(
        "other streams still use blocks of private pool ({}, {}), and a capture is underway in which they cannot be \
         waited for: end it first", .0.0, .0.1
    )]
    PoolBusy(PoolId),
    /// The pool cannot be restored from a checkpoint: since that was made, the pool lost its last user, or some of the
    /// memory that the checkpoint's blocks lie in.
    #[error(
        "private pool ({}, {}) was given up since the checkpoint was made, and cannot be set back to it: keep a use of \
         the pool as long as its checkpoints", .0.0, .0.1
    )]
    PoolChanged(PoolId),
    /// A range of memory that was donated to a stream cannot be taken back, since it has live blocks.
    #[error(
        "{blocks} blocks of {bytes} bytes still live in the memory donated to stream {stream}: free them before taking \
         it back"
    )]
    StillInUse {
        /// Bytes in live blocks.
        bytes: u64,
        /// Live blocks.
        blocks: usize,
        /// The stream that the memory was donated to.
        stream: StreamId,
    },
    /// A request does not fit in the donated range that must serve all requests of its stream.
    #[error(
        "a range of {bytes} bytes that takes every request has no place for {requested} more, with {free} free: make it \
         larger, or close it before allocating what it is not meant for"
    )]
    RangeFull {
        /// Bytes of the request.
        requested: u64,
        /// Bytes of the range.
        bytes: u64,
        /// The free bytes of the range. No free piece is long enough, or the place recorded for the request is taken.
        free: u64,
    },
    /// A request has another size than the recorded one that is next in a donated range. The range holds data that
    /// another process wrote to the blocks of the recorded requests, so the same requests must come in the same order.
    #[error(
        "allocation {index} in a range that was published has {requested} bytes, and {recorded} were published: allocate \
         the same tensors, in the same order, as the process that wrote them"
    )]
    LayoutDiffers {
        /// The position of the request in the record, from 0.
        index: usize,
        /// Bytes of the request.
        requested: u64,
        /// Bytes of the recorded request.
        recorded: u64,
    },
    /// The value of a setting is not allowed.
    #[error("{setting} = {value}: {expected}")]
    InvalidSetting {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The rule that the value breaks.
        expected: &'static str,
    },
    /// The host has no memory for the allocator's own tables.
    #[error(
        "the host has no memory for the allocator's tables of {bytes} bytes: raise the limit on this process's address \
         space (`ulimit -v`)"
    )]
    HostMemory {
        /// Bytes of the table that could not be made.
        bytes: u64,
    },
    /// A driver call failed.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

impl AllocError {
    /// Returns the error for a setting whose value makes no sense.
    pub(crate) fn invalid(setting: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Self::InvalidSetting { setting, value: value.to_string(), expected }
    }
}
