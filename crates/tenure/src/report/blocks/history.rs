//! The blocks and segments of a trace, each from the event that made it to the event that ended it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;
use tenure_core::StreamId;
use tenure_plan::{Trace, TraceAction, TraceEvent};

/// A block, or a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The event that made it, or that split it off when a segment lost a part.
    pub(super) born: usize,
    /// The event that allocated its memory.
    pub(super) made: usize,
    /// The event that ended it; `None` if none did.
    pub(super) died: Option<usize>,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
}

/// A part of a trace's history.
pub(super) struct BlockHistory {
    /// The events that are shown.
    pub(super) span: Range<usize>,
    /// The blocks that live in the span, in the order in which they were made.
    pub(super) blocks: Vec<Life>,
    /// The ranges of segments that live in the span, in the order in which they were made.
    pub(super) segments: Vec<Life>,
    /// The number of the trace's events that recreate the state before its history.
    pub(super) earlier: usize,
    /// Marks: events that users look for, such as an OOM.
    pub(super) marks: Vec<usize>,
    /// The last event that named each block, by the event that made the block.
    pub(super) names: FxHashMap<usize, usize>,
}

/// The most marks that are shown; if there are more, the first.
const MARKS: usize = 1000;

/// The bytes of blocks that are not shown one by one, as steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summed {
    /// The first event of each step, and the most bytes at once until the next.
    pub(super) steps: Vec<(usize, u64)>,
    pub(super) blocks: usize,
    pub(super) peak_bytes: u64,
    /// Whether every step stands for one moment, so that it is exact.
    pub(super) is_exact: bool,
}

impl Life {
    fn new(event: usize, made: &TraceEvent) -> Self {
        Self { born: event, made: event, died: None, address: made.address, bytes: made.bytes, stream: made.stream }
    }

    fn lives_in(&self, span: &Range<usize>) -> bool {
        self.born < span.end && self.died.is_none_or(|died| died > span.start)
    }
}

impl BlockHistory {
    /// Makes the history of the events from `from` to before `to`.
    pub(super) fn of(trace: &Trace, from: usize, to: usize) -> Self {
        let end = to.min(trace.events().len());
        let span = from.min(end)..end;
        let mut blocks: Vec<Life> = Vec::new();
        let mut live: FxHashMap<u64, usize> = FxHashMap::default();
        let mut segments = SegmentLives::default();
        let mut marks = Vec::new();
        let mut names = FxHashMap::default();
        for (index, event) in trace.events().iter().enumerate() {
            match event.action {
                TraceAction::Alloc => {
                    live.insert(event.address, blocks.len());
                    blocks.push(Life::new(index, event));
                }
                TraceAction::FreeCompleted => {
                    if let Some(block) = live.remove(&event.address) {
                        blocks[block].died = Some(index);
                    }
                }
                TraceAction::SegmentAlloc | TraceAction::SegmentMap => segments.add(index, event),
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => segments.remove(index, event),
                TraceAction::Snapshot | TraceAction::Oom | TraceAction::UserDefined | TraceAction::Annotate => {
                    if span.contains(&index) && marks.len() < MARKS {
                        marks.push(index);
                    }
                    if event.action == TraceAction::Annotate
                        && let Some(&block) = live.get(&event.address)
                    {
                        names.insert(blocks[block].made, index);
                    }
                }
                TraceAction::FreeRequested => {}
            }
        }
        blocks.retain(|block| block.lives_in(&span));
        let mut segments = segments.finish();
        segments.retain(|segment| segment.lives_in(&span));
        Self { span, blocks, segments, earlier: trace.earlier_events(), marks, names }
    }

    /// Returns the numbers of `lives`, ordered by bytes × events in the span, the highest first.
    pub(super) fn by_weight(&self, lives: &[Life]) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..lives.len() as u32).collect();
        numbers.sort_by_cached_key(|number| {
            let life = &lives[*number as usize];
            let events = self.clipped(life.died) - self.clipped(Some(life.born));
            Reverse(u128::from(life.bytes) * events as u128)
        });
        numbers
    }

    fn clipped(&self, event: Option<usize>) -> usize {
        event.map_or(self.span.end, |event| event.clamp(self.span.start, self.span.end))
    }

    /// Returns the sum of the blocks that `is_kept` excludes, in about `most_steps` steps at most.
    pub(super) fn summed(&self, is_kept: &[bool], most_steps: usize) -> Summed {
        let left_out = || self.blocks.iter().zip(is_kept).filter(|(_, kept)| !**kept).map(|(block, _)| block);
        let mut changes: Vec<(usize, u64, bool)> = Vec::new();
        for block in left_out() {
            changes.push((self.clipped(Some(block.born)), block.bytes, true));
            if let Some(died) = block.died.filter(|&died| died < self.span.end) {
                changes.push((died, block.bytes, false));
            }
        }
        // Blocks from before the span come at its first event, gains first: no block is freed before it was made.
        changes.sort_unstable_by_key(|&(event, _, gains)| (event, !gains));
        let mut exact: Vec<(usize, u64)> = Vec::new();
        let mut live = 0;
        for (event, bytes, gains) in changes {
            live = if gains { live + bytes } else { live - bytes };
            match exact.last_mut().filter(|step| step.0 == event) {
                Some(step) => step.1 = live,
                None => exact.push((event, live)),
            }
        }
        let peak_bytes = exact.iter().map(|step| step.1).max().unwrap_or(0);
        let together = exact.len().div_ceil(most_steps.max(1)).max(1);
        Summed { steps: merged(&exact, together), blocks: left_out().count(), peak_bytes, is_exact: together == 1 }
    }
}

/// Merges every `together` steps into one. A step's value holds until the next begins.
fn merged(steps: &[(usize, u64)], together: usize) -> Vec<(usize, u64)> {
    steps.chunks(together).map(|steps| (steps[0].0, steps.iter().map(|step| step.1).max().unwrap_or(0))).collect()
}

/// Ranges of segments by their first bytes.
#[derive(Default)]
struct SegmentLives {
    live: BTreeMap<u64, Life>,
    ended: Vec<Life>,
}

impl SegmentLives {
    fn add(&mut self, index: usize, event: &TraceEvent) {
        // Memory may be mapped where some of it was already mapped.
        self.remove(index, event);
        self.live.insert(event.address, Life::new(index, event));
    }

    /// Ends the parts of segments in the event's range. The parts around it stay alive.
    fn remove(&mut self, index: usize, event: &TraceEvent) {
        let end = event.address.saturating_add(event.bytes);
        let first = self.live.range(..=event.address).next_back().map_or(event.address, |(&address, _)| address);
        let met: Vec<u64> = self.live.range(first..end).map(|(&address, _)| address).collect();
        for address in met {
            let Some(life) = self.live.remove(&address) else { continue };
            let life_end = life.address.saturating_add(life.bytes);
            if life_end <= event.address {
                self.live.insert(address, life);
                continue;
            }
            self.ended.push(Life { died: Some(index), ..life });
            let mut keep = |address: u64, end: u64| {
                if address < end {
                    self.live.insert(address, Life { born: index, address, bytes: end - address, ..life });
                }
            };
            keep(life.address, event.address);
            keep(end, life_end);
        }
    }

    fn finish(self) -> Vec<Life> {
        let mut lives: Vec<Life> = self.ended.into_iter().chain(self.live.into_values()).collect();
        lives.retain(|life| life.died != Some(life.born));
        lives.sort_unstable_by_key(|life| (life.born, life.address));
        lives
    }
}
