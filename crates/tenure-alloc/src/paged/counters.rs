//! The counters of a heap: what [`Statistics`] says of its blocks, kept so that a block that comes and goes changes as
//! few words as can be.

use tenure_core::Tag;

use crate::{PoolKind, PoolStatistics, Stat, Statistics, TagStatistics};

/// Counters of the blocks of one heap.
#[derive(Default)]
pub(super) struct Counters {
    small: PoolCounters,
    large: PoolCounters,
    tags: [TagCounters; Tag::ALL.len()],
}

#[derive(Clone, Copy, Default)]
struct PoolCounters {
    blocks: Gauge,
    requested_bytes: Gauge,
    allocated_bytes: Gauge,
    active: Active,
    active_bytes: Active,
}

#[derive(Clone, Copy, Default)]
struct TagCounters {
    requested_bytes: Gauge,
    allocated_bytes: Gauge,
    active_bytes: Active,
}

/// A [`Stat`] in which what was taken away follows from the rest.
#[derive(Clone, Copy, Default)]
struct Gauge {
    current: u64,
    peak: u64,
    /// Added since it was `start`.
    added: u64,
    start: u64,
}

/// A [`Stat`] of what is active: what a gauge counts, and what was freed and other streams still use. The latter is
/// rare, so that this is counted and not the sum.
#[derive(Clone, Copy, Default)]
struct Active {
    awaited: u64,
    peak: u64,
    /// `awaited` when the gauge was at its start.
    start: u64,
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
        let (pool, tag) = self.both(kind, tag);
        pool.blocks.increase(1);
        pool.requested_bytes.increase(requested);
        pool.allocated_bytes.increase(bytes);
        pool.active.follow(&pool.blocks);
        pool.active_bytes.follow(&pool.allocated_bytes);
        tag.requested_bytes.increase(requested);
        tag.allocated_bytes.increase(bytes);
        tag.active_bytes.follow(&tag.allocated_bytes);
    }

    /// A block's owner freed it, and it is free; or [other streams use it](Self::awaited).
    #[inline]
    pub(super) fn freed(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        let (pool, tag) = self.both(kind, tag);
        pool.blocks.decrease(1);
        pool.requested_bytes.decrease(requested);
        pool.allocated_bytes.decrease(bytes);
        tag.requested_bytes.decrease(requested);
        tag.allocated_bytes.decrease(bytes);
    }

    /// A live block is for something else than was said before. The tag that it leaves keeps its peak.
    pub(super) fn retagged(&mut self, from: Tag, to: Tag, requested: u64, bytes: u64) {
        let tag = &mut self.tags[from as usize];
        tag.requested_bytes.decrease(requested);
        tag.allocated_bytes.decrease(bytes);
        let tag = &mut self.tags[to as usize];
        tag.requested_bytes.increase(requested);
        tag.allocated_bytes.increase(bytes);
        tag.active_bytes.follow(&tag.allocated_bytes);
    }

    /// A freed block stays active until [`completed`](Self::completed).
    pub(super) fn awaited(&mut self, kind: PoolKind, tag: Tag, bytes: u64) {
        let (pool, tag) = self.both(kind, tag);
        pool.active.awaited += 1;
        pool.active_bytes.awaited += bytes;
        tag.active_bytes.awaited += bytes;
    }

    /// Every stream has passed a block that was awaited.
    pub(super) fn completed(&mut self, kind: PoolKind, tag: Tag, bytes: u64) {
        let (pool, tag) = self.both(kind, tag);
        pool.active.awaited -= 1;
        pool.active_bytes.awaited -= bytes;
        tag.active_bytes.awaited -= bytes;
    }

    /// Adds these counters to an allocator's.
    pub(super) fn add_to(&self, statistics: &mut Statistics) {
        let (small_pool, large_pool) = (self.small.statistics(), self.large.statistics());
        let mut all = small_pool.clone();
        all.merge(&large_pool);
        let tags = self.tags.map(|tag| tag.statistics());
        statistics.merge(&Statistics { all, small_pool, large_pool, tags, ..Statistics::default() });
    }

    pub(super) fn reset_peaks(&mut self) {
        self.for_each(Gauge::reset_peak, Active::reset_peak);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.for_each(Gauge::reset_accumulated, Active::reset_accumulated);
    }

    /// Does one thing to each gauge, and another to what follows it, afterwards.
    fn for_each(&mut self, gauge: impl Fn(&mut Gauge), active: impl Fn(&mut Active, &Gauge)) {
        for pool in [&mut self.small, &mut self.large] {
            [&mut pool.blocks, &mut pool.requested_bytes, &mut pool.allocated_bytes].into_iter().for_each(&gauge);
            active(&mut pool.active, &pool.blocks);
            active(&mut pool.active_bytes, &pool.allocated_bytes);
        }
        for tag in &mut self.tags {
            [&mut tag.requested_bytes, &mut tag.allocated_bytes].into_iter().for_each(&gauge);
            active(&mut tag.active_bytes, &tag.allocated_bytes);
        }
    }

    #[inline]
    fn both(&mut self, kind: PoolKind, tag: Tag) -> (&mut PoolCounters, &mut TagCounters) {
        let pool = match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        };
        (pool, &mut self.tags[tag as usize])
    }
}

impl PoolCounters {
    fn statistics(&self) -> PoolStatistics {
        PoolStatistics {
            allocation: self.blocks.stat(),
            active: self.active.stat(&self.blocks),
            requested_bytes: self.requested_bytes.stat(),
            allocated_bytes: self.allocated_bytes.stat(),
            active_bytes: self.active_bytes.stat(&self.allocated_bytes),
            ..PoolStatistics::default()
        }
    }
}

impl TagCounters {
    fn statistics(&self) -> TagStatistics {
        TagStatistics {
            requested_bytes: self.requested_bytes.stat(),
            allocated_bytes: self.allocated_bytes.stat(),
            active_bytes: self.active_bytes.stat(&self.allocated_bytes),
        }
    }
}

impl Gauge {
    #[inline]
    fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.added += amount;
    }

    #[inline]
    fn decrease(&mut self, amount: u64) {
        debug_assert!(self.current >= amount, "a figure of {} is decreased by {amount}", self.current);
        self.current -= amount;
    }

    fn stat(&self) -> Stat {
        let Self { current, peak, added, start } = *self;
        Stat { current, peak, allocated: added, freed: start + added - current }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        (self.added, self.start) = (0, self.current);
    }
}

impl Active {
    /// `gauge` has increased.
    #[inline]
    fn follow(&mut self, gauge: &Gauge) {
        self.peak = self.peak.max(gauge.current + self.awaited);
    }

    fn stat(&self, gauge: &Gauge) -> Stat {
        let current = gauge.current + self.awaited;
        let start = gauge.start + self.start;
        Stat { current, peak: self.peak, allocated: gauge.added, freed: start + gauge.added - current }
    }

    fn reset_peak(&mut self, gauge: &Gauge) {
        self.peak = gauge.current + self.awaited;
    }

    fn reset_accumulated(&mut self, _: &Gauge) {
        self.start = self.awaited;
    }
}
