//! The counters of a heap's blocks, from which [`Statistics`] are made. A block that comes and goes changes as few
//! words as possible.

use tenure_core::Tag;

use crate::{PoolKind, PoolStatistics, Stat, Statistics, TagStatistics};

/// Counters of the blocks of one heap.
#[derive(Default)]
pub(super) struct Counters {
    small: CounterFigures<3>,
    large: CounterFigures<3>,
    tags: [CounterFigures<2>; Tag::ALL.len()],
    /// The peaks of both pools together.
    peaks: CounterPeaks<3>,
    /// Freed blocks that other streams still use.
    awaited: u64,
}

/// Amounts (bytes, bytes requested, number of blocks) at the indices below.
type Amounts<const N: usize> = [u64; N];

const BYTES: usize = 0;
const REQUESTED: usize = 1;
/// The index of the number of blocks; tags do not count it.
const BLOCKS: usize = 2;

/// The figures from which the [`Stat`]s of one pool or one tag are computed.
#[derive(Clone, Copy)]
struct CounterFigures<const N: usize> {
    /// Blocks allocated and not freed.
    live: Amounts<N>,
    /// Freed blocks that other streams still use. They and the live blocks are the active ones.
    awaited: Amounts<N>,
    /// Blocks allocated since `live` and `awaited` were `live_start` and `awaited_start`.
    added: Amounts<N>,
    live_start: Amounts<N>,
    awaited_start: Amounts<N>,
    peaks: CounterPeaks<N>,
}

/// The peaks of live and of active blocks.
#[derive(Clone, Copy)]
struct CounterPeaks<const N: usize> {
    live: Amounts<N>,
    /// The peak of active blocks at the times when some were awaited. At other times the active blocks are the live
    /// ones.
    active: Amounts<N>,
}

impl Counters {
    /// Returns the bytes requested and not freed.
    #[inline]
    pub(super) fn requested(&self) -> u64 {
        self.small.live[REQUESTED] + self.large.live[REQUESTED]
    }

    /// Counts a block of `bytes` bytes, allocated for a request of `requested` bytes.
    #[inline]
    pub(super) fn allocated(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        self.pool(kind).add([bytes, requested, 1]);
        self.tags[tag as usize].add([bytes, requested]);
        raise(&mut self.peaks.live, sum(self.small.live, self.large.live));
        if self.awaited > 0 {
            self.raise_active(tag);
        }
    }

    /// Counts a block that its owner freed. It is free now, unless [other streams use it](Self::awaited).
    #[inline]
    pub(super) fn freed(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        self.pool(kind).remove([bytes, requested, 1]);
        self.tags[tag as usize].remove([bytes, requested]);
    }

    /// Moves a live block from one tag to another. The old tag keeps its peak.
    pub(super) fn retagged(&mut self, from: Tag, to: Tag, requested: u64, bytes: u64) {
        self.tags[from as usize].remove([bytes, requested]);
        self.tags[to as usize].add([bytes, requested]);
        self.tags[to as usize].raise_active();
    }

    /// Counts a freed block as active until [`completed`](Self::completed).
    pub(super) fn awaited(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        self.awaited += 1;
        let pool = self.pool(kind);
        let tag = tag as usize;
        pool.awaited = sum(pool.awaited, [bytes, requested, 1]);
        self.tags[tag].awaited = sum(self.tags[tag].awaited, [bytes, requested]);
    }

    /// Counts an awaited block that every stream has passed.
    pub(super) fn completed(&mut self, kind: PoolKind, tag: Tag, requested: u64, bytes: u64) {
        self.awaited -= 1;
        let pool = self.pool(kind);
        let tag = tag as usize;
        pool.awaited = difference(pool.awaited, [bytes, requested, 1]);
        self.tags[tag].awaited = difference(self.tags[tag].awaited, [bytes, requested]);
    }

    /// Adds these counters to an allocator's statistics.
    pub(super) fn add_to(&self, statistics: &mut Statistics) {
        let small_pool = self.small.of_pool();
        let large_pool = self.large.of_pool();
        let mut all = small_pool.clone();
        all.merge(&large_pool);
        // Pools need not peak together.
        let CounterPeaks { live, active } = self.peaks.with_live_peaks();
        (all.allocation.peak, all.allocated_bytes.peak) = (live[BLOCKS], live[BYTES]);
        (all.active.peak, all.active_bytes.peak) = (active[BLOCKS], active[BYTES]);
        all.requested_bytes.peak = active[REQUESTED];
        let tags = self.tags.map(|tag| tag.of_tag());
        statistics.merge(&Statistics { all, small_pool, large_pool, tags, ..Statistics::default() });
    }

