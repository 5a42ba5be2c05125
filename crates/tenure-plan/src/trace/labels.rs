//! Labels: a program's tags, compiler contexts and memory pools of recorded events.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{TraceAction, TraceEvent};

/// The number of a memory pool, like PyTorch's `MempoolId_t`. The default pool is `(0, 0)`.
pub type MemoryPool = (u32, u32);

/// The pool that memory comes from unless the program or a graph asks for another.
pub(super) const DEFAULT_POOL: MemoryPool = (0, 0);

/// A label of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventLabel {
    /// PyTorch's `user_metadata`: the program's current activity or, for a [`TraceAction::Annotate`], the block's name.
    pub tag: Option<Arc<str>>,
    /// PyTorch's `compile_context`: the part of the compiler or the compiled graph that ran.
    pub compile_context: Option<Arc<str>>,
    /// The pool of the block or segment; `None` if the recorder did not say and the segment is gone.
    pub pool: Option<MemoryPool>,
}

/// The labels of a trace's events; equal labels are stored once.
///
/// Neighbouring events mostly have one label, so only changes are stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLabels {
    /// The events at which the label changes, ascending, and the label from there on.
    changes: Vec<(u32, u32)>,
    labels: Vec<EventLabel>,
}

impl EventLabels {
    /// Makes the labels. `of_events` holds for each event its index in `labels`. Pools are dropped if all are the
    /// default pool.
    pub(super) fn new(of_events: &[u32], mut labels: Vec<EventLabel>) -> Self {
        if labels.iter().all(|label| label.pool.is_none_or(|pool| pool == DEFAULT_POOL)) {
            labels.iter_mut().for_each(|label| label.pool = None);
        }
        if labels.iter().all(|label| *label == EventLabel::default()) {
            return Self::default();
        }
        let mut changes: Vec<(u32, u32)> = Vec::new();
        for (event, &label) in of_events.iter().enumerate() {
            if changes.last().is_none_or(|last| last.1 != label) {
                changes.push((event as u32, label));
            }
        }
        Self { changes, labels }
    }

    /// Returns the label of the event at `index` if the event makes or names a block or segment, or is a mark. A free
    /// has the label of the event before it. `None` if the file labels no event.
    pub fn of_event(&self, index: usize) -> Option<&EventLabel> {
        let next = self.changes.partition_point(|change| change.0 as usize <= index);
        let (_, label) = self.changes.get(next.checked_sub(1)?)?;
        self.labels.get(*label as usize)
    }

    /// Returns whether no event has a label.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The number of the empty label.
pub(super) const EMPTY: u32 = 0;

/// Returns the label of each of `count` events, from the events at which it changes.
pub(super) fn of_events(changes: &[(u32, u32)], count: usize) -> Vec<u32> {
    let mut labels = vec![EMPTY; count];
    let ends = changes.iter().skip(1).map(|change| change.0 as usize).chain([count]);
    for (&(event, label), end) in changes.iter().zip(ends) {
        labels[event as usize..end].fill(label);
    }
    labels
}

/// Returns the labels of `events`. Pools that the events do not name are taken from the segments at the end.
pub(super) fn complete(
    mut of_events: Vec<u32>,
    mut labels: Vec<EventLabel>,
    pools: PoolsAtEnd,
    events: &[TraceEvent],
) -> EventLabels {
    if pools.has_private() {
        let mut in_pools = FxHashMap::default();
        for (event, pool) in pools.of_events(events) {
            let label = of_events[event];
            if labels[label as usize].pool.is_none() {
                of_events[event] = *in_pools.entry((label, pool)).or_insert_with(|| {
                    labels.push(EventLabel { pool: Some(pool), ..labels[label as usize].clone() });
                    labels.len() as u32 - 1
                });
            }
        }
    }
    // A free has the label of the event before it, so that labels rarely change.
    for event in 1..events.len() {
        if matches!(events[event].action, TraceAction::FreeRequested | TraceAction::FreeCompleted) {
            of_events[event] = of_events[event - 1];
        }
    }
    EventLabels::new(&of_events, labels)
}

/// The pools of segments at the end of a history.
#[derive(Default)]
pub(super) struct PoolsAtEnd {
    /// Disjoint ranges, by their first byte: the first byte after each, and its pool.
    ranges: BTreeMap<u64, (u64, MemoryPool)>,
}

impl PoolsAtEnd {
    pub(super) fn add(&mut self, address: u64, bytes: u64, pool: MemoryPool) {
        self.cut(address, address.saturating_add(bytes));
        self.ranges.insert(address, (address.saturating_add(bytes), pool));
    }

    pub(super) fn has_private(&self) -> bool {
        self.ranges.values().any(|range| range.1 != DEFAULT_POOL)
    }

    /// Returns the events whose blocks or segments lie in memory that exists until the end, the last first, with their
    /// pools.
    pub(super) fn of_events(mut self, events: &[TraceEvent]) -> impl Iterator<Item = (usize, MemoryPool)> {
        events.iter().enumerate().rev().filter_map(move |(index, event)| match event.action {
            TraceAction::Alloc => Some((index, self.find(event.address)?)),
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                let pool = self.find(event.address);
                // Before this event the memory did not belong to the segment.
                self.cut(event.address, event.address.saturating_add(event.bytes));
                pool.map(|pool| (index, pool))
            }
            _ => None,
        })
    }

    fn find(&self, address: u64) -> Option<MemoryPool> {
        let (_, &(end, pool)) = self.ranges.range(..=address).next_back()?;
        (address < end).then_some(pool)
    }

    /// Removes the addresses from `start` to before `end`.
    fn cut(&mut self, start: u64, end: u64) {
        while let Some((&other, &(other_end, pool))) = self.ranges.range(..end).next_back()
            && other_end > start
        {
            self.ranges.remove(&other);
            if other_end > end {
                self.ranges.insert(end, (other_end, pool));
            }
            if other < start {
                self.ranges.insert(other, (start, pool));
            }
        }
    }
}
