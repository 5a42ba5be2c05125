//! The state of a search: placed buffers, and the consequences for the others.

use std::ops::Range;
use std::rc::Rc;

use rand::rngs::Xoshiro256PlusPlus as Random;

use super::ranking::{self, Factors, Measure, Ranking};
use super::{PackingProblem, align_up};

/// A buffer to be placed.
struct PackingItem {
    /// The buffer's index in the problem.
    buffer: usize,
    /// Its sections.
    sections: Range<usize>,
    size: u64,
    alignment: u64,
    /// Whether its offset is fixed.
    is_fixed: bool,
    lifetime: u64,
    factors: Factors,
    /// The identical item just before it. It is placed first, because exchanging the two gives the same packing.
    twin: Option<usize>,
}

/// A possible offset of an item, and its rank. Items are placed in the order of their keys.
type Key = (u64, usize);

/// The key that is lower than all others.
const LOWEST_KEY: Key = (0, 0);

/// Unplaced items whose lifetimes are connected.
#[derive(Clone)]
pub(super) struct UnplacedItems {
    /// The items, by their first sections. Some may have been placed.
    items: Rc<[usize]>,
    /// The next item must have a higher key than the last one placed.
    after: Key,
}

impl UnplacedItems {
    /// Returns the number of items examined in one pass over the part.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

/// A change that can be undone.
enum PackingChange {
    /// The lowest offset of an item was raised from `before`.
    Lowest { item: usize, before: u64 },
    /// An item was placed.
    Placed { item: usize },
    /// The rank of an item changed from `before`.
    Rank { item: usize, before: usize },
}

/// Placed items, and the lowest offsets that they leave to the others.
pub(super) struct PackingState {
    capacity: u64,
    items: Vec<PackingItem>,
    /// For each item: its offset, or the lowest that the placed items leave it.
    lowest: Vec<u64>,
    is_placed: Vec<bool>,
    ranking: Ranking,
    /// For each item: its rank among the items of its part. Where offsets are equal, the first is tried first.
    ranks: Vec<usize>,
    /// For each section: unplaced bytes.
    unplaced: Vec<u64>,
    changes: Vec<PackingChange>,
    /// Scratch space: for each section, the lowest possible end of the unplaced items.
    ends: Vec<u64>,
    /// Scratch space: unplaced items, by their lowest possible offset.
    released: Vec<Key>,
}

impl PackingState {
    /// Makes a state in which no item of `buffers` is placed.
    pub(super) fn new(problem: &PackingProblem, capacity: u64, buffers: &[usize]) -> Self {
        let count = problem.sections.len();
        let mut items: Vec<PackingItem> = Vec::with_capacity(buffers.len());
        let mut lowest = Vec::with_capacity(buffers.len());
        let mut unplaced = vec![0; count];
        let mut twins = rustc_hash::FxHashMap::default();
        let with_bytes = buffers.iter().filter(|&&index| problem.buffers()[index].size_bytes > 0);
        for (item, &index) in with_bytes.enumerate() {
            let buffer = &problem.buffers()[index];
            let sections = problem.sections.range(index);
            let size = buffer.size_bytes;
            let alignment = buffer.alignment;
            let twin = twins.insert((sections.clone(), size, alignment, buffer.offset), item);
            for bytes in &mut unplaced[sections.clone()] {
                *bytes += size;
            }
            lowest.push(buffer.offset.unwrap_or(0));
            items.push(PackingItem {
                buffer: index,
                sections,
                size,
                alignment,
                is_fixed: buffer.offset.is_some(),
                lifetime: buffer.end - buffer.start,
                factors: Factors::NONE,
                twin,
            });
        }
        Self {
            capacity,
            lowest,
            is_placed: vec![false; items.len()],
            ranking: ranking::RANKINGS[0],
            ranks: vec![0; items.len()],
            unplaced,
            changes: Vec::new(),
            ends: vec![0; count],
            released: Vec::with_capacity(items.len()),
            items,
        }
    }

