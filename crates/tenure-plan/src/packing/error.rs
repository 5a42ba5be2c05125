//! Errors of packing problems, and the checks that find them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::Buffer;

/// The reason why buffers could not be read or make no valid problem. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackingError {
    /// Any of the other errors, with the file in which it happened.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<PackingError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is larger than a file of buffers may be.
    #[error("too large: more than {limit_bytes} bytes")]
    TooLarge {
        /// The most bytes that are read.
        limit_bytes: u64,
    },
    /// A line is malformed.
    #[error("line {line}: {reason}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The problem, and how to solve it.
        reason: String,
    },
    /// A buffer is not valid.
    #[error("buffer {index}: {reason}")]
    Buffer {
        /// The buffer's index, from 0.
        index: usize,
        /// The problem with it.
        reason: BufferError,
    },
}

impl PackingError {
    /// Returns the same error with the file in which it happened.
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        match self {
            Self::InFile { .. } => self,
            source => Self::InFile { path: path.as_ref().to_path_buf(), source: Box::new(source) },
        }
    }
}

/// The problem with a buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// Its lifetime is empty.
    #[error("it begins at {start} and ends at {end}: it must end later than it begins")]
    NeverAlive {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// Its alignment is 0.
    #[error("its alignment is 0: take 1 where any offset will do")]
    NoAlignment,
    /// Another buffer has its name.
    #[error("buffer {other} has the same id, {id:?}: each needs one of its own")]
    SameId {
        /// The name.
        id: String,
        /// The index of the other buffer, from 0.
        other: usize,
    },
    /// Its fixed offset is not aligned.
    #[error("its fixed offset, {offset}, is not a multiple of its alignment, {alignment}: change one of them")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The alignment: the offset must be a multiple of it.
        alignment: u64,
    },
    /// Another buffer with a fixed offset occupies the same bytes at the same time.
    #[error(
        "at its fixed offset, {offset}, it shares bytes with buffer {other}: change one of their offsets, or leave it to \
         the packing"
    )]
    Overlap {
        /// The offset.
        offset: u64,
        /// The index of the other buffer, from 0.
        other: usize,
    },
    /// The offsets might not fit into 64 bits.
    #[error("with it, sizes and alignments come to 2^63 bytes or more, which is too much for one range")]
    TooMuch,
}

/// Returns an error for the first buffer that is not valid.
pub(super) fn check(buffers: &[Buffer]) -> Result<(), (usize, BufferError)> {
    let mut ids = FxHashMap::default();
    let (mut sum, mut fixed_top) = (0u64, 0u64);
    for (index, buffer) in buffers.iter().enumerate() {
        let &Buffer { ref id, start, end, size_bytes, alignment, offset } = buffer;
        if start >= end {
            return Err((index, BufferError::NeverAlive { start, end }));
        }
        if alignment == 0 {
            return Err((index, BufferError::NoAlignment));
        }
        if let Some(other) = ids.insert(id.as_str(), index) {
            return Err((index, BufferError::SameId { id: id.clone(), other }));
        }
        // No packing that is ever tried is higher than this sum: the sizes, the bytes that alignment may skip below
        // each buffer, and the highest end of a fixed buffer.
        let too_much = (index, BufferError::TooMuch);
        match offset {
            Some(offset) if !offset.is_multiple_of(alignment) => {
                return Err((index, BufferError::Misaligned { offset, alignment }));
            }
            Some(offset) => fixed_top = fixed_top.max(offset.checked_add(size_bytes).ok_or(too_much.clone())?),
            None => {
                let with_it = sum.checked_add(size_bytes).and_then(|sum| sum.checked_add(alignment - 1));
                sum = with_it.ok_or(too_much.clone())?;
            }
        }
        sum.checked_add(fixed_top).filter(|&most| most < 1 << 63).ok_or(too_much)?;
    }
    check_fixed(buffers)
}

/// Checks that buffers with fixed offsets do not overlap.
fn check_fixed(buffers: &[Buffer]) -> Result<(), (usize, BufferError)> {
    // A buffer that ends at a moment is gone before another begins at it.
    let mut events = Vec::new();
    for (index, buffer) in buffers.iter().enumerate() {
        if let Some(bytes) = buffer.fixed() {
            events.push((buffer.end, false, index, bytes.clone()));
            events.push((buffer.start, true, index, bytes));
        }
    }
    events.sort_unstable_by_key(|&(time, is_start, index, _)| (time, is_start, index));
    // By offset: the end and the buffer. Live buffers share no byte, so only the last that begins below an end may
    // reach it.
    let mut live = BTreeMap::<u64, (u64, usize)>::new();
    for (_, is_start, index, bytes) in events {
        if !is_start {
            live.remove(&bytes.start);
            continue;
        }
        if let Some((&offset, &(top, other))) = live.range(..bytes.end).next_back()
            && top > bytes.start
        {
            let (first, later) = if index < other { (index, other) } else { (other, index) };
            let offset = if later == index { bytes.start } else { offset };
            return Err((later, BufferError::Overlap { offset, other: first }));
        }
        live.insert(bytes.start, (bytes.end, index));
    }
    Ok(())
}
