//! Settings, and the sizes that follow from them.

use crate::snapshot::Setting;
use crate::{AllocError, Divisions, PoolKind, rounding};

/// The smallest block in bytes; every block is a multiple of it.
pub(super) const MIN_BLOCK: u64 = rounding::GRANULE;
/// The largest request of the small pool, in bytes.
pub(super) const SMALL_LIMIT: u64 = 1 << 20;
/// The size in bytes of the small pool's segments and chunks.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// The size in bytes of segments that large requests share, and of the large pool's chunks.
pub(super) const LARGE_SEGMENT: u64 = 20 << 20;
/// The smallest request in bytes that gets a segment of its own size.
const OWN_SEGMENT: u64 = 10 << 20;
/// The unit in bytes of segments of their own size.
const SEGMENT_ROUNDING: u64 = 2 << 20;

/// Settings of a [`NativeAllocator`](super::NativeAllocator): PyTorch's `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NativeConfig {
    /// The device's number in snapshots.
    pub device: u32,
    /// The size in bytes from which blocks are neither split nor given to smaller requests; more than 20 MiB. `None`
    /// sets no limit.
    pub max_split_size: Option<u64>,
    /// The rounding of requests.
    pub roundup_power2_divisions: Divisions,
    /// The fraction (0 to 1) of the memory limit beyond which old cached segments are released before new ones are
    /// made. It applies only with a memory fraction set; 0 turns it off.
    pub garbage_collection_threshold: f64,
    /// Whether chunks are mapped into large reserved ranges, instead of making segments of fixed size.
    pub expandable_segments: bool,
}

impl NativeConfig {
    /// Returns the settings of PyTorch's `expandable_segments:True`.
    pub fn expandable() -> Self {
        Self { expandable_segments: true, ..Self::default() }
    }

    /// Refuses settings that make no sense over a backing of this granularity.
    pub(super) fn validate(&self, granularity: u64) -> Result<(), AllocError> {
        if self.expandable_segments && !SMALL_SEGMENT.is_multiple_of(granularity) {
            return Err(AllocError::invalid(
                "expandable_segments",
                true,
                "the backing's granularity must divide 2 MiB",
            ));
        }
        if let Some(bytes) = self.max_split_size
            && bytes <= LARGE_SEGMENT
        {
            return Err(AllocError::invalid("max_split_size", bytes, "it must be more than 20 MiB (20971520)"));
        }
        if !rounding::is_valid(&self.roundup_power2_divisions) {
            let value = format!("{:?}", self.roundup_power2_divisions);
            return Err(AllocError::invalid("roundup_power2_divisions", value, "each must be 0 or a power of two"));
        }
        let threshold = self.garbage_collection_threshold;
        if !(0.0..1.0).contains(&threshold) {
            return Err(AllocError::invalid(
                "garbage_collection_threshold",
                threshold,
                "it must be at least 0 and less than 1",
            ));
        }
        Ok(())
    }

    /// Returns the bytes of the block for a request.
    pub(super) fn round(&self, requested: u64) -> Result<u64, AllocError> {
        if requested > rounding::MAX_REQUEST {
            return Err(AllocError::TooLarge(requested));
        }
        Ok(rounding::round(requested, &self.roundup_power2_divisions))
    }

    /// Returns whether blocks of `bytes` are kept whole.
    pub(super) fn is_oversize(&self, bytes: u64) -> bool {
        self.max_split_size.is_some_and(|limit| bytes >= limit)
    }

    pub(super) fn describe(&self) -> Vec<(&'static str, Setting)> {
        vec![
            ("PYTORCH_CUDA_ALLOC_CONF", Setting::Text(String::new())),
            ("max_split_size", Setting::Integer(self.max_split_size.map_or(-1, signed))),
            ("garbage_collection_threshold", Setting::Number(self.garbage_collection_threshold)),
            ("expandable_segments", Setting::Flag(self.expandable_segments)),
            ("pinned_num_register_threads", Setting::Integer(1)),
            ("release_lock_on_cudamalloc", Setting::Flag(false)),
            ("pinned_use_cuda_host_register", Setting::Flag(false)),
            ("graph_capture_record_stream_reuse", Setting::Flag(false)),
            ("roundup_power2_divisions", self.describe_rounding()),
        ]
    }

