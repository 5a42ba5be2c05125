//! The media that tiers are made of.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tenure_core::parse_bytes;

use crate::TierError;

/// The kind of memory that a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Ordinary memory, from any NUMA node.
    Dram,
    /// Memory of one NUMA node only.
    Node(u32),
    /// Persistent memory at a path: a DAX device (`/dev/dax0.0`); a folder on any file system, for a file that is gone
    /// when the tier is; or a new file's name, for a file that stays.
    Path(PathBuf),
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dram => f.write_str("dram"),
            Self::Node(node) => write!(f, "numa:{node}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Medium {
    /// Parses a medium and, if given, a capacity in bytes: `dram`, `numa:1@8GiB`, `/mnt/pmem@64GiB`. Units are `KiB`,
    /// `MiB`, `GiB` and `TiB`; a number without a unit is bytes.
    ///
    /// ```
    /// use tenure_tier::Medium;
    ///
    /// assert_eq!(Medium::with_capacity("numa:1@2MiB")?, (Medium::Node(1), Some(2 << 20)));
    /// assert_eq!(Medium::with_capacity("/dev/dax0.0")?, (Medium::Path("/dev/dax0.0".into()), None));
    /// assert!(Medium::with_capacity("numa:x").is_err());
    /// # Ok::<(), tenure_tier::TierError>(())
    /// ```
    ///
    /// # Errors
    /// [`TierError::Medium`] if the text is neither.
    pub fn with_capacity(text: &str) -> Result<(Self, Option<u64>), TierError> {
        match text.rsplit_once('@') {
            None => Ok((text.parse().map_err(|_| not_a_medium(text))?, None)),
            Some((medium, bytes)) => Ok((
                medium.parse().map_err(|_| not_a_medium(text))?,
                Some(parse_bytes(bytes.trim()).map_err(|_| not_a_medium(text))?),
            )),
        }
    }
}

impl FromStr for Medium {
    type Err = TierError;

    fn from_str(text: &str) -> Result<Self, TierError> {
        if let Some(node) = text.strip_prefix("numa:") {
            return node.parse().map(Self::Node).map_err(|_| not_a_medium(text));
        }
        match text {
            "dram" => Ok(Self::Dram),
            path if path.contains('/') => Ok(Self::Path(path.into())),
            _ => Err(not_a_medium(text)),
        }
    }
}

fn not_a_medium(text: &str) -> TierError {
    TierError::Medium { text: text.to_owned() }
}

/// The nature of an opened tier. Every output about the tier shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Volatile memory of any node.
    Dram,
    /// Volatile memory of one NUMA node.
    Node(u32),
    /// A DAX device.
    Device,
    /// A file on a file system that maps persistent memory directly.
    DaxFile,
    /// A file on any other file system. Its pages are DRAM, which the system writes to a disk at some time. It emulates
    /// persistent memory without its speed and persistence.
    Emulated {
        /// The kind of file system.
        file_system: String,
    },
}

impl Nature {
    /// Returns whether the tier only emulates persistent memory.
    pub fn is_emulated(&self) -> bool {
        matches!(self, Self::Emulated { .. })
    }
}

impl fmt::Display for Nature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dram => f.write_str("DRAM"),
            Self::Node(node) => write!(f, "DRAM of NUMA node {node}"),
            Self::Device => f.write_str("persistent memory, a DAX device"),
            Self::DaxFile => f.write_str("persistent memory, a file on a DAX file system"),
            Self::Emulated { file_system } => {
                write!(f, "EMULATED persistent memory, an ordinary file on {file_system}")
            }
        }
    }
}
