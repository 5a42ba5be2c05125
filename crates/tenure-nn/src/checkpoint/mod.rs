//! Model weights, and checkpoints of training runs, in safetensors files.

mod run;
mod weights;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tenure_core::atomic_files;

pub use run::{Checkpoint, Progress};
pub use tenure_core::atomic_files::{AbandonedWrites, abandon_writes};
pub(crate) use weights::Entry;
pub use weights::{FilePlace, Under, Weights, save};

#[cfg(target_endian = "big")]
compile_error!("safetensors are little-endian, and are read as they are");

/// An error of reading or writing a file of weights or a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file's contents are invalid.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem with the contents.
        reason: String,
    },
}

/// Writes a file atomically, as [`atomic_files::write_atomically`] does, with an error that names the file.
///
/// # Errors
/// The errors of that function.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    atomic_files::write_atomically(path, write).map_err(CheckpointError::io(path))
}

/// Checks that a file can be written, as [`atomic_files::check_writable`] does, with an error that names the file.
///
/// # Errors
/// The errors of that function.
pub fn check_writable(path: &Path) -> Result<(), CheckpointError> {
    atomic_files::check_writable(path).map_err(CheckpointError::io(path))
}

impl CheckpointError {
    /// Returns a function that adds the path to a system's error.
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }

    /// Makes the error of invalid contents.
    pub(crate) fn format(path: &Path, reason: impl ToString) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.to_string() }
    }
}
