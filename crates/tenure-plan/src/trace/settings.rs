use super::TraceError;

/// How PyTorch's allocator was set up (`allocator_settings` of a snapshot), so that a replay can do the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// Blocks of at least this many bytes are never split; `None` is no limit.
    pub max_split_size_bytes: Option<u64>,
    /// Share of the allowed memory above which unused blocks are given back, 0 to 1; 0 is off.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// For sizes from 2^i MiB to the next power of two: into how many steps they are rounded; 0 and 1 are off. The
    /// first entry is also for smaller sizes, the last for larger ones.
    pub roundup_power2_divisions: [u32; Self::ROUNDUP_INTERVALS],
}

impl Settings {
    /// Intervals between powers of two that have a number of divisions each.
    pub const ROUNDUP_INTERVALS: usize = 16;

    /// The settings make sense: the threshold is a share.
    pub(super) fn validate(&self) -> Result<(), TraceError> {
        let threshold = self.garbage_collection_threshold;
        if (0.0..=1.0).contains(&threshold) {
            return Ok(());
        }
        Err(TraceError::Snapshot { reason: format!("garbage_collection_threshold is {threshold}, not from 0 to 1") })
    }
}

impl Default for Settings {
    /// PyTorch's defaults.
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
