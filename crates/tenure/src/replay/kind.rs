//! The kinds of allocators on which a trace can be replayed.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tenure_alloc::{AllocError, Backing, CachingAllocator, NativeAllocator, NativeConfig, PagedAllocator, PagedConfig};
use tenure_plan::Settings;

/// An allocator to replay a trace on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AllocatorKind {
    /// PyTorch's default allocator, with the settings of the recording.
    Native,
    /// PyTorch's allocator with `expandable_segments:True`, and the settings of the recording.
    Expandable,
    /// Tenure's own allocator.
    Paged,
}

impl AllocatorKind {
    /// Every kind, the baseline first.
    pub const ALL: &[Self] = &[Self::Native, Self::Expandable, Self::Paged];

    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Expandable => "expandable",
            Self::Paged => "paged",
        }
    }

    /// Makes a new allocator of device number `device`; PyTorch's allocators are configured by `settings`.
    pub(crate) fn build(
        self,
        settings: &Settings,
        device: u32,
        backing: Arc<dyn Backing>,
    ) -> Result<Box<dyn CachingAllocator>, AllocError> {
        let native = |expandable_segments| {
            let config = NativeConfig { device, expandable_segments, ..pytorch_config(settings) };
            Ok(Box::new(NativeAllocator::new(Arc::clone(&backing), config)?) as Box<dyn CachingAllocator>)
        };
        match self {
            Self::Native => native(false),
            Self::Expandable => native(true),
            Self::Paged => {
                let config = PagedConfig { device, ..PagedConfig::default() };
                Ok(Box::new(PagedAllocator::new(backing, config)?))
            }
        }
    }
}

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the configuration of PyTorch's allocator for `settings`, without the parts that the caller sets.
fn pytorch_config(settings: &Settings) -> NativeConfig {
    NativeConfig {
        max_split_size: settings.max_split_size_bytes,
        roundup_power2_divisions: settings.roundup_power2_divisions.map(u64::from),
        garbage_collection_threshold: settings.garbage_collection_threshold,
        ..NativeConfig::default()
    }
}
