//! The counters of a heap.

use tenure_core::Tag;

use crate::{PoolKind, PoolStatistics, Statistics, TagStatistics};

/// What [`Statistics`] says of blocks, for the blocks of one heap.
#[derive(Default)]
pub(super) struct Counters {
    small: PoolStatistics,
    large: PoolStatistics,
    tags: [TagStatistics; Tag::ALL.len()],
}

impl Counters {
    /// Bytes requested and not freed.
    #[inline]
    pub(super) fn requested(&self) -> u64 {
        self.small.requested_bytes.current + self.large.requested_bytes.current
    }

    /// A block of `bytes` bytes is handed out for a request of `requested` bytes.
    #[inline]
    pub(super) fn allocated(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        let pool = self.pool(kind);
        pool.allocation.increase(1);
        pool.active.increase(1);
        pool.requested_bytes.increase(requested);
        pool.allocated_bytes.increase(bytes);
        pool.active_bytes.increase(bytes);
        let tag = &mut self.tags[tag as usize];
        tag.requested_bytes.increase(requested);
        tag.allocated_bytes.increase(bytes);
        tag.active_bytes.increase(bytes);
    }

    /// A block's owner freed it; it stays active until [`completed`](Self::completed).
    #[inline]
    pub(super) fn freed(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        let pool = self.pool(kind);
        pool.allocation.decrease(1);
        pool.requested_bytes.decrease(requested);
        pool.allocated_bytes.decrease(bytes);
        let tag = &mut self.tags[tag as usize];
        tag.requested_bytes.decrease(requested);
        tag.allocated_bytes.decrease(bytes);
    }

    /// Every stream has passed a freed block.
    #[inline]
    pub(super) fn completed(&mut self, kind: PoolKind, tag: Tag, bytes: u64) {
        let pool = self.pool(kind);
        pool.active.decrease(1);
        pool.active_bytes.decrease(bytes);
        self.tags[tag as usize].active_bytes.decrease(bytes);
    }

    /// Adds these counters to an allocator's.
    pub(super) fn add_to(&self, statistics: &mut Statistics) {
        let (small_pool, large_pool) = (self.small.clone(), self.large.clone());
        let mut all = small_pool.clone();
        all.merge(&large_pool);
        statistics.merge(&Statistics { all, small_pool, large_pool, tags: self.tags, ..Statistics::default() });
    }

    pub(super) fn reset_peaks(&mut self) {
        self.reset(Statistics::reset_peak);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.reset(Statistics::reset_accumulated);
    }

    fn reset(&mut self, how: impl Fn(&mut Statistics)) {
        let Self { small: small_pool, large: large_pool, tags } = std::mem::take(self);
        let mut statistics = Statistics { small_pool, large_pool, tags, ..Statistics::default() };
        how(&mut statistics);
        let Statistics { small_pool: small, large_pool: large, tags, .. } = statistics;
        *self = Self { small, large, tags };
    }

    #[inline]
    fn pool(&mut self, kind: PoolKind) -> &mut PoolStatistics {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }
}
