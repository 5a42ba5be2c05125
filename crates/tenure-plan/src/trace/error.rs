use std::io;
use std::path::{Path, PathBuf};

use super::Action;

/// Why a trace could not be read or written. Always one line.
///
/// Offsets count bytes of the decompressed content, unless they say otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Any of the others, with the file it happened in.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: Box<TraceError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The content ends too early.
    #[error("truncated: it ends at byte {offset}, in the middle")]
    Truncated {
        /// Where the content ends.
        offset: u64,
    },
    /// The content goes on after its end.
    #[error("more data after the end, at byte {offset}")]
    Trailing {
        /// Where the content should have ended.
        offset: u64,
    },
    /// xz or gzip data is damaged, or needs too much memory.
    #[error("damaged {format} data before compressed byte {offset}: {reason}")]
    Compression {
        /// `xz` or `gzip`.
        format: &'static str,
        /// Compressed bytes taken in so far.
        offset: u64,
        /// The decoder's words.
        reason: String,
    },
    /// A file of another kind.
    #[error(
        "it is {what}, not a PyTorch memory snapshot: save one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")"
    )]
    OtherFormat {
        /// The kind of file that it is.
        what: &'static str,
    },
    /// Not a pickle, or a damaged one.
    #[error("not a PyTorch memory snapshot: {reason} at byte {offset}")]
    Pickle {
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The pickle would do more than hold data.
    #[error(
        "refused: the pickle {what} at byte {offset}; a memory snapshot holds only dict, list, tuple, str, int, float, \
         bool and None"
    )]
    Refused {
        /// Where.
        offset: u64,
        /// What it would do.
        what: String,
    },
    /// A limit of [`ReadOptions`](super::ReadOptions) was passed.
    #[error("too large: {what} over the limit of {limit} bytes at byte {offset}")]
    TooLarge {
        /// Where.
        offset: u64,
        /// What there is too much of.
        what: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A well-formed pickle that is not a snapshot.
    #[error("not a PyTorch memory snapshot: {reason}")]
    Snapshot {
        /// What is missing or wrong.
        reason: String,
    },
    /// The snapshot holds no such device, or no events at all.
    #[error("{reason}")]
    NoTrace {
        /// What there is instead.
        reason: String,
    },
    /// A compact trace of a version that is not known.
    #[error("it is a trace of version {found}, and only version {known} is known: use a newer program")]
    Version {
        /// The file's version.
        found: u16,
        /// This program's version.
        known: u16,
    },
    /// A damaged compact trace.
    #[error("damaged trace in the block at byte {offset}: {reason}")]
    Compact {
        /// Where the header or the block of events begins.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// An event makes no sense.
    #[error("event {index}: {reason}")]
    Event {
        /// Which event of the device, from 0.
        index: usize,
        /// What is wrong with it.
        reason: EventError,
    },
}

impl TraceError {
    /// The same error, with the file it happened in.
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        match self {
            Self::InFile { .. } => self,
            source => Self::InFile { path: path.as_ref().to_path_buf(), source: Box::new(source) },
        }
    }
}

/// What is wrong with an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// It is not a dict with an action.
    #[error("it is not a dict with an action")]
    NotAnEvent,
    /// A field is missing, or holds no integer from 0 to 2^64 - 1.
    #[error("field \"{0}\" is missing or is not an unsigned 64-bit integer")]
    BadField(&'static str),
    /// The range passes the end of the address space.
    #[error("{action} of {bytes} bytes at {address:#x} passes the end of the address space")]
    Overflow {
        /// The event's action.
        action: Action,
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
        action: Action,
        /// The event's address.
        address: u64,
        /// The event's size.
        bytes: u64,
        /// The event that made the other one; `None` if it was there before the history.
        other_index: Option<usize>,
        /// Address of the other one.
        other_address: u64,
        /// Size of the other one.
        other_bytes: u64,
    },
    /// Nothing is live at the address.
    #[error(
        "{action} of {address:#x}, where nothing is live: the history lacks the allocation (record again, without alloc \
         in skip_actions)"
    )]
    UnknownAddress {
        /// The event's action.
        action: Action,
        /// The event's address.
        address: u64,
    },
    /// The size is not the one that was allocated.
    #[error("{action} of {bytes} bytes at {address:#x}, where {live_bytes} bytes are live since {}", since(*made_index))]
    SizeMismatch {
        /// The event's action.
        action: Action,
        /// The event's address.
        address: u64,
        /// The event's size.
        bytes: u64,
        /// The size that is live there.
        live_bytes: u64,
        /// The event that made it; `None` if it was there before the history.
        made_index: Option<usize>,
    },
    /// A free was requested twice, or completed without having been requested.
    #[error("{action} of {address:#x}, whose free was {state}")]
    FreeOrder {
        /// The event's action.
        action: Action,
        /// The event's address.
        address: u64,
        /// How far its free was.
        state: &'static str,
    },
}

/// Names the event that made a block or segment.
fn since(index: Option<usize>) -> String {
    index.map_or_else(|| "before the history".into(), |index| format!("event {index}"))
}
