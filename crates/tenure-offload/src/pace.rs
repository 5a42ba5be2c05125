//! Plans by the clock of the program's allocations: a step that follows one reports only the tensors that move.
//!
//! A front end that reports each saved tensor and each operation pays for each. But a program that repeats a step
//! allocates in the same order each time, and the allocator is called in any case. So a measured step notes the
//! [pace](Pace): how many large allocations (*ticks*) there were before each of its events. A plan then becomes a
//! [`Timetable`]: at which ticks something is to be done. Between them, neither the front end nor the engine is called.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tenure_device::Stream;
use tenure_device::allocation_clock::{AllocationClock, Tick};

use crate::identity::SavedIndex;
use crate::profiled::{OperationAt, Profiled};
use crate::schedule::Schedule;

/// A front end whose program's allocations are counted by an
/// [`AllocationClock`](tenure_device::allocation_clock::AllocationClock).
pub trait PacedFrontEnd: Send + Sync {
    /// Returns where the calling thread is.
    fn position(&self) -> Position;

    /// Returns whether only one thread of the program works within the budget. If several do, their steps interleave,
    /// so that no step is like another.
    fn is_alone(&self) -> bool;

    /// Returns the stream on which the calling thread puts its work, on a device.
    fn stream(&self) -> Option<Stream>;

    /// Reports this part of the calling thread's work from now on, and no other.
    fn watch(&self, watched: Watched);

    /// Makes at least `bytes` of the program's state leave to zero-copy memory, if there are so many, and tells the
    /// engine how many stay ([state](crate::Engine::set_state_bytes), [gradients and
    /// weights](crate::Engine::set_parameter_bytes)). Returns whether some leave. It is called between steps.
    fn release_state(&self, bytes: u64, part: StatePart) -> bool;
}

/// A part of the program's state that can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The state of optimizers, which no pass uses.
    Optimizers,
    /// That, and then gradients and weights.
    All,
}

/// Where a thread of the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// In forward, where the thread can be [watched](PacedFrontEnd::watch). Its *sequence number* grows with each
    /// operation that is no part of another operation.
    Forward(u64),
    /// In backward, in the operation that belongs to the one of this sequence number. The thread cannot be watched.
    Backward(u64),
    /// The thread cannot be watched, and the front end does not know more.
    Unknown,
}

impl Position {
    /// Returns the sequence number, in forward.
    pub(crate) fn sequence(self) -> Option<u64> {
        match self {
            Self::Forward(sequence) => Some(sequence),
            Self::Backward(_) | Self::Unknown => None,
        }
    }

    /// Returns the position with its sequence number counted from `begin`, that of the beginning of the step.
    fn since(self, begin: u64) -> Self {
        match self {
            Self::Forward(sequence) => Self::Forward(sequence.wrapping_sub(begin)),
            Self::Backward(sequence) => Self::Backward(sequence.wrapping_sub(begin)),
            Self::Unknown => Self::Unknown,
        }
    }

    /// Returns whether a step is at this position before it is at another. Backward goes through the operations in
    /// reverse.
    fn is_before(self, other: Self) -> bool {
        match (self, other) {
            (Self::Forward(own), Self::Forward(other)) => own < other,
            (Self::Backward(own), Self::Backward(other)) => own > other,
            (Self::Forward(_), Self::Backward(_)) => true,
            (Self::Backward(_), Self::Forward(_)) | (Self::Unknown, _) | (_, Self::Unknown) => false,
        }
    }
}

/// The place of an allocation among the ticks of the measured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TickPlace {
    /// It is the tick of this number.
    At(u64),
    /// It is none of them, and comes before the one of this number.
    Before(u64),
}

/// The part of a thread's work that the front end reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Whether it reports the tensors that are saved.
    pub saves: bool,
    /// The [sequence number](Position::Forward) from which on it reports operations. None if it reports none.
    pub operations_from: Option<u64>,
}

/// The place of a save, which is the same in steps of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SavePlace {
    /// The position, with its sequence number counted from that of the beginning of the step.
    position: Position,
    /// The number of ticks before it: at this position, or of all where the position is unknown.
    ticks: u64,
    /// The number of saves since the last of these ticks.
    number: usize,
}

/// Counts the saves since the last tick or change of the position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SaveCounter {
    last: Option<SavePlace>,
}

