use std::str::FromStr;

use tenure_alloc::{native, paged};

use super::MemoryError;

/// How a process's memory on a device behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Which allocator, and its settings. The device's number is filled in.
    pub policy: Policy,
    /// The part of the device, 0 to 1, that this process may hold.
    pub fraction: f64,
}

/// An allocator and its settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Policy {
    /// Tenure's own.
    Paged(paged::Config),
    /// PyTorch's, with expandable segments if its settings say so.
    Native(native::Config),
}

impl Default for MemoryConfig {
    /// Tenure's allocator, and the whole device.
    fn default() -> Self {
        Self { policy: Policy::default(), fraction: 1.0 }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::Paged(paged::Config::default())
    }
}

/// By name, with default settings: `paged`, `native` or `expandable`.
impl FromStr for Policy {
    type Err = MemoryError;

    fn from_str(name: &str) -> Result<Self, MemoryError> {
        match name {
            "paged" => Ok(Self::default()),
            "native" => Ok(Self::Native(native::Config::default())),
            "expandable" => Ok(Self::Native(native::Config::expandable())),
            _ => Err(MemoryError::UnknownPolicy { name: name.to_owned() }),
        }
    }
}
