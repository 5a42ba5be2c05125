use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tenure_alloc::native::{Config, NativeAllocator};
use tenure_alloc::{AllocError, Backing, CachingAllocator, PagedAllocator, paged};
use tenure_plan::Trace;

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

    /// A fresh allocator for `trace`.
    pub(super) fn build(
        self,
        trace: &Trace,
        backing: Arc<dyn Backing>,
    ) -> Result<Box<dyn CachingAllocator>, AllocError> {
        Ok(match self {
            Self::Native => Box::new(NativeAllocator::new(backing, pytorch_config(trace, false))?),
            Self::Expandable => Box::new(NativeAllocator::new(backing, pytorch_config(trace, true))?),
            Self::Paged => {
                let config = paged::Config { device: trace.device(), ..paged::Config::default() };
                Box::new(PagedAllocator::new(backing, config)?)
            }
        })
    }
}

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// PyTorch's allocator as it was set up when `trace` was recorded.
fn pytorch_config(trace: &Trace, expandable_segments: bool) -> Config {
    let settings = trace.settings();
    Config {
        device: trace.device(),
        max_split_size: settings.max_split_size_bytes,
        roundup_power2_divisions: settings.roundup_power2_divisions.map(u64::from),
        garbage_collection_threshold: settings.garbage_collection_threshold,
        expandable_segments,
    }
}
