//! Completes a recorded history that began late or lacks actions, so that it is a trace from an empty device on.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::ranges::{Ranges, end};
use super::{TraceAction, TraceEvent, reserved};

/// Events that a recorded history lacks in order to begin with an empty device.
#[derive(Default)]
pub(super) struct Additions {
    /// Events before the history that recreate the earlier state.
    earlier: Vec<TraceEvent>,
    /// The number of the history's own events that recreate the earlier state, in a file that says so.
    recorded_earlier: usize,
    /// Events that the recorder left out, each with the number of recorded events before it, ascending.
    inserted: Vec<(usize, TraceEvent)>,
}

impl Additions {
    /// Makes the additions of a file that counts `earlier` of its `count` events as the earlier state. Returns `None`
    /// if the number is too high.
    pub(super) fn recorded(count: usize, earlier: u64) -> Option<Self> {
        let recorded_earlier = usize::try_from(earlier).ok().filter(|&earlier| earlier <= count)?;
        Some(Self { recorded_earlier, ..Self::default() })
    }

    /// Returns the number of events, after all additions, that recreate the earlier state.
    pub(super) fn earlier_events(&self) -> usize {
        self.earlier.len() + self.recorded_earlier
    }

    /// Adds the events that bring the history `recorded` to the segments that the snapshot lists `at_end`. Returns their
    /// number. See Note \[Segments at the end\].
    pub(super) fn reconcile(&mut self, recorded: &[TraceEvent], at_end: &[TraceEvent]) -> usize {
        let events = reserved::reconcile(self.merged(recorded), recorded, at_end);
        let count = events.len();
        self.inserted.extend(events);
        self.inserted.sort_by_key(|&(before, _)| before);
        count
    }

    /// Returns the positions, after all additions, of the events that the recorder did not write, ascending.
    pub(super) fn positions(&self) -> Vec<usize> {
        let earlier = self.earlier_events();
        let inserted = self.inserted.iter().zip(self.earlier.len()..);
        (0..earlier).chain(inserted.map(|(&(before, _), additions)| before + additions)).collect()
    }

    /// Returns the whole history: `recorded` and all additions.
    pub(super) fn merged(&self, recorded: &[TraceEvent]) -> impl Iterator<Item = TraceEvent> {
        let mut inserted = self.inserted.iter().peekable();
        let mut recorded = recorded.iter().enumerate().peekable();
        let rest = std::iter::from_fn(move || {
            let next = recorded.peek().map_or(usize::MAX, |&(number, _)| number);
            match inserted.next_if(|&&(before, _)| before <= next) {
                Some(&(_, event)) => Some(event),
                None => recorded.next().map(|(_, &event)| event),
            }
        });
        self.earlier.iter().copied().chain(rest)
    }

    /// Inserts into `items`, which has one item per recorded event, the items that `make` makes of the added events.
    /// Works in place.
    pub(super) fn add_to<T: Copy>(&self, items: &mut Vec<T>, make: impl Fn(TraceEvent) -> T) {
        let Some(&any) = self.earlier.first().or(self.inserted.first().map(|(_, event)| event)) else { return };
        let mut from = items.len();
        let count = self.earlier.len() + self.inserted.len();
        items.reserve_exact(count);
        items.resize(from + count, make(any));
        let mut to = items.len();
        for &(before, event) in self.inserted.iter().rev() {
            items.copy_within(before..from, to - (from - before));
            to -= from - before + 1;
            from = before;
            items[to] = make(event);
        }
        items.copy_within(..from, self.earlier.len());
        for (item, &event) in items.iter_mut().zip(&self.earlier) {
            *item = make(event);
        }
    }
}

/// Completes `history`. `at_end` has an event for each block, segment and mapped range that the snapshot lists.
///
/// Note \[What was there before\]: a block was there before the history if the history frees it without having
/// allocated it, or if the snapshot lists it as live and the history never touched its bytes. (A block over bytes that
/// the history used came after the history ended.) The same holds for segments, and for the mapped bytes of
/// expandable segments.
///
/// `_record_memory_history(skip_actions=...)` leaves actions out. A free that completes unrequested was requested at
/// that moment. If no free ever completes, each completes when it is requested, unless the snapshot still lists its
/// block as live. Histories that lack nothing get no additions.
pub(super) fn complete(history: &[TraceEvent], at_end: &[TraceEvent]) -> Additions {
    let completed = completed_when_requested(history, at_end);
    let mut completion = Completion::default();
    for (position, event) in history.iter().enumerate() {
        completion.step(event);
        if completed.contains(&position) {
            completion.complete_free(event);
        }
    }
    for event in at_end {
        completion.find(event);
    }
    completion.finish(history.first().map_or(0, |event| event.time_us))
}

/// Returns the positions of the requests whose frees complete at that moment. There are none if the history has any
/// completed free.
fn completed_when_requested(history: &[TraceEvent], at_end: &[TraceEvent]) -> FxHashSet<usize> {
    let mut positions = FxHashSet::default();
    if history.iter().any(|event| event.action == TraceAction::FreeCompleted) {
        return positions;
    }
    let blocks = at_end.iter().filter(|event| event.action == TraceAction::Alloc);
    let live: FxHashMap<_, _> = blocks.map(|block| (block.address, block.bytes)).collect();
    let mut reused = Ranges::default();
    for (position, event) in history.iter().enumerate().rev() {
        match event.action {
            TraceAction::Alloc => drop(reused.claim(event)),
            TraceAction::FreeRequested if reused.overlap(event) || live.get(&event.address) != Some(&event.bytes) => {
                positions.insert(position);
            }
            _ => {}
        }
    }
    positions
}

