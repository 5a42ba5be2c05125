//! Whether a GPU could reach disks itself.

use std::path::Path;
use std::{fmt, fs};

/// What the kernel's module for it tells of itself.
const MODULE: &str = "/proc/driver/nvidia-fs/version";

/// NVIDIA's GPUDirect Storage. Without its kernel module the library copies through the host's memory too, so nothing is won
/// by calling it; with it, it is told and not used: what lies on a disk has a checksum and may be encoded, which is made in
/// that memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuDirect {
    /// There is no such module.
    Absent,
    /// There is one.
    Active {
        /// What it says of itself.
        version: String,
    },
}

impl GpuDirect {
    /// Looks at this machine.
    pub fn probe() -> Self {
        Self::at(Path::new(MODULE))
    }

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
    fn what_the_kernel_says_of_the_module_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("version");
        assert_eq!(GpuDirect::at(&module), GpuDirect::Absent);
        fs::write(&module, "GDS Version: 1.15\nNVFS 2.26\n").unwrap();
        let said = GpuDirect::at(&module).to_string();
        assert_eq!(said, "GPUDirect Storage is there and not used (GDS Version: 1.15, NVFS 2.26)");
    }
}
