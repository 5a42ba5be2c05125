use std::io;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::Buffer;

/// Why buffers could not be read, or make no problem. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackingError {
    /// Any of the others, with the file it happened in.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: Box<PackingError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// More than a file of buffers may hold.
    #[error("too large: more than {limit_bytes} bytes")]
    TooLarge {
        /// The most bytes that are read.
        limit_bytes: u64,
    },
    /// A line is not what it should be.
    #[error("line {line}: {reason}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A buffer makes no sense.
    #[error("buffer {index}: {reason}")]
    Buffer {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        reason: BufferError,
    },
}

impl PackingError {
    /// The same error, with the file it happened in.
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        match self {
            Self::InFile { .. } => self,
            source => Self::InFile { path: path.as_ref().to_path_buf(), source: Box::new(source) },
        }
    }
}

/// What is wrong with a buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// It is never alive.
    #[error("it begins at {start} and ends at {end}: it must end later than it begins")]
    NeverAlive {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// Nothing is a multiple of 0.
    #[error("its alignment is 0: take 1 where any offset will do")]
    NoAlignment,
    /// Another buffer has its name.
    #[error("buffer {other} has the same id, {id:?}: each needs one of its own")]
    SameId {
        /// The name.
        id: String,
        /// The other, from 0.
        other: usize,
    },
    /// Its name cannot stand in a file.
    #[error("its id, {id:?}, has a comma or the end of a line in it, or a blank at an end: leave that out")]
    BadId {
        /// The name.
        id: String,
    },
    /// The offsets might not be numbers of 64 bits.
    #[error("with it, sizes and alignments come to 2^63 bytes or more, which is too much for one range")]
    TooMuch,
}

/// The first buffer that makes no sense.
pub(super) fn check(buffers: &[Buffer]) -> Result<(), (usize, BufferError)> {
    let mut ids = FxHashMap::default();
    let mut sum = 0u64;
    for (index, buffer) in buffers.iter().enumerate() {
        let &Buffer { ref id, start, end, size_bytes, alignment } = buffer;
        if start >= end {
            return Err((index, BufferError::NeverAlive { start, end }));
        }
        if alignment == 0 {
            return Err((index, BufferError::NoAlignment));
        }
        if id.contains([',', '\n']) || id.trim() != id {
            return Err((index, BufferError::BadId { id: id.clone() }));
        }
        if let Some(other) = ids.insert(id.as_str(), index) {
            return Err((index, BufferError::SameId { id: id.clone(), other }));
        }
        // With the bytes that alignment may leave out below each, no packing that is ever tried is higher.
        let with_it = sum.checked_add(size_bytes).and_then(|sum| sum.checked_add(alignment - 1));
        sum = with_it.filter(|&sum| sum < 1 << 63).ok_or((index, BufferError::TooMuch))?;
    }
    Ok(())
}
