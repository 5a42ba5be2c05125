//! Completes a history that began late or left actions out, so that it makes a trace from an empty device on.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Action, Event};

/// A history from an empty device on.
#[derive(Default)]
pub(super) struct Completed {
    /// First the segments and blocks that were there before, then the history.
    pub(super) events: Vec<Event>,
    /// How many events make what was there before.
    pub(super) earlier: usize,
    /// Positions of all events that the recorder did not write, ascending.
    pub(super) inserted: Vec<usize>,
}

impl Completed {
    /// Events of a file that says how many of them make what was there before.
    pub(super) fn of(events: Vec<Event>, earlier: u64) -> Option<Self> {
        let earlier = usize::try_from(earlier).ok().filter(|&earlier| earlier <= events.len())?;
        Some(Self { events, earlier, inserted: (0..earlier).collect() })
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
/// block as live. Histories that lack nothing come out as they are.
pub(super) fn complete(history: &[Event], at_end: &[Event]) -> Completed {
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

/// Positions of the requests whose frees complete at that moment. None do in a history that has frees complete.
fn completed_when_requested(history: &[Event], at_end: &[Event]) -> FxHashSet<usize> {
    let mut positions = FxHashSet::default();
    if history.iter().any(|event| event.action == Action::FreeCompleted) {
        return positions;
    }
    let blocks = at_end.iter().filter(|event| event.action == Action::Alloc);
    let live: FxHashMap<_, _> = blocks.map(|block| (block.address, block.bytes)).collect();
    let mut reused = Ranges::default();
    for (position, event) in history.iter().enumerate().rev() {
        match event.action {
            Action::Alloc => drop(reused.claim(event)),
            Action::FreeRequested if reused.overlap(event) || live.get(&event.address) != Some(&event.bytes) => {
                positions.insert(position);
            }
            _ => {}
        }
    }
    positions
}

#[derive(Default)]
struct Completion {
    /// Whether the free of each live block was requested.
    blocks: BTreeMap<u64, bool>,
    /// Ends of live segments.
    segments: BTreeMap<u64, u64>,
    block_ranges: Ranges,
    segment_ranges: Ranges,
    mapped_ranges: Ranges,
    earlier: Vec<Event>,
    events: Vec<Event>,
    inserted: Vec<usize>,
}

impl Completion {
    fn step(&mut self, event: &Event) {
        let &Event { action, address, .. } = event;
        match action {
            Action::Alloc => {
                self.block_ranges.claim(event);
                self.blocks.insert(address, false);
            }
            Action::FreeRequested => {
                self.find(&Event { action: Action::Alloc, ..*event });
                self.blocks.entry(address).and_modify(|requested| *requested = true);
            }
            Action::FreeCompleted => {
                self.find(&Event { action: Action::Alloc, ..*event });
                if self.blocks.remove(&address) == Some(false) {
                    self.insert(Event { action: Action::FreeRequested, ..*event });
                }
            }
            Action::SegmentAlloc => {
                self.free_segments_under(event);
                self.segment_ranges.claim(event);
                self.segments.insert(address, end(event));
            }
            Action::SegmentFree => {
                self.find(&Event { action: Action::SegmentAlloc, ..*event });
                self.segments.remove(&address);
            }
            Action::SegmentMap => drop(self.mapped_ranges.claim(event)),
            Action::SegmentUnmap => self.find(&Event { action: Action::SegmentMap, ..*event }),
            Action::Snapshot | Action::Oom | Action::UserDefined | Action::Annotate => {}
        }
        self.events.push(*event);
    }

    /// Completes the free that `request` requests, at once.
    fn complete_free(&mut self, request: &Event) {
        self.blocks.remove(&request.address);
        self.insert(Event { action: Action::FreeCompleted, ..*request });
    }

    /// Adds what `made` would have made to what was there before, unless the history made it.
    /// See Note \[What was there before\].
    fn find(&mut self, made: &Event) {
        let address = made.address;
        match made.action {
            Action::Alloc if !self.blocks.contains_key(&address) && self.block_ranges.claim_whole(made) => {
                self.blocks.insert(address, false);
                self.earlier.push(*made);
            }
            Action::SegmentAlloc if !self.segments.contains_key(&address) && self.segment_ranges.claim_whole(made) => {
                self.segments.insert(address, end(made));
                self.earlier.push(*made);
            }
            Action::SegmentMap => {
                let unknown = self.mapped_ranges.claim(made);
                let part = |(address, end)| Event { address, bytes: end - address, ..*made };
                self.earlier.extend(unknown.into_iter().map(part));
            }
            _ => {}
        }
    }

    /// Frees live segments that `event` takes the place of: the history lacks their `segment_free`.
    fn free_segments_under(&mut self, event: &Event) {
        while let Some((&address, &other_end)) = self.segments.range(..end(event)).next_back()
            && other_end > event.address
        {
            self.segments.remove(&address);
            let bytes = other_end - address;
            self.insert(Event { action: Action::SegmentFree, address, bytes, ..*event });
        }
    }

    fn insert(&mut self, event: Event) {
        self.inserted.push(self.events.len());
        self.events.push(event);
    }

    fn finish(self, first_us: u64) -> Completed {
        let Self { mut earlier, events, inserted, .. } = self;
        // Segment by segment, each before its blocks.
        earlier.sort_unstable_by_key(|event| (event.address, event.action == Action::Alloc));
        let count = earlier.len();
        let inserted = (0..count).chain(inserted.into_iter().map(|position| position + count)).collect();
        let events = earlier.into_iter().map(|event| Event { time_us: first_us, ..event }).chain(events).collect();
        Completed { events, earlier: count, inserted }
    }
}

/// The first byte after the event's range. An empty block still has an address of its own.
fn end(event: &Event) -> u64 {
    event.address.saturating_add(event.bytes.max(1))
}

/// A set of addresses: disjoint ranges, each by its first byte and the first byte after it.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn overlap(&self, event: &Event) -> bool {
        self.0.range(..end(event)).next_back().is_some_and(|(_, &other_end)| other_end > event.address)
    }

    /// Adds the event's range if no byte of it is in the set.
    fn claim_whole(&mut self, event: &Event) -> bool {
        let free = !self.overlap(event);
        if free {
            self.claim(event);
        }
        free
    }

    /// Adds the event's range. Returns the parts of it that were not in the set, from the last to the first.
    fn claim(&mut self, event: &Event) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let (mut merged_start, mut merged_end) = (event.address, end(event));
        let mut gap_end = merged_end;
        while let Some((&other_start, &other_end)) = self.0.range(..=merged_end).next_back()
            && other_end >= merged_start
        {
            self.0.remove(&other_start);
            if other_end < gap_end {
                gaps.push((other_end.max(event.address), gap_end));
            }
            gap_end = gap_end.min(other_start);
            merged_start = merged_start.min(other_start);
            merged_end = merged_end.max(other_end);
        }
        if gap_end > event.address {
            gaps.push((event.address, gap_end));
        }
        self.0.insert(merged_start, merged_end);
        gaps
    }
}