impl SaveCounter {
    /// Returns the place of the next save, at a position and after so many ticks there.
    fn next(&mut self, position: Position, ticks: u64) -> SavePlace {
        let last = self.last.filter(|last| (last.position, last.ticks) == (position, ticks));
        let place = SavePlace { position, ticks, number: last.map_or(0, |last| last.number + 1) };
        self.last = Some(place);
        place
    }
}

/// A save of a measured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacedSave {
    index: SavedIndex,
    /// The number of ticks before it.
    tick: u64,
}

/// An operation of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacedOperation {
    /// The number of ticks before it began.
    pub(crate) began: u64,
    /// The number of ticks before it was reported.
    pub(crate) ended: u64,
    pub(crate) sequence: u64,
}

/// The pace of a step: how its events lie between its ticks. Sequence numbers count from the beginning of the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    /// The number of ticks before each event.
    pub(crate) events: Vec<u64>,
    /// Each saved tensor, by the places at which it was saved.
    saves: HashMap<SavePlace, PacedSave>,
    /// The operations, in order.
    pub(crate) operations: Vec<PacedOperation>,
    /// The position at each tick.
    positions: Vec<Position>,
    /// The ticks at each position that is known.
    ticks: HashMap<Position, Vec<u64>>,
    /// The bytes of each tick before the last event. Those of the optimizer, for example, come after it.
    pub(crate) sizes: Arc<[usize]>,
}

impl Pace {
    /// Notes which ticks are at which position.
    fn index_ticks(&mut self) {
        for (tick, position) in self.positions.iter().enumerate().filter(|(_, at)| **at != Position::Unknown) {
            self.ticks.entry(*position).or_default().push(tick as u64);
        }
    }

    /// Returns how many events a step has passed when tick number `tick` begins.
    pub(crate) fn passed(&self, tick: u64) -> usize {
        self.events.partition_point(|event| *event <= tick)
    }

    /// Returns each saved tensor of another step that was saved at the same place as one of this step, by the index of
    /// the latter.
    pub(crate) fn same_saves(&self, other: &Self) -> HashMap<SavedIndex, SavedIndex> {
        let same = |(place, save): (&SavePlace, &PacedSave)| Some((save.index, other.saves.get(place)?.index));
        self.saves.iter().filter_map(same).collect()
    }

    /// Returns the place of an allocation of this size. Tick number `now` was next. None if the step is too far from
    /// the measured one.
    pub(crate) fn place(&self, now: u64, bytes: usize, position: Position) -> Option<TickPlace> {
        /// The most ticks that may be missing, or too many, at a time.
        const MOST: u64 = 256;
        let all = self.positions.len() as u64;
        let now = now.min(all);
        let near = now.saturating_sub(MOST)..all.min(now + MOST);
        let is_size = |tick: u64| self.sizes.get(tick as usize) == Some(&bytes);
        let nearest = if position == Position::Unknown {
            // There is only the size.
            let same = near.clone().filter(|tick| self.positions[*tick as usize] == position && is_size(*tick));
            same.min_by_key(|tick| tick.abs_diff(now))
        } else {
            let same = self.ticks.get(&position).into_iter().flatten().copied().filter(|tick| near.contains(tick));
            same.min_by_key(|tick| (!is_size(*tick), tick.abs_diff(now)))
        };
        if let Some(tick) = nearest {
            return Some(TickPlace::At(tick));
        }
        if position == Position::Unknown {
            return Some(TickPlace::Before(now));
        }
        let after = near.clone().find(|tick| position.is_before(self.positions[*tick as usize]))?;
        Some(TickPlace::Before(after))
    }

    /// Returns how many of the last ticks before tick number `now` were at a position. Where that is unknown, all of
    /// them.
    fn ticks_at(&self, position: Position, now: u64) -> u64 {
        if position == Position::Unknown {
            return now;
        }
        let before = &self.positions[..self.positions.len().min(now as usize)];
        before.iter().rev().take_while(|measured| **measured == position).count() as u64
    }

    /// Returns whether a thread at this position may be at tick number `tick`: both are in forward, or neither is.
    fn may_be_at(&self, tick: u64, position: Position) -> bool {
        let measured = self.positions.get(tick as usize);
        measured.is_none_or(|measured| measured.sequence().is_some() == position.sequence().is_some())
    }

