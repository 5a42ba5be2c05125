use std::io;
use std::path::PathBuf;

/// Why a tier or a placement could not be opened. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// What a tier is to be made of was not understood.
    #[error(
        "{text:?} is no tier: it is dram, numa:N, or a path, then @BYTES if it is to be limited, as in /mnt/pmem@64GiB"
    )]
    Medium {
        /// What was given.
        text: String,
    },
    /// The system has no such node.
    #[error("there is no NUMA node {node}: this system has {online}")]
    NoNode {
        /// The node asked for.
        node: u32,
        /// Those there are.
        online: String,
    },
    /// A file has no size of its own.
    #[error("{}: how many bytes of it are to be used must be said, as in PATH@64GiB", path.display())]
    NoCapacity {
        /// The path.
        path: PathBuf,
    },
    /// Less than one unit.
    #[error("{what}: {capacity} bytes are less than its smallest unit of {alignment}")]
    TooSmall {
        /// The tier's medium.
        what: String,
        /// Bytes asked for.
        capacity: u64,
        /// Bytes of a unit.
        alignment: u64,
    },
    /// More than the device has.
    #[error("{what} has {available} bytes, and {capacity} are asked for")]
    TooLarge {
        /// The tier's medium.
        what: String,
        /// Bytes asked for.
        capacity: u64,
        /// Bytes there are.
        available: u64,
    },
    /// Files have to be somewhere.
    #[error("no folder is given for files: name one, on a disk that has room")]
    NoFolder,
    /// It would be overwritten.
    #[error("{}: a file is there already, and is not overwritten: remove it, or name its folder", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Some device, but not of memory.
    #[error("{}: neither a DAX device nor a folder, and no file can be made there", path.display())]
    NotMemory {
        /// The path.
        path: PathBuf,
    },
    /// The file system is too full.
    #[error("{}: the file system has {available} bytes free, and {capacity} are asked for", path.display())]
    NoRoom {
        /// The path.
        path: PathBuf,
        /// Bytes asked for.
        capacity: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// A file is shorter than what is in it.
    #[error("{}: it has {bytes} bytes, and {needed} are needed: it was cut, or is not complete", path.display())]
    Cut {
        /// The path.
        path: PathBuf,
        /// Bytes that it should have at least.
        needed: u64,
        /// Bytes that it has.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("{what}: {call} failed: {source}")]
    System {
        /// The tier's medium.
        what: String,
        /// The call.
        call: &'static str,
        /// Its words.
        source: io::Error,
    },
    /// Tiers of a mapping and tiers that were opened are not the same.
    #[error("the mapping has the tiers {mapped:?}, and {opened:?} were opened: open one for each, by its name")]
    Tiers {
        /// Names in the mapping.
        mapped: Vec<String>,
        /// Names of those that were opened.
        opened: Vec<String>,
    },
    /// Keys of a mapping were not met, and are to be.
    #[error(
        "{count} keys of the mapping never came, such as {first:?}: the program is not the one that it was made of"
    )]
    NeverCame {
        /// How many.
        count: usize,
        /// One of them.
        first: String,
    },
    /// No times of kernels.
    #[error(
        "kernels were not measured: {reason}: measure a problem that was recorded of this program, and begin each iteration"
    )]
    NotMeasured {
        /// Why.
        reason: String,
    },
}