#[derive(Default)]
struct Completion {
    /// For each live block, whether its free was requested.
    blocks: BTreeMap<u64, bool>,
    /// The ends of live segments.
    segments: BTreeMap<u64, u64>,
    block_ranges: Ranges,
    segment_ranges: Ranges,
    mapped_ranges: Ranges,
    earlier: Vec<TraceEvent>,
    /// The number of recorded events so far.
    recorded: usize,
    inserted: Vec<(usize, TraceEvent)>,
}

impl Completion {
    fn step(&mut self, event: &TraceEvent) {
        let &TraceEvent { action, address, .. } = event;
        match action {
            TraceAction::Alloc => {
                self.block_ranges.claim(event);
                self.blocks.insert(address, false);
            }
            TraceAction::FreeRequested => {
                self.find(&TraceEvent { action: TraceAction::Alloc, ..*event });
                self.blocks.entry(address).and_modify(|requested| *requested = true);
            }
            TraceAction::FreeCompleted => {
                self.find(&TraceEvent { action: TraceAction::Alloc, ..*event });
                if self.blocks.remove(&address) == Some(false) {
                    self.insert(TraceEvent { action: TraceAction::FreeRequested, ..*event });
                }
            }
            TraceAction::SegmentAlloc => {
                self.free_segments_under(event);
                self.segment_ranges.claim(event);
                self.segments.insert(address, end(event));
            }
            TraceAction::SegmentFree => {
                self.find(&TraceEvent { action: TraceAction::SegmentAlloc, ..*event });
                self.segments.remove(&address);
            }
            TraceAction::SegmentMap => drop(self.mapped_ranges.claim(event)),
            TraceAction::SegmentUnmap => self.find(&TraceEvent { action: TraceAction::SegmentMap, ..*event }),
            TraceAction::Snapshot | TraceAction::Oom | TraceAction::UserDefined | TraceAction::Annotate => {}
        }
        self.recorded += 1;
    }

    /// Completes the free that `request` requests, at once.
    fn complete_free(&mut self, request: &TraceEvent) {
        self.blocks.remove(&request.address);
        self.insert(TraceEvent { action: TraceAction::FreeCompleted, ..*request });
    }

    /// Adds the event `made` to the earlier state, unless the history made the block or segment itself.
    /// See Note \[What was there before\].
    fn find(&mut self, made: &TraceEvent) {
        let address = made.address;
        match made.action {
            TraceAction::Alloc if !self.blocks.contains_key(&address) && self.block_ranges.claim_whole(made) => {
                self.blocks.insert(address, false);
                self.earlier.push(*made);
            }
            TraceAction::SegmentAlloc
                if !self.segments.contains_key(&address) && self.segment_ranges.claim_whole(made) =>
            {
                self.segments.insert(address, end(made));
                self.earlier.push(*made);
            }
            TraceAction::SegmentMap => {
                let unknown = self.mapped_ranges.claim(made);
                self.earlier.extend(unknown.into_iter().map(|(address, end)| TraceEvent {
                    address,
                    bytes: end - address,
                    ..*made
                }));
            }
            _ => {}
        }
    }

    /// Frees live segments that overlap `event`'s: the history lacks their `segment_free`.
    fn free_segments_under(&mut self, event: &TraceEvent) {
        while let Some((&address, &other_end)) = self.segments.range(..end(event)).next_back()
            && other_end > event.address
        {
            self.segments.remove(&address);
            let bytes = other_end - address;
            self.insert(TraceEvent { action: TraceAction::SegmentFree, address, bytes, ..*event });
        }
    }

    fn insert(&mut self, event: TraceEvent) {
        self.inserted.push((self.recorded, event));
    }

    fn finish(self, first_us: u64) -> Additions {
        let Self { mut earlier, inserted, .. } = self;
        // Segment by segment, each before its blocks.
        earlier.sort_unstable_by_key(|event| (event.address, event.action == TraceAction::Alloc));
        earlier.iter_mut().for_each(|event| event.time_us = first_us);
        Additions { earlier, recorded_earlier: 0, inserted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::StreamId;

    use super::*;

    fn at(time_us: u64) -> TraceEvent {
        TraceEvent { time_us, address: 0, bytes: 0, stream: StreamId::NULL, action: TraceAction::UserDefined }
    }

    proptest! {
        #[test]
        fn additions_come_where_they_were_made(
            count in 0usize..20,
            earlier in 0u64..4,
            mut befores in prop::collection::vec(0usize..20, 0..10),
        ) {
            befores.iter_mut().for_each(|before| *before = (*before).min(count));
            befores.sort_unstable();
            let recorded: Vec<_> = (0..count as u64).map(at).collect();
            let inserted = befores.iter().zip(100..).map(|(&before, time_us)| (before, at(time_us))).collect();
            let additions = Additions { earlier: (50..50 + earlier).map(at).collect(), recorded_earlier: 0, inserted };
            let mut expected = recorded.clone();
            for (&before, (additions, time_us)) in befores.iter().zip((0..).zip(100..)) {
                expected.insert(before + additions, at(time_us));
            }
            expected.splice(0..0, (50..50 + earlier).map(at));

            prop_assert_eq!(&additions.merged(&recorded).collect::<Vec<_>>(), &expected);
            let mut added = recorded;
            additions.add_to(&mut added, |event| event);
            prop_assert_eq!(&added, &expected);
            let positions: Vec<_> = (0..expected.len()).filter(|&position| expected[position].time_us >= 50).collect();
            prop_assert_eq!(additions.positions(), positions);
        }
    }
}
