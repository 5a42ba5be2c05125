//! Detection of GPUDirect Storage, by which a GPU can access disks directly.

use std::path::Path;
use std::{fmt, fs};

/// The file in which the kernel module reports its version.
const MODULE: &str = "/proc/driver/nvidia-fs/version";

/// Whether NVIDIA's GPUDirect Storage is available on this machine. Tenure reports it and does not use it. Without its
/// kernel module the library copies through host memory too, so calling it gains nothing. With the module it would not
/// help either: bytes on a disk have a checksum and may be encoded, and both are computed in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuDirect {
    /// The kernel module is not loaded.
    Absent,
    /// The kernel module is loaded.
    Active {
        /// The version that it reports.
        version: String,
    },
}

impl GpuDirect {
    /// Returns whether this machine has the kernel module loaded.
    pub fn probe() -> Self {
        Self::at(Path::new(MODULE))
    }

    /// Reads the module's version from a file.
    fn at(module: &Path) -> Self {
        match fs::read_to_string(module) {
            Ok(version) => Self::Active { version: version.trim().replace('\n', ", ") },
            Err(_) => Self::Absent,
        }
    }
}

impl fmt::Display for GpuDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no GPUDirect Storage (nvidia-fs is not loaded)"),
            Self::Active { version } => write!(f, "GPUDirect Storage is there and not used ({version})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_module_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("version");
        assert_eq!(GpuDirect::at(&module), GpuDirect::Absent);
        fs::write(&module, "GDS Version: 1.15\nNVFS 2.26\n").unwrap();
        let said = GpuDirect::at(&module).to_string();
        assert_eq!(said, "GPUDirect Storage is there and not used (GDS Version: 1.15, NVFS 2.26)");
    }
}
