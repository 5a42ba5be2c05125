//! Data sets, the loader that reads them ahead, and the file formats that they come from.

mod collate;
mod idx;
mod images;
mod loader;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_tensor::TensorError;

pub use collate::{Collate, Tensors};
pub use idx::{FashionMnist, Idx};
pub use images::{ImageFolder, ImageOptions, LeftOut};
pub(crate) use loader::Part;
pub use loader::{DataLoader, Epoch, LoaderOptions};
pub use text::TextWindows;

/// The result of the data readers.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// A data set: numbered examples that any thread can read.
pub trait Dataset: Send + Sync {
    /// One example.
    type Item: Collate;

    /// Returns the number of examples.
    fn len(&self) -> usize;

    /// Returns whether there is no example.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the example `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    /// The example cannot be read.
    fn item(&self, index: usize) -> Result<Self::Item>;

    /// Reads an example in an epoch. For data that differ from epoch to epoch, such as randomly cropped images. The
    /// result must depend on the epoch and the index alone, so that an interrupted run continues with the same data.
    ///
    /// # Errors
    /// The example cannot be read.
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

/// The reason why data could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The contents of the file or folder are invalid.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file or folder.
        path: PathBuf,
        /// The problem with the contents.
        reason: String,
    },
    /// A file's bytes are invalid.
    #[error("{0}")]
    Bytes(String),
    /// The examples do not fit together, or there is no memory.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A worker of a loader panicked.
    #[error("a worker of the data loader panicked while it read batch {batch}: {message}")]
    Panicked {
        /// The batch.
        batch: usize,
        /// The panic's message.
        message: String,
    },
    /// An error of a data set outside of this crate.
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

/// Some examples of a data set in a given order, such as a held-out set. PyTorch's `Subset`.
pub struct Subset<D> {
    dataset: Arc<D>,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// Makes the subset of the examples with these numbers.
    pub fn new(dataset: Arc<D>, indices: impl IntoIterator<Item = usize>) -> Self {
        Self { dataset, indices: indices.into_iter().collect() }
    }

    /// Returns the number, in the whole data set, of the subset's example `index`.
    fn index(&self, index: usize) -> Result<usize> {
        Ok(*self.indices.get(index).ok_or(TensorError::Index {
            op: "item",
            index: index as i64,
            dim: 0,
            size: self.indices.len(),
        })?)
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn item(&self, index: usize) -> Result<D::Item> {
        self.dataset.item(self.index(index)?)
    }

    fn item_of_epoch(&self, index: usize, epoch: u64) -> Result<D::Item> {
        self.dataset.item_of_epoch(self.index(index)?, epoch)
    }
}
