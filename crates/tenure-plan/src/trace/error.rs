//! Errors of reading and writing traces.

use std::io;
use std::path::{Path, PathBuf};

use super::{SegmentTotals, SnapshotSegment, TraceAction};

/// The reason why a trace could not be read or written. Always one line.
///
/// Offsets count bytes of the decompressed content, unless they say otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Any of the other errors, with the file in which it happened.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<TraceError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The content ends too early.
    #[error("truncated: it ends at byte {offset}, in the middle: copy or save it again")]
    Truncated {
        /// The offset at which the content ends.
        offset: u64,
    },
    /// Compressed data ends too early.
    #[error(
        "truncated: its {format} data is cut off after {compressed_bytes} bytes, which hold {offset} bytes of the \
         content: copy or save it again"
    )]
    TruncatedCompression {
        /// `xz` or `gzip`.
        format: &'static str,
        /// The compressed bytes that were read.
        compressed_bytes: u64,
        /// The decompressed bytes that were read.
        offset: u64,
    },
    /// The file has no content.
    #[error("truncated: it is empty (0 bytes): copy or save it again")]
    Empty,
    /// More data follows after the end of the content.
    #[error("more data after the end, at byte {offset}")]
    Trailing {
        /// The offset at which the content should have ended.
        offset: u64,
    },
    /// xz or gzip data is damaged, or needs too much memory.
    #[error("damaged {format} data before compressed byte {offset}: {reason}")]
    Compression {
        /// `xz` or `gzip`.
        format: &'static str,
        /// Compressed bytes consumed so far.
        offset: u64,
        /// The decoder's error message.
        reason: String,
    },
    /// The file is of another kind.
    #[error(
        "it is {what}, not a PyTorch memory snapshot: save one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")"
    )]
    OtherFormat {
        /// The kind of the file.
        what: &'static str,
    },
    /// The file is not a pickle, or is damaged.
    #[error("not a PyTorch memory snapshot: {reason} at byte {offset}")]
    Pickle {
        /// The offset of the error.
        offset: u64,
        /// The error.
        reason: String,
    },
    /// The pickle would do more than hold data.
    #[error(
        "refused: the pickle {what} at byte {offset}; a memory snapshot holds only dict, list, tuple, str, int, float, \
         bool and None"
    )]
    Refused {
        /// The offset of the operation.
        offset: u64,
        /// The forbidden operation.
        what: String,
    },
    /// The process may not have as much memory as the file needs.
    #[error("it needs more memory than this process may have ({bytes} bytes at once): raise the limit, see ulimit -v")]
    NoMemory {
        /// The bytes that were asked for.
        bytes: u64,
    },
    /// A limit of [`ReadOptions`](super::ReadOptions) was passed.
    #[error("too large: {what} over the limit of {limit} bytes at byte {offset}")]
    TooLarge {
        /// The offset at which the limit was passed.
        offset: u64,
        /// The quantity that exceeds the limit.
        what: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The pickle is well-formed but is not a snapshot.
    #[error("not a PyTorch memory snapshot: {reason}")]
    Snapshot {
        /// The part that is missing or wrong.
        reason: String,
    },
    /// The snapshot holds no such device, or no events at all.
    #[error("{reason}")]
    NoTrace {
        /// The reason, and the devices that the snapshot holds.
        reason: String,
    },
    /// The snapshot has segments, but no history: such as the list of `torch.cuda.memory.memory_snapshot()`.
    #[error(
        "it has no history, only {} segments at one moment ({} bytes reserved, {} live; `tenure trace info` shows them): \
         call torch.cuda.memory._record_memory_history() before the program allocates, then _dump_snapshot",
        totals.segments, totals.reserved_bytes, totals.live_bytes
    )]
    NoHistory {
        /// The totals of the segments.
        totals: SegmentTotals,
        /// The name of the snapshot.
        source_name: String,
        /// The segments.
        segments: Vec<SnapshotSegment>,
    },
    /// The compact trace is of an unknown version.
    #[error("it is a trace of version {found}, and only version {known} is known: use a newer program")]
    Version {
        /// The file's version.
        found: u16,
        /// The version that this program reads.
        known: u16,
    },
    /// The compact trace is damaged.
    #[error("damaged trace in the block at byte {offset}: {reason}")]
    Compact {
        /// The offset at which the header or the block of events begins.
        offset: u64,
        /// The damage.
        reason: String,
    },
    /// An event is not valid.
    #[error("event {index}: {reason}")]
    Event {
        /// The event's index among the device's events, from 0.
        index: usize,
        /// The problem with it.
        reason: EventError,
    },
}

/// Makes room for `count` more items, or returns an error where `Vec` would end the process.
pub(crate) fn reserve<T>(items: &mut Vec<T>, count: usize) -> Result<(), TraceError> {
    let bytes = ((items.len() + count) * size_of::<T>()) as u64;
    items.try_reserve(count).map_err(|_| TraceError::NoMemory { bytes })
}

impl TraceError {
    /// Returns the same error with the file in which it happened.
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        match self {
            Self::InFile { .. } => self,
            source => Self::InFile { path: path.as_ref().to_path_buf(), source: Box::new(source) },
        }
    }
}

/// The problem with an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// It is not a dict with an action.
    #[error("it is not a dict with an action")]
    NotAnEvent,
    /// A field is missing, or is not an integer from 0 to 2^64 - 1.
    #[error("field \"{0}\" is missing or is not an unsigned 64-bit integer")]
    BadField(&'static str),
    /// The range passes the end of the address space.
    #[error("{action} of {bytes} bytes at {address:#x} passes the end of the address space")]
    Overflow {
        /// The event's action.
        action: TraceAction,
        /// The event's address.
        address: u64,
        /// The event's size.
        bytes: u64,
    },
    /// Two live blocks, or two live segments, share bytes.
    #[error(
        "{action} of {bytes} bytes at {address:#x} overlaps the {other_bytes} bytes at {other_address:#x}, live since \
         {}", since(*other_index)
    )]
    Overlap {
        /// The event's action.
        action: TraceAction,
        /// The event's address.
        address: u64,
        /// The event's size.
        bytes: u64,
        /// The event that made the other range; `None` if it existed before the history.
        other_index: Option<usize>,
        /// The address of the other range.
        other_address: u64,
        /// The size of the other range.
        other_bytes: u64,
    },
    /// No block or segment is live at the address.
    #[error(
        "{action} of {address:#x}, where nothing is live: the history lacks the allocation (record again, without alloc \
         in skip_actions)"
    )]
    UnknownAddress {
        /// The event's action.
        action: TraceAction,
        /// The event's address.
        address: u64,
    },
    /// The size differs from the allocated size.
    #[error("{action} of {bytes} bytes at {address:#x}, where {live_bytes} bytes are live since {}", since(*made_index))]
    SizeMismatch {
        /// The event's action.
        action: TraceAction,
        /// The event's address.
        address: u64,
        /// The event's size.
        bytes: u64,
        /// The size of the live range.
        live_bytes: u64,
        /// The event that made the live range; `None` if it existed before the history.
        made_index: Option<usize>,
    },
    /// A free was requested twice, or completed without having been requested.
    #[error("{action} of {address:#x}, whose free was {state}")]
    FreeOrder {
        /// The event's action.
        action: TraceAction,
        /// The event's address.
        address: u64,
        /// The state of its free.
        state: &'static str,
    },
}

/// Returns words that name the event that made a block or segment.
fn since(index: Option<usize>) -> String {
    index.map_or_else(|| "before the history".into(), |index| format!("event {index}"))
}