    /// Returns the last tick before tick number `tick` at which `may_begin` holds for the sequence number.
    fn last_before(&self, tick: u64, may_begin: impl Fn(u64) -> bool) -> Option<u64> {
        let before = &self.positions[..self.positions.len().min(tick as usize)];
        before.iter().rposition(|position| position.sequence().is_some_and(&may_begin)).map(|tick| tick as u64)
    }

    /// Returns the first tick, from number `tick` on, in a thread that can be watched. `u64::MAX` if there is none.
    fn first_from(&self, tick: u64) -> u64 {
        let later = self.positions.iter().enumerate().skip(tick as usize);
        later.into_iter().find(|(_, position)| position.sequence().is_some()).map_or(u64::MAX, |(tick, _)| tick as u64)
    }

    /// Returns the span of ticks in which to report saves, so that those after `tick` ticks are.
    fn span_of_saves(&self, tick: u64) -> Span {
        Span { begin: self.last_before(tick, |_| true), end: self.first_from(tick) }
    }

    /// Returns the span of ticks in which to report operations, so that this one is. It begins within an operation that
    /// is over when this one begins: those that begin within another are parts of it, and are not reported.
    fn span_of_operation(&self, operation: PacedOperation) -> Span {
        let begin = self.last_before(operation.began, |sequence| sequence < operation.sequence);
        Span { begin, end: self.first_from(operation.ended) }
    }

    /// Returns the number of the first operation that is reported if reports begin at a tick, at this sequence number.
    fn first_reported(&self, tick: u64, sequence: u64) -> usize {
        let later = self.operations.partition_point(|operation| operation.began <= tick);
        let seen = self.operations[later..].iter().position(|operation| operation.sequence > sequence);
        seen.map_or(self.operations.len(), |seen| later + seen)
    }
}

/// Measures the pace of a step.
pub(crate) struct PaceMeter {
    clock: &'static AllocationClock,
    front_end: Arc<dyn PacedFrontEnd>,
    pace: Pace,
    counter: SaveCounter,
    /// The operation that has begun last.
    operation: PacedOperation,
    sizes: Vec<usize>,
    /// The sequence number at the beginning of the step.
    begin: u64,
}

impl PaceMeter {
    pub(crate) fn new(clock: &'static AllocationClock, front_end: Arc<dyn PacedFrontEnd>) -> Self {
        let (pace, counter, operation, sizes) = Default::default();
        let begin = front_end.position().sequence().unwrap_or(0);
        Self { clock, front_end, pace, counter, operation, sizes, begin }
    }

    /// Returns where the calling thread is.
    fn position(&self) -> Position {
        self.front_end.position().since(self.begin)
    }

    /// Notes an event, including an operation.
    pub(crate) fn event(&mut self) {
        self.pace.events.push(self.clock.now());
    }

    /// Notes that the front end is about to ask for an operation.
    pub(crate) fn begin_operation(&mut self) {
        let sequence = self.position().sequence().unwrap_or(0);
        self.operation = PacedOperation { began: self.clock.now(), ended: 0, sequence };
    }

    /// Notes that the operation which has begun last is over.
    pub(crate) fn end_operation(&mut self) {
        self.pace.operations.push(PacedOperation { ended: self.clock.now(), ..self.operation });
        self.event();
    }

    /// Returns the place of a save that happens now.
    pub(crate) fn next_save(&mut self) -> SavePlace {
        let position = self.position();
        self.counter.next(position, self.pace.ticks_at(position, self.clock.now()))
    }

    /// Notes which saved tensor was saved at a place.
    pub(crate) fn save(&mut self, place: SavePlace, index: SavedIndex) {
        self.pace.saves.insert(place, PacedSave { index, tick: self.clock.now() });
    }

    /// Returns the pace, with the events for which `is_event` is true.
    pub(crate) fn finish(self, is_event: &[bool]) -> Pace {
        let Self { mut pace, mut sizes, .. } = self;
        let mut is_event = is_event.iter();
        pace.events.retain(|_| is_event.next().copied().unwrap_or(false));
        sizes.truncate(pace.events.last().map_or(0, |last| *last as usize));
        pace.sizes = sizes.into();
        pace.index_ticks();
        pace
    }

    /// Notes a tick, in a thread at this position.
    pub(crate) fn tick(&mut self, tick: Tick, position: Position) {
        // If two threads allocate at once, one may come too late.
        self.pace.positions.resize(tick.number as usize, Position::Unknown);
        self.pace.positions.push(position.since(self.begin));
        self.sizes.resize(tick.number as usize, 0);
        self.sizes.push(tick.bytes);
    }
}

