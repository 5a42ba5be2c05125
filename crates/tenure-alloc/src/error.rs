//! [`AllocError`]: the errors of allocators.

use tenure_core::StreamId;

use crate::{Address, BackingError, PoolId};

/// The reason for which an allocator refused. A failed call changed nothing that a caller can see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No memory was found, after everything that could be given back was.
    #[error(
        "out of memory: asked for {requested} bytes on stream {stream}; {allocated} bytes are allocated, {inactive} \
         more of {reserved} reserved are not; {free} of {total} bytes are free on the device, {allowed} allowed to \
         this process, {overhead} of them its own overhead; free tensors that are no longer needed, or raise the limit"
    )]
    OutOfMemory {
        /// Bytes requested.
        requested: u64,
        /// The stream of the request.
        stream: StreamId,
        /// Bytes in live blocks.
        allocated: u64,
        /// Bytes this allocator holds from the backing.
        reserved: u64,
        /// Bytes reserved but not allocated: free ones that did not fit, and freed ones that other streams still use.
        inactive: u64,
        /// Bytes that this process holds beside the allocator's, which count against its limit:
        /// [`Backing::overhead_bytes`].
        ///
        /// [`Backing::overhead_bytes`]: crate::Backing::overhead_bytes
        overhead: u64,
        /// Bytes free on the device.
        free: u64,
        /// Bytes of the device.
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
    /// Other streams still use freed blocks of the pool, and cannot be waited for.
    #[error(
        "other streams still use blocks of private pool ({}, {}), and a capture is underway in which they cannot be \
         waited for: end it first", .0.0, .0.1
    )]
    PoolBusy(PoolId),
    /// The pool cannot be set back to a checkpoint.
    #[error(
        "private pool ({}, {}) was given up since the checkpoint was made, and cannot be set back to it: keep a use of \
         the pool as long as its checkpoints", .0.0, .0.1
    )]
    PoolChanged(PoolId),
    /// Donated memory is wanted back, but blocks live in it.
    #[error(
        "{blocks} blocks of {bytes} bytes still live in the memory donated to stream {stream}: free them before taking \
         it back"
    )]
    StillInUse {
        /// Bytes in live blocks.
        bytes: u64,
        /// Live blocks.
        blocks: usize,
        /// The stream that the memory was given to.
        stream: StreamId,
    },
    /// A donated range that takes every request has no place for one.
    #[error(
        "a range of {bytes} bytes that takes every request has no place for {requested} more, with {free} free: make it \
         larger, or close it before allocating what it is not meant for"
    )]
    RangeFull {
        /// Bytes of the request.
        requested: u64,
        /// Bytes of the range.
        bytes: u64,
        /// Its free bytes; the longest free piece is too short, or the recorded place is taken.
        free: u64,
    },
    /// A request is not the one recorded for a donated range, which holds data that other processes wrote there.
    #[error(
        "allocation {index} in a range that was published has {requested} bytes, and {recorded} were published: allocate \
         the same tensors, in the same order, as the process that wrote them"
    )]
    LayoutDiffers {
        /// The index of the allocation, from 0.
        index: usize,
        /// Bytes of the request.
        requested: u64,
        /// Bytes recorded.
        recorded: u64,
    },
    /// A setting makes no sense.
    #[error("{setting} = {value}: {expected}")]
    InvalidSetting {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The rule that the value breaks.
        expected: &'static str,
    },
    /// A driver call failed.
    #[error(transparent)]
    Backing(#[from] BackingError),
}
