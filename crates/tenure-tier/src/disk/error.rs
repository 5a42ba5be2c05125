//! The error of a disk tier.

use std::io;
use std::path::PathBuf;

/// The reason why bytes did not get to a disk or back. Its message is one line, which names the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The files have no room for the bytes.
    #[error("{name}: {bytes} bytes do not fit on disk in {folders}: {free} of {capacity} are free; give the tier more")]
    Full {
        /// The tensor.
        name: String,
        /// The folders of the files.
        folders: String,
        /// Its bytes, in whole blocks.
        bytes: u64,
        /// Free bytes.
        free: u64,
        /// The capacity in bytes.
        capacity: u64,
    },
    /// The write would exceed the daily limit.
    #[error("{name}: {limit} bytes may be written in a day, and this would be more: allow more, or wait")]
    Worn {
        /// The tensor.
        name: String,
        /// The limit in bytes per day.
        limit: u64,
    },
    /// The disk returned an error.
    #[error("{name}: {call} in {} failed at byte {offset}: {source}", folder.display())]
    Io {
        /// The tensor.
        name: String,
        /// The operation: reading or writing.
        call: &'static str,
        /// The folder of the file.
        folder: PathBuf,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes read differ from the bytes written: their checksum does not match, or they cannot be decoded.
    #[error(
        "{name}: bytes came back changed from {}, at byte {offset}: the disk or its memory fails; spill elsewhere",
        folder.display()
    )]
    Changed {
        /// The tensor.
        name: String,
        /// The folder of the file.
        folder: PathBuf,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// This process is a forked child, and the disk's threads run in its parent only.
    #[error("{name}: a forked process has no disks of its parent's: open them in it, or start it otherwise")]
    Forked {
        /// The tensor.
        name: String,
    },
    /// The buffer to read into has another size than the bytes on disk.
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
