use std::io;
use std::path::PathBuf;

/// Why a repository or one of its models cannot be read. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// Its words.
        source: io::Error,
    },
    /// A folder's name is no model's.
    #[error("{name:?} is no model's name: use 1 to 128 letters of ASCII, digits, '.', '_' and '-', and no '.' first")]
    Name {
        /// The name.
        name: String,
    },
    /// Something else than a file.
    #[error("{}: not a file", .path.display())]
    NotAFile {
        /// What it is read as.
        path: PathBuf,
    },
    /// More text than a configuration has.
    #[error("{}: longer than {limit} bytes", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it may have.
        limit: u64,
    },
    /// It is not TOML, or a value is not what its key takes.
    #[error("{}:{line}: {message}: {text:?}", .path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        message: String,
        /// The line, or its start.
        text: String,
    },
    /// It is not the JSON that it should be.
    #[error("{}: {message}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and in which line.
        message: String,
    },
    /// A value that others or the folder forbid.
    #[error("{}: {key} {given}: {allowed}", .path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is there.
        given: String,
        /// What may be.
        allowed: &'static str,
    },
    /// A setting of a sentence encoder with which its vectors would be others than those computed here.
    #[error(transparent)]
    Encoder(#[from] tenure_nn::Error),
    /// A link out of the repository.
    #[error(
        "{}: leads to {}, out of the repository: copy the file, or make the model's folder the link",
        .path.display(), .target.display()
    )]
    Outside {
        /// The file.
        path: PathBuf,
        /// Where it is.
        target: PathBuf,
    },
}

impl RepositoryError {
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