    /// Undoes every placement and ranks the items again: by `ranking`, and by chance if `random` is given.
    pub(super) fn restart(&mut self, ranking: Ranking, mut random: Option<&mut Random>) {
        self.undo(0);
        self.ranking = ranking;
        for item in 0..self.items.len() {
            // Twins keep their order.
            let twins = self.items[item].twin.map(|twin| self.items[twin].factors);
            self.items[item].factors =
                twins.unwrap_or_else(|| random.as_deref_mut().map_or(Factors::NONE, Factors::random));
        }
        self.rank(&(0..self.items.len()).collect::<Vec<_>>());
        self.changes.clear();
    }

    /// Returns the offset of every placed buffer.
    pub(super) fn offsets(&self) -> Vec<(usize, u64)> {
        self.items.iter().zip(&self.lowest).map(|(item, &offset)| (item.buffer, offset)).collect()
    }

    /// Returns the part with every item, none of them placed; `None` if they cannot fit.
    pub(super) fn whole(&mut self) -> Option<UnplacedItems> {
        let mut items: Vec<usize> = (0..self.items.len()).collect();
        items.sort_by_key(|&item| self.items[item].sections.start);
        let whole = UnplacedItems { items: items.into(), after: LOWEST_KEY };
        self.can_fit(&whole).then_some(whole)
    }

