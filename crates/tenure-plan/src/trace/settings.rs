//! The allocator settings of a recorded program.

use std::sync::Arc;

use super::TraceError;

/// The settings of PyTorch's allocator (`allocator_settings` of a snapshot), so that a replay can use the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// Blocks of at least this many bytes are never split; `None` is no limit.
    pub max_split_size_bytes: Option<u64>,
    /// The share of the allowed memory above which unused blocks are released, 0 to 1; 0 is off.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// For sizes from 2^i MiB to the next power of two: the number of steps to which they are rounded; 0 and 1 are off.
    /// The first entry also covers smaller sizes, the last larger ones.
    pub roundup_power2_divisions: [u32; Self::ROUNDUP_INTERVALS],
}

impl Settings {
    /// The number of intervals between powers of two that have their own number of divisions.
    pub const ROUNDUP_INTERVALS: usize = 16;

    /// Checks that the threshold is a share.
    pub(super) fn validate(&self) -> Result<(), TraceError> {
        let threshold = self.garbage_collection_threshold;
        if (0.0..=1.0).contains(&threshold) {
            return Ok(());
        }
        Err(TraceError::Snapshot { reason: format!("garbage_collection_threshold is {threshold}, not from 0 to 1") })
    }
}

/// The value of a setting that only a conversion needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OtherSetting {
    Flag(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
}

impl Default for Settings {
    /// Returns PyTorch's defaults.
    fn default() -> Self {
        Self {
            conf: String::new(),
            max_split_size_bytes: None,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            roundup_power2_divisions: [0; Self::ROUNDUP_INTERVALS],
        }
    }
}
