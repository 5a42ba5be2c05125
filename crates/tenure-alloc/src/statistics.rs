//! [`Statistics`]: the counters of an allocator.

use std::collections::BTreeMap;

use tenure_core::Tag;

use crate::PoolId;

/// A number that changes over time. PyTorch's `Stat` (c10/core/CachingDeviceAllocator.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The current value.
    pub current: u64,
    /// The highest `current` since the last [`reset_peak`](Self::reset_peak).
    pub peak: u64,
    /// The sum of all increases since the last [`reset_accumulated`](Self::reset_accumulated).
    pub allocated: u64,
    /// The sum of all decreases since the last [`reset_accumulated`](Self::reset_accumulated).
    pub freed: u64,
}

impl Stat {
    /// Increases the value by `amount`.
    #[inline]
    pub fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.allocated += amount;
    }

    /// Decreases the value by `amount`.
    #[inline]
    pub fn decrease(&mut self, amount: u64) {
        debug_assert!(self.current >= amount, "a figure of {} is decreased by {amount}", self.current);
        self.current -= amount;
        self.freed += amount;
    }

    /// Increases or decreases the value to `value`.
    pub fn set(&mut self, value: u64) {
        self.replace(self.current, value);
    }

    /// Replaces a part of the value, `before`, by `after`, in one step so that the peak is right.
    pub(crate) fn replace(&mut self, before: u64, after: u64) {
        self.increase(after.saturating_sub(before));
        self.decrease(before.saturating_sub(after));
    }

    /// Sets the peak to the current value.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Sets the sums of increases and decreases to zero.
    pub fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }

    fn merge(&mut self, other: &Self) {
        self.current += other.current;
        self.peak += other.peak;
        self.allocated += other.allocated;
        self.freed += other.freed;
    }
}

/// The one of PyTorch's two pools that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// Requests up to 1 MiB.
    Small,
    /// Larger requests.
    Large,
}

/// The statistics of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Blocks allocated and not freed.
    pub allocation: Stat,
    /// Segments held from the backing.
    pub segment: Stat,
    /// Blocks allocated, or freed and still awaited on another stream.
    pub active: Stat,
    /// Free blocks that cannot be released because the rest of their segment is in use.
    pub inactive_split: Stat,
    /// Bytes of the blocks that `allocation` counts.
    pub allocated_bytes: Stat,
    /// Bytes held from the backing.
    pub reserved_bytes: Stat,
    /// Bytes of the blocks that `active` counts.
    pub active_bytes: Stat,
    /// Bytes of the blocks that `inactive_split` counts.
    pub inactive_split_bytes: Stat,
    /// Bytes requested for the blocks that `active` counts. While other streams still use freed blocks, it may exceed
    /// `allocated_bytes`.
    pub requested_bytes: Stat,
}

impl PoolStatistics {
    /// Adds the statistics of other blocks. See [`Statistics::merge`].
    pub(crate) fn merge(&mut self, other: &Self) {
        self.stats_mut().into_iter().zip(other.named()).for_each(|(mine, (_, theirs))| mine.merge(theirs));
    }

    fn named(&self) -> [(&'static str, &Stat); 9] {
        [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ]
    }

    fn stats_mut(&mut self) -> [&mut Stat; 9] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }
}

/// The statistics of a tag. Tags share pages, so no statistics of segments or reserved bytes are among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStatistics {
    /// Like [`PoolStatistics::requested_bytes`].
    pub requested_bytes: Stat,
    /// Like [`PoolStatistics::allocated_bytes`].
    pub allocated_bytes: Stat,
    /// Like [`PoolStatistics::active_bytes`].
    pub active_bytes: Stat,
}

