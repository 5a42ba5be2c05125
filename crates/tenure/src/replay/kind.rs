use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tenure_alloc::native::{Config, NativeAllocator};
use tenure_alloc::{AllocError, Backing, CachingAllocator, PagedAllocator, paged};
use tenure_plan::Settings;

/// An allocator to replay a trace on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AllocatorKind {
    /// PyTorch's default, with the settings of the recording.
    Native,
    /// PyTorch's `expandable_segments:True`, with the settings of the recording.
    Expandable,
    /// Tenure's own.
    Paged,
}

impl AllocatorKind {
    /// Every kind, the one to beat first.
    pub const ALL: &[Self] = &[Self::Native, Self::Expandable, Self::Paged];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Expandable => "expandable",
            Self::Paged => "paged",
        }
    }

    /// A fresh allocator of device number `device`; PyTorch's are set up as `settings` say.
    pub(crate) fn build(
        self,
        settings: &Settings,
        device: u32,
        backing: Arc<dyn Backing>,
    ) -> Result<Box<dyn CachingAllocator>, AllocError> {
        let native = |expandable_segments| {
            let config = Config { device, expandable_segments, ..pytorch_config(settings) };
            Ok(Box::new(NativeAllocator::new(Arc::clone(&backing), config)?) as Box<dyn CachingAllocator>)
        };
        match self {
            Self::Native => native(false),
            Self::Expandable => native(true),
            Self::Paged => {
                let config = paged::Config { device, ..paged::Config::default() };
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

/// PyTorch's allocator as `settings` say, but for what is known elsewhere.
fn pytorch_config(settings: &Settings) -> Config {
    Config {
        max_split_size: settings.max_split_size_bytes,
        roundup_power2_divisions: settings.roundup_power2_divisions.map(u64::from),
        garbage_collection_threshold: settings.garbage_collection_threshold,
        ..Config::default()
    }
}
