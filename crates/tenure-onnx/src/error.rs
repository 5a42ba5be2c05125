//! Errors of an export.

use std::io;
use std::path::PathBuf;

use tenure_tensor::TensorError;

/// The reason why a function cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation has no counterpart in ONNX, or not with these arguments, and is not composed of operations that
    /// have one.
    #[error("ONNX export of the operation {operation}{at}: {reason}")]
    Operation {
        /// The operation.
        operation: &'static str,
        /// The place of the call: empty, or " at " and the place.
        at: String,
        /// The reason, and an advice.
        reason: String,
    },
    /// A tensor cannot be exported.
    #[error("ONNX export: {0}")]
    Value(String),
    /// The options, the inputs or the function as a whole cannot be exported.
    #[error("ONNX export: {0}")]
    Function(String),
    /// The function failed, or a tensor cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// The result of a part of an export.
pub type Result<T, E = Error> = std::result::Result<T, E>;
