//! Weights and whole training runs in safetensors files.

mod atomic;
mod run;
mod weights;

use std::path::{Path, PathBuf};

pub use atomic::{abandon_writes, check_writable, write_atomically};
pub use run::{Checkpoint, Progress};
pub(crate) use weights::Entry;
pub use weights::{Place, Under, Weights, save};

#[cfg(target_endian = "big")]
compile_error!("safetensors are little-endian, and are read as they are");

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl CheckpointError {
    pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }

    pub(crate) fn format(path: &Path, reason: impl ToString) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.to_string() }
    }
}
