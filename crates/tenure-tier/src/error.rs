//! The error of tiers and placements.

use std::path::PathBuf;
use std::{fmt, io};

/// The reason why a tier or a placement could not be opened or used. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The text does not name a medium.
    #[error(
        "{text:?} is not a tier: it is dram, numa:N, or a path, then @BYTES if it is to be limited, as in /mnt/pmem@64GiB"
    )]
    Medium {
        /// The given text.
        text: String,
    },
    /// The system has no such NUMA node.
    #[error("there is no NUMA node {node}: this system has {online}")]
    NoNode {
        /// The requested node.
        node: u32,
        /// The nodes that are online.
        online: String,
    },
    /// A file or folder has no size of its own, so its capacity must be given.
    #[error("{}: how many bytes of it are to be used must be said, as in PATH@64GiB", path.display())]
    NoCapacity {
        /// The path.
        path: PathBuf,
    },
    /// The capacity is less than one unit.
    #[error("{what}: {capacity} bytes are less than its smallest unit of {alignment}")]
    TooSmall {
        /// The tier's medium.
        what: String,
        /// The requested bytes.
        capacity: u64,
        /// The bytes of a unit.
        alignment: u64,
    },
    /// The capacity is more than the device has.
    #[error("{what} has {available} bytes, and {capacity} are asked for")]
    TooLarge {
        /// The tier's medium.
        what: String,
        /// The requested bytes.
        capacity: u64,
        /// The bytes of the device.
        available: u64,
    },
    /// No folder was given for files.
    #[error("no folder is given for files: name one, on a disk that has room")]
    NoFolder,
    /// The file exists, and would be overwritten.
    #[error("{}: a file is there already, and is not overwritten: remove it, or name its folder", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The path is neither memory nor a place for a file.
    #[error("{}: neither a DAX device nor a folder, and no file can be made there", path.display())]
    NotMemory {
        /// The path.
        path: PathBuf,
    },
    /// The file system has too little room.
    #[error("{}: the file system has {available} bytes free, and {capacity} are asked for", path.display())]
    NoRoom {
        /// The path.
        path: PathBuf,
        /// The requested bytes.
        capacity: u64,
        /// The free bytes.
        available: u64,
    },
    /// A file is shorter than its contents require.
    #[error("{}: it has {bytes} bytes, and {needed} are needed: it was cut, or is not complete", path.display())]
    Cut {
        /// The path.
        path: PathBuf,
        /// The bytes that it should have at least.
        needed: u64,
        /// The bytes that it has.
        bytes: u64,
    },
    /// The operating system returned an error.
    #[error("{what}: {call} failed: {source}")]
    System {
        /// The tier's medium.
        what: String,
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The tiers that were opened are not those of the mapping.
    #[error("the mapping has the tiers {mapped:?}, and {opened:?} were opened: open one for each, by its name")]
    Tiers {
        /// The tiers' names in the mapping.
        mapped: Vec<String>,
        /// The names of the opened tiers.
        opened: Vec<String>,
    },
    /// No allocation had some keys of the mapping, though all are required.
    #[error(
        "{count} keys of the mapping never came, such as {first:?}: the program is not the one that it was made of"
    )]
    NeverCame {
        /// The number of such keys.
        count: usize,
        /// One of them.
        first: String,
    },
    /// No kernel times were measured.
    #[error(
        "kernels were not measured: {reason}: measure a problem that was recorded of this program, and begin each iteration"
    )]
    NotMeasured {
        /// The reason.
        reason: String,
    },
}

impl TierError {
    /// Returns a function that makes the error of a failed system call for `what`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl fmt::Display, call: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what: what.to_string(), call, source: error.into() }
    }
}