    pub(super) fn reset_peaks(&mut self) {
        self.small.reset_peaks();
        self.large.reset_peaks();
        self.tags.iter_mut().for_each(CounterFigures::reset_peaks);
        let live = sum(self.small.live, self.large.live);
        self.peaks = CounterPeaks { live, active: sum(live, sum(self.small.awaited, self.large.awaited)) };
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.small.reset_accumulated();
        self.large.reset_accumulated();
        self.tags.iter_mut().for_each(CounterFigures::reset_accumulated);
    }

    /// Raises the peaks of active blocks after an increase, while some block is awaited.
    #[cold]
    fn raise_active(&mut self, tag: Tag) {
        self.small.raise_active();
        self.large.raise_active();
        self.tags[tag as usize].raise_active();
        raise(&mut self.peaks.active, sum(self.small.active(), self.large.active()));
    }

    #[inline]
    fn pool(&mut self, kind: PoolKind) -> &mut CounterFigures<3> {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }
}

impl CounterFigures<3> {
    fn of_pool(&self) -> PoolStatistics {
        PoolStatistics {
            allocation: self.live_stat(BLOCKS),
            active: self.active_stat(BLOCKS),
            requested_bytes: self.active_stat(REQUESTED),
            allocated_bytes: self.live_stat(BYTES),
            active_bytes: self.active_stat(BYTES),
            ..PoolStatistics::default()
        }
    }
}

impl CounterFigures<2> {
    fn of_tag(&self) -> TagStatistics {
        TagStatistics {
            requested_bytes: self.active_stat(REQUESTED),
            allocated_bytes: self.live_stat(BYTES),
            active_bytes: self.active_stat(BYTES),
        }
    }
}

impl<const N: usize> CounterFigures<N> {
    #[inline]
    fn add(&mut self, amounts: Amounts<N>) {
        self.live = sum(self.live, amounts);
        self.added = sum(self.added, amounts);
        raise(&mut self.peaks.live, self.live);
    }

    #[inline]
    fn remove(&mut self, amounts: Amounts<N>) {
        self.live = difference(self.live, amounts);
    }

    fn active(&self) -> Amounts<N> {
        sum(self.live, self.awaited)
    }

    fn raise_active(&mut self) {
        let active = self.active();
        raise(&mut self.peaks.active, active);
    }

    fn live_stat(&self, index: usize) -> Stat {
        let current = self.live[index];
        let allocated = self.added[index];
        Stat { current, peak: self.peaks.live[index], allocated, freed: self.live_start[index] + allocated - current }
    }

    fn active_stat(&self, index: usize) -> Stat {
        let current = self.active()[index];
        let allocated = self.added[index];
        let start = self.live_start[index] + self.awaited_start[index];
        Stat {
            current,
            peak: self.peaks.with_live_peaks().active[index],
            allocated,
            freed: start + allocated - current,
        }
    }

    fn reset_peaks(&mut self) {
        self.peaks = CounterPeaks { live: self.live, active: self.active() };
    }

    fn reset_accumulated(&mut self) {
        (self.added, self.live_start, self.awaited_start) = ([0; N], self.live, self.awaited);
    }
}

impl<const N: usize> CounterPeaks<N> {
    /// Returns the peaks, that of active blocks raised to that of live blocks: it is only updated while blocks are
    /// awaited.
    fn with_live_peaks(mut self) -> Self {
        raise(&mut self.active, self.live);
        self
    }
}

impl<const N: usize> Default for CounterFigures<N> {
    fn default() -> Self {
        let none = [0; N];
        let peaks = CounterPeaks::default();
        Self { live: none, awaited: none, added: none, live_start: none, awaited_start: none, peaks }
    }
}

impl<const N: usize> Default for CounterPeaks<N> {
    fn default() -> Self {
        Self { live: [0; N], active: [0; N] }
    }
}

#[inline]
fn sum<const N: usize>(one: Amounts<N>, other: Amounts<N>) -> Amounts<N> {
    std::array::from_fn(|index| one[index] + other[index])
}

#[inline]
fn difference<const N: usize>(from: Amounts<N>, amounts: Amounts<N>) -> Amounts<N> {
    std::array::from_fn(|index| {
        debug_assert!(from[index] >= amounts[index], "a figure of {} is decreased by {}", from[index], amounts[index]);
        from[index] - amounts[index]
    })
}

#[inline]
fn raise<const N: usize>(peak: &mut Amounts<N>, now: Amounts<N>) {
    *peak = std::array::from_fn(|index| peak[index].max(now[index]));
}