impl TagStatistics {
    fn named(&self) -> [(&'static str, &Stat); 3] {
        [
            ("requested_bytes", &self.requested_bytes),
            ("allocated_bytes", &self.allocated_bytes),
            ("active_bytes", &self.active_bytes),
        ]
    }

    fn stats_mut(&mut self) -> [&mut Stat; 3] {
        [&mut self.requested_bytes, &mut self.allocated_bytes, &mut self.active_bytes]
    }
}

/// Every counter of an allocator: PyTorch's `DeviceStats`, and counters per tag.
///
/// All are plain integers, so that each heap of an allocator can own a set of its own; [`merge`](Self::merge) adds them
/// up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Both pools together.
    pub all: PoolStatistics,
    /// The small pool.
    pub small_pool: PoolStatistics,
    /// The large pool.
    pub large_pool: PoolStatistics,
    /// The statistics of each tag: `tags[tag as usize]`.
    pub tags: [TagStatistics; Tag::ALL.len()],
    /// Bytes held from the backing for each private pool that ever held some, by its id: in all, small and large. The
    /// entries outlive their pool.
    pub reserved_in_private_pools: BTreeMap<PoolId, [Stat; 3]>,
    /// Live blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Allocations tried again after all cached memory was released.
    pub num_alloc_retries: u64,
    /// Out-of-memory errors.
    pub num_ooms: u64,
    /// Requests that [`Tuning::RejectAbove`](crate::Tuning::RejectAbove) refused, which are not in `num_ooms`.
    pub num_oom_rejections: u64,
    /// The number of times that the host waited for every stream.
    pub num_sync_all_streams: u64,
    /// The number of calls that took memory from the backing.
    pub num_device_alloc: u64,
    /// The number of calls that gave memory back to the backing.
    pub num_device_free: u64,
    /// The size in bytes from which blocks are not split; `None` means no limit, which PyTorch reports as -1.
    pub max_split_size: Option<u64>,
}

impl Statistics {
    /// Counts a block of `bytes`, allocated for a request of `requested` bytes.
    #[inline]
    pub fn block_allocated(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        for pool in self.both(kind) {
            pool.allocation.increase(1);
            pool.active.increase(1);
            pool.requested_bytes.increase(requested);
            pool.allocated_bytes.increase(bytes);
            pool.active_bytes.increase(bytes);
        }
        let tag = &mut self.tags[tag as usize];
        tag.requested_bytes.increase(requested);
        tag.allocated_bytes.increase(bytes);
        tag.active_bytes.increase(bytes);
    }

    /// Counts a block that its owner freed; it stays active until [`block_completed`](Self::block_completed).
    #[inline]
    pub fn block_freed(&mut self, kind: PoolKind, tag: Tag, bytes: u64) {
        for pool in self.both(kind) {
            pool.allocation.decrease(1);
            pool.allocated_bytes.decrease(bytes);
        }
        self.tags[tag as usize].allocated_bytes.decrease(bytes);
    }

    /// Counts a freed block that every stream has passed.
    #[inline]
    pub fn block_completed(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        for pool in self.both(kind) {
            pool.active.decrease(1);
            pool.requested_bytes.decrease(requested);
            pool.active_bytes.decrease(bytes);
        }
        let tag = &mut self.tags[tag as usize];
        tag.requested_bytes.decrease(requested);
        tag.active_bytes.decrease(bytes);
    }

    /// Moves a live block from one tag to another. The old tag keeps its peak.
    pub fn block_retagged(&mut self, from: Tag, to: Tag, requested: u64, bytes: u64) {
        let [requested_bytes, allocated_bytes, active_bytes] = self.tags[from as usize].stats_mut();
        requested_bytes.decrease(requested);
        allocated_bytes.decrease(bytes);
        active_bytes.decrease(bytes);
        let [requested_bytes, allocated_bytes, active_bytes] = self.tags[to as usize].stats_mut();
        requested_bytes.increase(requested);
        allocated_bytes.increase(bytes);
        active_bytes.increase(bytes);
    }