/// A span of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    /// The tick in which it begins. None if it begins with the step.
    begin: Option<u64>,
    /// The tick at whose beginning it ends. `u64::MAX` if it never does.
    end: u64,
}

impl Span {
    /// Returns the union of spans, as spans that do not touch, in order.
    fn union(mut spans: Vec<Self>) -> Vec<Self> {
        spans.sort_unstable();
        let mut union: Vec<Self> = Vec::new();
        for span in spans {
            match union.last_mut() {
                Some(last) if span.begin.is_none_or(|begin| begin <= last.end) => last.end = last.end.max(span.end),
                _ => union.push(span),
            }
        }
        union
    }

    /// Returns the span that is open after tick `tick` has begun.
    fn open_at(spans: &[Self], tick: u64) -> Option<Self> {
        spans.iter().find(|span| span.begin <= Some(tick) && tick < span.end).copied()
    }
}

/// The ticks at which a planned step does something, and the part of its work that is reported.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Timetable {
    /// The ticks at which something is done, in order.
    stops: Vec<Stop>,
    /// The saved tensors that the engine takes: those that the plan moves, those from which it recomputes, and a
    /// reserve of others, which can leave if there is less room than the plan assumed.
    taken: HashSet<SavedIndex>,
    /// The numbers of the operations that the plan may repeat.
    repeated: HashSet<usize>,
    /// Whether operations are reported from the beginning of the step on.
    begins_with_operations: bool,
}

/// A tick at which a planned step does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    tick: u64,
    /// Whether saves are reported from now on.
    saves: bool,
    operations: OperationsFrom,
}

/// A stop begins the reports of operations, ends them, or leaves them as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationsFrom {
    /// None is reported from now on.
    Never,
    /// They begin.
    Now,
    /// They go on.
    Before,
}

/// The reserve of a timetable is one part in this many of the budget.
const RESERVE_PART: u64 = 8;

impl Timetable {
    /// Returns the timetable of a plan, which repeats the operations `repeated`, and for which room has to be made at
    /// the points `releases`.
    pub(crate) fn of(
        profiled: &Profiled,
        pace: &Pace,
        schedule: &Schedule,
        repeated: &HashSet<OperationAt>,
        releases: &[usize],
        budget_bytes: u64,
    ) -> Self {
        let profile = &profiled.profile;
        let taken = taken(profiled, schedule, budget_bytes / RESERVE_PART);
        let busy = (0..profile.intervals()).filter(|point| !schedule.at(*point).is_empty());
        let points = busy.chain(releases.iter().copied());
        let mut ticks: BTreeSet<u64> = points.filter_map(|point| pace.events.get(point).copied()).collect();
        let saves = pace.saves.values().filter(|save| taken.contains(&save.index));
        let mut saves: Vec<Span> = saves.map(|save| pace.span_of_saves(save.tick)).collect();
        // The first tensor that is saved tells when backward is over, and a step may begin by a save.
        let first = profile.saved().first().and_then(|saved| pace.events.get(saved.at()));
        saves.push(Span { begin: None, end: first.map_or(u64::MAX, |first| pace.first_from(*first)) });
        saves.push(Span { begin: pace.last_before(u64::MAX, |_| true), end: u64::MAX });
        let saves = Span::union(saves);
        let number =
            |at: &OperationAt| profiled.operated.partition_point(|operated| *operated < at.interval) + at.number;
        let repeated: HashSet<usize> = repeated.iter().map(number).collect();
        let operations = repeated.iter().filter_map(|number| pace.operations.get(*number));
        let operations = Span::union(operations.map(|operation| pace.span_of_operation(*operation)).collect());
        for Span { begin, end } in saves.iter().chain(&operations) {
            ticks.extend(begin);
            ticks.insert(*end);
        }
        ticks.remove(&u64::MAX);
        let stops = ticks.into_iter().map(|tick| {
            let operations = match Span::open_at(&operations, tick) {
                None => OperationsFrom::Never,
                Some(Span { begin, .. }) if begin == Some(tick) => OperationsFrom::Now,
                Some(_) => OperationsFrom::Before,
            };
            Stop { tick, saves: Span::open_at(&saves, tick).is_some(), operations }
        });
        let begins_with_operations = operations.first().is_some_and(|first| first.begin.is_none());
        Self { stops: stops.collect(), taken, repeated, begins_with_operations }
    }
}

