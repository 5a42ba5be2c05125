use std::io;
use std::path::PathBuf;

/// Why bytes did not get to a disk, or back. Always one line, which names the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// There is no room.
    #[error("{name}: {bytes} bytes do not fit on disk in {folders}: {free} of {capacity} are free; give the tier more")]
    Full {
        /// The tensor.
        name: String,
        /// Where the files are.
        folders: String,
        /// Its bytes, in whole blocks.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes in all.
        capacity: u64,
    },
    /// As much was written in a day as is allowed.
    #[error("{name}: {limit} bytes may be written in a day, and this would be more: allow more, or wait")]
    Worn {
        /// The tensor.
        name: String,
        /// Bytes a day.
        limit: u64,
    },
    /// The disk refused.
    #[error("{name}: {call} in {} failed at byte {offset}: {source}", folder.display())]
    Io {
        /// The tensor.
        name: String,
        /// What was tried.
        call: &'static str,
        /// Where the file is.
        folder: PathBuf,
        /// The byte of the file.
        offset: u64,
        /// The system's words.
        source: io::Error,
    },
    /// What came back is not what went out.
    #[error(
        "{name}: bytes came back changed from {}, at byte {offset}: the disk or its memory fails; spill elsewhere",
        folder.display()
    )]
    Changed {
        /// The tensor.
        name: String,
        /// Where the file is.
        folder: PathBuf,
        /// The byte of the file.
        offset: u64,
    },
    /// The threads that would do it are the parent's.
    #[error("{name}: a forked process has no disks of its parent's: open them in it, or start it otherwise")]
    Forked {
        /// The tensor.
        name: String,
    },
    /// A buffer of another size.
    #[error("{name}: it has {bytes} bytes, and is read into {given}")]
    Size {
        /// The tensor.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the buffer.
        given: u64,
    },
}