    /// Changes the bytes that `pool` holds from the backing by the bytes that go and those that come, as one step.
    pub(crate) fn reserved_changed(&mut self, pool: PoolId, kind: PoolKind, gone: u64, come: u64) {
        self.both(kind).into_iter().for_each(|figures| figures.reserved_bytes.replace(gone, come));
        if pool != PoolId::default() {
            let [all, small, large] = self.reserved_in_private_pools.entry(pool).or_default();
            all.replace(gone, come);
            if kind == PoolKind::Small { small } else { large }.replace(gone, come);
        }
    }

    /// Returns the statistics of both pools together, and of the pool of `kind`.
    #[inline]
    pub fn both(&mut self, kind: PoolKind) -> [&mut PoolStatistics; 2] {
        let pool = match kind {
            PoolKind::Small => &mut self.small_pool,
            PoolKind::Large => &mut self.large_pool,
        };
        [&mut self.all, pool]
    }

    /// Adds the counters of another part of the same allocator.
    ///
    /// Every value is exact except the peaks. Parts need not peak together, so a merged peak, which is the sum of the
    /// parts' peaks, is an upper bound on the true peak of the whole.
    pub fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        for (mine, theirs) in self.stats_mut().zip(other.stats_mut()) {
            mine.merge(theirs);
        }
        for (pool, theirs) in &other.reserved_in_private_pools {
            let mine = self.reserved_in_private_pools.entry(*pool).or_default();
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.merge(theirs));
        }
        self.num_alloc_retries += other.num_alloc_retries;
        self.num_ooms += other.num_ooms;
        self.num_oom_rejections += other.num_oom_rejections;
        self.num_sync_all_streams += other.num_sync_all_streams;
        self.num_device_alloc += other.num_device_alloc;
        self.num_device_free += other.num_device_free;
        self.max_split_size = self.max_split_size.or(other.max_split_size);
    }

    /// Counts an out-of-memory error.
    pub(crate) fn count_out_of_memory(&mut self, rejected: bool) {
        *(if rejected { &mut self.num_oom_rejections } else { &mut self.num_ooms }) += 1;
    }

    /// Sets every peak to the current value.
    pub fn reset_peak(&mut self) {
        self.stats_mut().for_each(Stat::reset_peak);
        self.reserved_in_private_pools.values_mut().flatten().for_each(Stat::reset_peak);
    }

    /// Sets every accumulated counter to zero; current values and peaks stay.
    pub fn reset_accumulated(&mut self) {
        self.stats_mut().for_each(Stat::reset_accumulated);
        self.reserved_in_private_pools.values_mut().flatten().for_each(Stat::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_oom_rejections = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    /// Returns every counter under the key of `torch.cuda.memory_stats()`, sorted by key. In a tag's keys, the tag
    /// stands in place of a pool's name: `allocated_bytes.weight.peak`.
    pub fn flat(&self) -> Vec<(String, i64)> {
        let pools = [("all", &self.all), ("small_pool", &self.small_pool), ("large_pool", &self.large_pool)];
        let mut flat = Vec::new();
        for (pool, statistics) in pools {
            for (name, stat) in statistics.named() {
                push(&mut flat, &format!("{name}.{pool}"), stat);
            }
        }
        for tag in Tag::ALL {
            for (name, stat) in self.tags[tag as usize].named() {
                push(&mut flat, &format!("{name}.{tag}"), stat);
            }
        }
        push(&mut flat, "oversize_allocations", &self.oversize_allocations);
        push(&mut flat, "oversize_segments", &self.oversize_segments);
        flat.push(("num_alloc_retries".into(), signed(self.num_alloc_retries)));
        flat.push(("num_ooms".into(), signed(self.num_ooms)));
        flat.push(("num_oom_rejections".into(), signed(self.num_oom_rejections)));
        flat.push(("num_sync_all_streams".into(), signed(self.num_sync_all_streams)));
        flat.push(("num_device_alloc".into(), signed(self.num_device_alloc)));
        flat.push(("num_device_free".into(), signed(self.num_device_free)));
        flat.push(("max_split_size".into(), self.max_split_size.map_or(-1, signed)));
        flat.sort();
        flat
    }

    fn stats_mut(&mut self) -> impl Iterator<Item = &mut Stat> {
        let pools = [&mut self.all, &mut self.small_pool, &mut self.large_pool];
        let oversize = [&mut self.oversize_allocations, &mut self.oversize_segments];
        pools
            .into_iter()
            .flat_map(PoolStatistics::stats_mut)
            .chain(self.tags.iter_mut().flat_map(TagStatistics::stats_mut))
            .chain(oversize)
    }
}

fn push(flat: &mut Vec<(String, i64)>, prefix: &str, stat: &Stat) {
    flat.push((format!("{prefix}.current"), signed(stat.current)));
    flat.push((format!("{prefix}.peak"), signed(stat.peak)));
    flat.push((format!("{prefix}.allocated"), signed(stat.allocated)));
    flat.push((format!("{prefix}.freed"), signed(stat.freed)));
}

/// Converts a value to PyTorch's signed type. No process reaches more than `i64::MAX` bytes.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_memory_stats() {
        let keys: Vec<String> = Statistics::default().flat().into_iter().map(|(key, _)| key).collect();
        assert!(keys.is_sorted());
        let pytorch = keys.iter().filter(|key| !Tag::ALL.iter().any(|tag| key.contains(&format!(".{tag}."))));
        assert_eq!(pytorch.count(), 9 * 3 * 4 + 2 * 4 + 7);
        for key in
            ["active_bytes.large_pool.peak", "oversize_segments.freed", "num_ooms", "requested_bytes.weight.peak"]
        {
            assert!(keys.iter().any(|k| k == key), "{key} is missing");
        }
    }

    #[test]
    fn a_freed_block_stays_active_until_completed() {
        let mut statistics = Statistics::default();
        statistics.block_allocated(PoolKind::Small, Tag::Gradient, 100, 512);
        statistics.block_freed(PoolKind::Small, Tag::Gradient, 512);
        let PoolStatistics { requested_bytes, allocated_bytes, active_bytes, .. } = &statistics.all;
        assert_eq!((requested_bytes.current, allocated_bytes.current, active_bytes.current), (100, 0, 512));
        statistics.block_completed(PoolKind::Small, Tag::Gradient, 100, 512);
        let tag = &statistics.tags[Tag::Gradient as usize];
        assert_eq!((tag.requested_bytes.current, tag.active_bytes.current), (0, 0));
        assert_eq!(statistics.small_pool.active_bytes, Stat { current: 0, peak: 512, allocated: 512, freed: 512 });
    }

    #[test]
    fn merged_counters_add_up_and_a_merged_peak_is_an_upper_bound() {
        let mut one = Statistics::default();
        let mut other = Statistics::default();
        one.block_allocated(PoolKind::Small, Tag::Unknown, 1, 512);
        one.block_freed(PoolKind::Small, Tag::Unknown, 512);
        one.block_completed(PoolKind::Small, Tag::Unknown, 1, 512);
        other.block_allocated(PoolKind::Large, Tag::Unknown, 1 << 21, 1 << 21);
        one.merge(&other);
        assert_eq!(one.all.allocated_bytes.current, 1 << 21);
        assert_eq!(one.all.allocated_bytes.peak, (1 << 21) + 512);
        assert_eq!(one.all.allocated_bytes.freed, 512);
    }

    #[test]
    fn resets_keep_what_is_current() {
        let mut statistics = Statistics::default();
        statistics.block_allocated(PoolKind::Large, Tag::Unknown, 5, 512);
        statistics.block_allocated(PoolKind::Large, Tag::Unknown, 5, 512);
        statistics.block_freed(PoolKind::Large, Tag::Unknown, 512);
        statistics.reset_peak();
        statistics.reset_accumulated();
        assert_eq!(statistics.all.allocation, Stat { current: 1, peak: 1, allocated: 0, freed: 0 });
    }
}
