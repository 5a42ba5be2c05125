//! Settings of a process's memory on a device.

use std::str::FromStr;

use tenure_alloc::{NativeConfig, PagedConfig};

use super::MemoryError;

/// Settings of a process's memory on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// The allocator and its settings. The device's number is filled in.
    pub policy: AllocatorPolicy,
    /// The largest share of the device, from 0 to 1, that this process may hold.
    pub fraction: f64,
}

/// An allocator and its settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AllocatorPolicy {
    /// Tenure's allocator.
    Paged(PagedConfig),
    /// PyTorch's allocator, with expandable segments if its settings say so.
    Native(NativeConfig),
}

impl Default for MemoryConfig {
    /// Returns Tenure's allocator, and the whole device.
    fn default() -> Self {
        Self { policy: AllocatorPolicy::default(), fraction: 1.0 }
    }
}

impl Default for AllocatorPolicy {
    fn default() -> Self {
        Self::Paged(PagedConfig::default())
    }
}

/// Parses a policy's name, `paged`, `native` or `expandable`, and gives it default settings.
impl FromStr for AllocatorPolicy {
    type Err = MemoryError;

    fn from_str(name: &str) -> Result<Self, MemoryError> {
        match name {
            "paged" => Ok(Self::default()),
            "native" => Ok(Self::Native(NativeConfig::default())),
            "expandable" => Ok(Self::Native(NativeConfig::expandable())),
            _ => Err(MemoryError::UnknownPolicy { name: name.to_owned() }),
        }
    }
}