/// Returns the saved tensors that the engine takes in a step with this schedule, with a reserve of so many bytes.
fn taken(profiled: &Profiled, schedule: &Schedule, reserve_bytes: u64) -> HashSet<SavedIndex> {
    let saved = profiled.profile.saved();
    let mut taken: HashSet<SavedIndex> = schedule.saved(saved.len()).collect();
    let makings = schedule.dropped().filter_map(|index| profiled.makings.get(index.0)?.as_ref());
    taken.extend(makings.flat_map(|making| making.inputs.iter().copied()));
    let others = (0..saved.len()).map(SavedIndex);
    let mut others: Vec<SavedIndex> = others.filter(|index| !taken.contains(index) && !saved[index.0].stays).collect();
    others.sort_by_key(|index| Reverse(saved[index.0].bytes));
    let mut bytes = 0;
    for index in others {
        if bytes >= reserve_bytes {
            break;
        }
        bytes += saved[index.0].bytes;
        taken.insert(index);
    }
    taken
}

/// The state of a step that follows a timetable.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// The number of stops that are over.
    stops: usize,
    counter: SaveCounter,
    /// The number of the operation that is reported next.
    operation: usize,
    /// The sequence number from which on operations are reported, while they are.
    operations_from: Option<u64>,
    /// The number of ticks after which all saves are reported, since there was too little room.
    all_since: Option<u64>,
    /// The number of events before the end of each group of intervals that was timed.
    timed: Vec<usize>,
    /// The sequence number at the beginning of the step.
    begin: u64,
    /// The bytes by which the allocations of forward may still be larger than those of the measured step, all together.
    more_bytes: i64,
    sizes: Sizes,
}

/// The sizes of a step's allocations, beside those of the measured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sizes {
    /// All have been the same so far.
    #[default]
    Same,
    /// One differed.
    Varied,
    /// The measured steps had others. Then each tick is found by its position.
    Estimated,
}

impl Paced {
    /// Returns the state of a step that begins at this position, and in which allocations of forward may be larger by
    /// as much as the reserve has. The sizes of an estimated step are not known.
    pub(crate) fn new(timetable: &Timetable, position: Position, budget_bytes: u64, is_estimate: bool) -> Self {
        let more_bytes = if is_estimate { u64::MAX } else { budget_bytes / RESERVE_PART };
        Self {
            operations_from: timetable.begins_with_operations.then_some(0),
            begin: position.sequence().unwrap_or(0),
            more_bytes: i64::try_from(more_bytes).unwrap_or(i64::MAX),
            sizes: if is_estimate { Sizes::Estimated } else { Sizes::Same },
            ..Self::default()
        }
    }

    /// Returns the place of a tick, in a thread at this position. Sizes may depend on the program's data, and with them
    /// which allocations are large enough to count. None if the step does something else than the measured one, or
    /// takes much more.
    pub(crate) fn place(&mut self, pace: &Pace, tick: Tick, position: Position) -> Option<TickPlace> {
        if tick.is_expected && self.sizes != Sizes::Estimated {
            if pace.may_be_at(tick.number, position) {
                return Some(TickPlace::At(tick.number));
            }
            if self.sizes == Sizes::Same {
                // There are more operations, or fewer.
                return None;
            }
        }
        if self.sizes == Sizes::Same {
            self.sizes = Sizes::Varied;
        }
        let place = pace.place(tick.number, tick.bytes, position.since(self.begin))?;
        if let Position::Forward(_) = position {
            let expected = match place {
                TickPlace::At(number) => pace.sizes.get(number as usize).copied().unwrap_or(0),
                TickPlace::Before(_) => 0,
            };
            self.more_bytes = self.more_bytes.saturating_add(expected as i64 - tick.bytes as i64);
        }
        (self.more_bytes >= 0).then_some(place)
    }

    /// Returns whether an allocation differed from that of the measured step, or may have done so.
    pub(crate) fn has_varied(&self) -> bool {
        self.sizes != Sizes::Same
    }

    /// Returns the tick of the next stop.
    pub(crate) fn next_stop(&self, timetable: &Timetable) -> Option<u64> {
        Some(timetable.stops.get(self.stops)?.tick)
    }

