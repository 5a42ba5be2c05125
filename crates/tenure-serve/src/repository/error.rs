//! Errors of a model repository.

use std::io;
use std::path::PathBuf;

/// The reason why a repository or one of its models cannot be read. The text is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The system refused to read a file or folder.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A folder's name cannot be a model's name.
    #[error(
        "invalid model name {name:?}: use 1 to 128 ASCII letters, digits, '.', '_' and '-', and do not begin with '.'"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A path does not lead to a regular file.
    #[error("{}: not a file", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A text file is longer than allowed.
    #[error("{}: longer than {limit} bytes", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file is not TOML, or a value does not fit its key.
    #[error("{}:{line}: {message}: {text:?}", .path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The line number, counted from 1.
        line: usize,
        /// The error.
        message: String,
        /// The line, or its start.
        text: String,
    },
    /// The JSON is invalid or has another form.
    #[error("{}: {message}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The error, with its line.
        message: String,
    },
    /// A value contradicts other values or the folder.
    #[error("{}: {key} {given}: {allowed}", .path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value that was given.
        given: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A setting of a sentence encoder would give other vectors than the server computes.
    #[error(transparent)]
    Encoder(#[from] tenure_nn::Error),
    /// A link leads out of the repository.
    #[error(
        "{}: leads to {}, out of the repository: copy the file, or make the model's folder the link",
        .path.display(), .target.display()
    )]
    Outside {
        /// The link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
}

impl RepositoryError {
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