    pub(crate) fn describe_rounding(&self) -> Setting {
        let divisions = self.roundup_power2_divisions.iter().enumerate();
        Setting::Table(divisions.map(|(i, &d)| ((1_u64 << i).to_string(), signed(d))).collect())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the pool that serves blocks of `bytes`.
pub(super) fn pool_kind(bytes: u64) -> PoolKind {
    if bytes <= SMALL_LIMIT { PoolKind::Small } else { PoolKind::Large }
}

/// Returns the bytes of the segment that is made for a block of `bytes`.
pub(super) fn segment_size(bytes: u64) -> u64 {
    if bytes <= SMALL_LIMIT {
        SMALL_SEGMENT
    } else if bytes < OWN_SEGMENT {
        LARGE_SEGMENT
    } else {
        bytes.next_multiple_of(SEGMENT_ROUNDING)
    }
}

/// Returns the bytes of the chunks of a pool with expandable segments.
pub(super) fn chunk_size(kind: PoolKind) -> u64 {
    match kind {
        PoolKind::Small => SMALL_SEGMENT,
        PoolKind::Large => LARGE_SEGMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_to_512_bytes() {
        let config = NativeConfig::default();
        assert_eq!([1, 511, 512, 513, 1 << 20].map(|n| config.round(n).unwrap()), [512, 512, 512, 1024, 1 << 20]);
        assert_eq!(config.round(u64::MAX), Err(AllocError::TooLarge(u64::MAX)));
    }

    #[test]
    fn sizes_round_to_steps_between_powers_of_two() {
        let config = NativeConfig { roundup_power2_divisions: [4; 16], ..NativeConfig::default() };
        // With divisions of at most 512 bytes, sizes still round to 512.
        assert_eq!([1200, 2048, 2049].map(|n| config.round(n).unwrap()), [1536, 2048, 2560]);
        let mib = 1 << 20;
        assert_eq!([4 * mib + 1, 5 * mib, 7 * mib + 1].map(|n| config.round(n).unwrap()), [5 * mib, 5 * mib, 8 * mib]);
    }

    #[test]
    fn divisions_are_chosen_by_size_class() {
        let mut divisions = [0; 16];
        divisions[3] = 2;
        let config = NativeConfig { roundup_power2_divisions: divisions, ..NativeConfig::default() };
        let mib = 1 << 20;
        assert_eq!(config.round(7 * mib + 1).unwrap(), 7 * mib + 512);
        assert_eq!(config.round(8 * mib + 1).unwrap(), 12 * mib);
        assert_eq!(config.round(16 * mib + 1).unwrap(), 16 * mib + 512);
    }

    #[test]
    fn segments_are_2_mib_20_mib_or_the_request_rounded_to_2_mib() {
        let mib = 1 << 20;
        assert_eq!(
            [512, mib, mib + 512, 10 * mib - 512, 10 * mib, 31 * mib].map(segment_size),
            [2 * mib, 2 * mib, 20 * mib, 20 * mib, 10 * mib, 32 * mib]
        );
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let small = NativeConfig { max_split_size: Some(LARGE_SEGMENT), ..NativeConfig::default() };
        let odd = NativeConfig { roundup_power2_divisions: [3; 16], ..NativeConfig::default() };
        let full = NativeConfig { garbage_collection_threshold: 1.0, ..NativeConfig::default() };
        for config in [small, odd, full] {
            assert!(matches!(config.validate(SMALL_SEGMENT), Err(AllocError::InvalidSetting { .. })));
        }
    }
}