    /// Passes the stops up to a tick, at which the thread has this sequence number. Returns what to watch from now on,
    /// if there was a stop.
    pub(crate) fn pass(
        &mut self,
        pace: &Pace,
        timetable: &Timetable,
        tick: u64,
        sequence: Option<u64>,
    ) -> Option<Watched> {
        let before = self.stops;
        while let Some(stop) = timetable.stops.get(self.stops).filter(|stop| stop.tick <= tick) {
            self.stops += 1;
            match stop.operations {
                OperationsFrom::Before => {}
                OperationsFrom::Never => self.operations_from = None,
                OperationsFrom::Now => {
                    self.operation = pace.first_reported(tick, sequence.unwrap_or(0).wrapping_sub(self.begin));
                    // Operations that are parts of the present one have its number.
                    self.operations_from = sequence.map(|sequence| sequence + 1);
                }
            }
        }
        let last = timetable.stops[..self.stops].last().filter(|_| self.stops > before)?;
        let saves = last.saves || self.all_since.is_some();
        Some(Watched { saves, operations_from: self.operations_from })
    }

    /// Reports all saves from now on. Returns what to watch, unless this was so before.
    pub(crate) fn watch_all(&mut self, now: u64) -> Option<Watched> {
        if self.all_since.is_some() {
            return None;
        }
        self.all_since = Some(now);
        Some(Watched { saves: true, operations_from: self.operations_from })
    }

    /// Returns the saved tensor that is saved now, at this position and after `now` ticks, if the engine takes it.
    pub(crate) fn save(
        &mut self,
        pace: &Pace,
        timetable: &Timetable,
        now: u64,
        position: Position,
    ) -> Option<SavedIndex> {
        let position = position.since(self.begin);
        let place = self.counter.next(position, pace.ticks_at(position, now));
        let index = pace.saves.get(&place)?.index;
        // Some saves may be missing in the part in which reports began.
        let takes_all = self.all_since.is_some_and(|since| now > since);
        (takes_all || timetable.taken.contains(&index)).then_some(index)
    }

    /// Notes that a group of intervals was timed, before whose end there were so many events.
    pub(crate) fn note_timed(&mut self, events: usize) {
        self.timed.push(events);
    }

    /// Returns the number of events before the end of each group of intervals that was timed.
    pub(crate) fn timed(&self) -> &[usize] {
        &self.timed
    }

    /// Returns the sequence number from which on operations are reported, if they are.
    pub(crate) fn operations_from(&self) -> Option<u64> {
        self.operations_from
    }

    /// Counts an operation that is reported now. Returns whether the plan may repeat it.
    pub(crate) fn count_operation(&mut self, timetable: &Timetable) -> bool {
        let number = self.operation;
        self.operation += 1;
        self.operations_from.is_some() && timetable.repeated.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_found_by_its_operation_and_not_by_its_size() {
        let positions = vec![
            Position::Forward(11),
            Position::Forward(12),
            Position::Forward(12),
            Position::Forward(14),
            Position::Backward(14),
            Position::Backward(12),
        ];
        let positions = positions.into_iter().map(|position: Position| position.since(10)).collect();
        let mut pace = Pace { positions, sizes: [5, 6, 7, 8, 9, 3].into(), ..Pace::default() };
        pace.index_ticks();
        // The numbers of this step are larger by 90.
        let place = |now, bytes, position: Position| pace.place(now, bytes, position.since(100));
        assert_eq!(place(0, 50, Position::Forward(101)), Some(TickPlace::At(0)));
        // Of two in one operation, the one of this size counts, or else the nearer one.
        assert_eq!(place(1, 7, Position::Forward(102)), Some(TickPlace::At(2)));
        assert_eq!(place(1, 4, Position::Forward(102)), Some(TickPlace::At(1)));
        assert_eq!(place(3, 4, Position::Forward(102)), Some(TickPlace::At(2)));
        // Some are too many, and some are missing.
        assert_eq!(place(3, 9, Position::Forward(103)), Some(TickPlace::Before(3)));
        assert_eq!(place(1, 9, Position::Backward(103)), Some(TickPlace::Before(5)));
        assert_eq!(place(6, 9, Position::Backward(102)), Some(TickPlace::At(5)));
        // Nothing comes after the last. Of other threads, only the size is known.
        assert_eq!(place(5, 9, Position::Backward(101)), None);
        assert_eq!(place(5, 7, Position::Unknown), Some(TickPlace::Before(5)));
    }
}