    /// Returns the mark to which [`undo`](Self::undo) has to go to come back here.
    pub(super) fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Undoes the changes made since [`mark`](Self::mark) returned `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        for change in self.changes.drain(mark..).rev() {
            match change {
                PackingChange::Lowest { item, before } => self.lowest[item] = before,
                PackingChange::Rank { item, before } => self.ranks[item] = before,
                PackingChange::Placed { item } => {
                    self.is_placed[item] = false;
                    let PackingItem { sections, size, .. } = &self.items[item];
                    for bytes in &mut self.unplaced[sections.clone()] {
                        *bytes += size;
                    }
                }
            }
        }
    }

    /// Returns the items that may be placed next, the best last.
    pub(super) fn candidates(&self, part: &UnplacedItems) -> Vec<usize> {
        let left = || part.items.iter().copied().filter(|&item| !self.is_placed[item]);
        // Above this limit an item leaves a gap in which another could be lower than it will be.
        let limit = left().map(|item| self.lowest[item] + self.items[item].size).min().unwrap_or(0);
        let mut candidates: Vec<usize> = left()
            .filter(|&item| {
                let key = self.key(item);
                key >= part.after && key.0 < limit && self.items[item].twin.is_none_or(|twin| self.is_placed[twin])
            })
            .collect();
        candidates.sort_unstable_by_key(|&item| std::cmp::Reverse(self.key(item)));
        candidates
    }

    /// Places an item of `part` as low as possible. Returns the parts that remain, or `None` if there is no room for
    /// their items; the caller then undoes the changes.
    pub(super) fn place(&mut self, item: usize, part: &UnplacedItems) -> Option<Vec<UnplacedItems>> {
        let PackingItem { sections, size, .. } = &self.items[item];
        let sections = sections.clone();
        let key = self.key(item);
        let top = key.0 + size;
        self.is_placed[item] = true;
        self.changes.push(PackingChange::Placed { item });
        let mut highest = top;
        for bytes in &mut self.unplaced[sections.clone()] {
            *bytes -= size;
            highest = highest.max(top + *bytes);
        }
        if highest > self.capacity {
            return None;
        }
        for &other in part.items.iter() {
            let PackingItem { sections: others, alignment, is_fixed, .. } = &self.items[other];
            if others.start >= sections.end {
                break;
            }
            if others.end > sections.start && !self.is_placed[other] && self.lowest[other] < top {
                if *is_fixed {
                    return None;
                }
                self.changes.push(PackingChange::Lowest { item: other, before: self.lowest[other] });
                self.lowest[other] = align_up(top, *alignment);
            }
        }
        let rest = UnplacedItems { items: Rc::clone(&part.items), after: key };
        if !self.can_fit(&rest) { None } else { Some(self.split(rest)) }
    }

    /// Returns whether no unplaced item overlaps `item` in time.
    pub(super) fn has_no_unplaced_neighbour(&self, item: usize) -> bool {
        self.unplaced[self.items[item].sections.clone()].iter().all(|&bytes| bytes == 0)
    }

    /// Returns the key of an item.
    fn key(&self, item: usize) -> Key {
        (self.lowest[item], self.ranks[item])
    }

    /// Returns whether the unplaced items of `part` might fit: if not, they certainly do not.
    fn can_fit(&mut self, part: &UnplacedItems) -> bool {
        self.released.clear();
        for &item in part.items.iter().filter(|&&item| !self.is_placed[item]) {
            let Some(release) = self.lowest_offset_now(item, part) else { return false };
            self.released.push((release, item));
            self.ends[self.items[item].sections.clone()].fill(0);
        }
        self.released.sort_unstable();
        for &(release, item) in &self.released {
            let PackingItem { sections, size, .. } = &self.items[item];
            let mut highest = 0;
            for end in &mut self.ends[sections.clone()] {
                *end = release.max(*end) + size;
                highest = highest.max(*end);
            }
            if highest > self.capacity {
                return false;
            }
        }
        true
    }

    /// Returns the lowest offset that an unplaced item can still get; `None` if it cannot be placed any more.
    fn lowest_offset_now(&self, item: usize, part: &UnplacedItems) -> Option<u64> {
        let lowest = self.lowest[item];
        if self.key(item) >= part.after {
            return Some(lowest);
        }
        // It was passed over, so an item must come to lie in its way, below its possible end; otherwise it could go
        // there.
        let PackingItem { sections, size, alignment, is_fixed, .. } = &self.items[item];
        if *is_fixed {
            return None;
        }
        let in_its_way = part.items.iter().filter(|&&other| {
            let others = &self.items[other].sections;
            others.start < sections.end && others.end > sections.start && other != item && !self.is_placed[other]
        });
        let tops = in_its_way.filter_map(|&other| {
            let bottom = self.lowest[other].max(part.after.0);
            (bottom < lowest + size).then(|| bottom + self.items[other].size)
        });
        tops.min().map(|top| align_up(top, *alignment))
    }

    /// Splits the unplaced items where no lifetime crosses. New parts are ranked again, since the fullest sections may
    /// have changed.
    fn split(&mut self, part: UnplacedItems) -> Vec<UnplacedItems> {
        let left = || part.items.iter().copied().filter(|&item| !self.is_placed[item]);
        let (mut count, mut cuts, mut end) = (0, Vec::new(), 0);
        for item in left() {
            let sections = &self.items[item].sections;
            if sections.start >= end {
                cuts.push(count);
            }
            end = end.max(sections.end);
            count += 1;
        }
        match cuts.len() {
            0 => Vec::new(),
            // A new list would not pay off.
            1 if 2 * count > part.items.len() => vec![part],
            _ => {
                let items: Vec<usize> = left().collect();
                cuts.push(count);
                let mut parts = Vec::with_capacity(cuts.len());
                for cut in cuts.windows(2) {
                    let items = &items[cut[0]..cut[1]];
                    let is_whole = cut[1] - cut[0] == count;
                    if !is_whole {
                        self.rank(items);
                    }
                    parts.push(UnplacedItems {
                        items: items.into(),
                        after: if is_whole { part.after } else { LOWEST_KEY },
                    });
                }
                parts
            }
        }
    }

    /// Ranks `items` among each other.
    fn rank(&mut self, items: &[usize]) {
        let mut measured: Vec<([f64; 3], usize)> =
            items.iter().map(|&item| (self.ranking.map(|measure| self.measure(item, measure)), item)).collect();
        measured.sort_unstable_by(|a, b| ranking::compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
        for (rank, (_, item)) in measured.into_iter().enumerate() {
            self.changes.push(PackingChange::Rank { item, before: self.ranks[item] });
            self.ranks[item] = rank;
        }
    }

    /// Returns the value of a measure for an item.
    fn measure(&self, item: usize, measure: Measure) -> f64 {
        let PackingItem { sections, size, lifetime, factors, .. } = &self.items[item];
        match measure {
            Measure::Sections => sections.len() as f64 * factors.length,
            Measure::Lifetime => *lifetime as f64 * factors.length,
            Measure::Area => *size as f64 * *lifetime as f64 * factors.area,
            Measure::Fullness => self.unplaced[sections.clone()].iter().max().copied().unwrap_or(0) as f64,
        }
    }
}
