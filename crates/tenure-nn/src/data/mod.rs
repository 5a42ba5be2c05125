//! Data sets, how they are read ahead, and the files they come from.

mod collate;
mod idx;
mod images;
mod loader;
mod subset;
mod text;

use std::path::{Path, PathBuf};

pub use collate::{Collate, Tensors};
pub use idx::{FashionMnist, Idx};
pub use images::{ImageFolder, ImageOptions, LeftOut};
pub(crate) use loader::Part;
pub use loader::{DataLoader, Epoch, LoaderOptions};
pub use subset::Subset;
use tenure_tensor::TensorError;
pub use text::TextWindows;

/// What the readers return.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// Examples by number, that any thread can read.
pub trait Dataset: Send + Sync {
    /// One example.
    type Item: Collate;

    /// Number of examples.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    /// It cannot be read.
    fn item(&self, index: usize) -> Result<Self::Item>;

    /// The same in an epoch, for data that differ from epoch to epoch, such as pictures that are cut out at random: by the
    /// epoch and the index alone, so that a run that was interrupted goes on with the same.
    ///
    /// # Errors
    /// It cannot be read.
    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<Self::Item> {
        let _ = epoch;
        self.item(index)
    }
}

impl<D: Dataset + ?Sized> Dataset for Box<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn item(&self, index: usize) -> Result<Self::Item> {
        (**self).item(index)
    }

    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<Self::Item> {
        (**self).item_of_epoch(index, epoch)
    }
}

/// Why data could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file's bytes are not what they should be.
    #[error("{0}")]
    Bytes(String),
    /// Examples that do not go together, or no memory.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A worker of a loader panicked.
    #[error("a worker of the data loader panicked while it read batch {batch}: {message}")]
    Panicked {
        /// The batch.
        batch: usize,
        /// What it said.
        message: String,
    },
    /// Said by a data set outside of this crate.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl DataError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    fn format(path: &Path, reason: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.into() }
    }
}
