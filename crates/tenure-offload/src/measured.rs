//! The measurement of a step, while the step runs.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_device::{DriverError, Stream};
use tenure_tier::codec::Choice;

use crate::clock::IntervalClock;
use crate::error::OffloadError;
use crate::identity::{Pass, ResidentIndex, SavedIndex, TensorId};
use crate::machine::Peak;
use crate::pace::PaceMeter;
use crate::place::{OffloadTensor, Recomputation, SavedBytesId};
use crate::profile::Profile;
use crate::profiled::{Making, OperationAt, Operations, Profiled, StepEvent, TIMED_STEPS};

/// The measurements of a step.
pub(crate) struct Measured {
    pub(crate) pass: Pass,
    pub(crate) profile: Profile,
    pub(crate) clock: IntervalClock,
    pub(crate) events: Vec<StepEvent>,
    pub(crate) operations: Operations,
    /// The indices of the saved tensors.
    pub(crate) saved: HashMap<SavedBytesId, SavedIndex>,
    /// The residents, by their index.
    pub(crate) residents: Vec<TensorId>,
    /// The way to recompute each saved tensor, by index.
    pub(crate) recomputes: Vec<Option<Arc<dyn Recomputation>>>,
    /// The codec of each saved tensor, by index.
    pub(crate) codecs: Vec<Choice>,
    /// The number of events before the first write to bytes, such as a parameter's update during backward.
    pub(crate) writes: HashMap<SavedBytesId, usize>,
    /// The bytes that were allocated when the step began.
    pub(crate) allocated_bytes: u64,
    /// The part of them that was the program's state.
    pub(crate) state_bytes: u64,
    /// The bytes of saved tensors and residents in memory, when the interval began or was resumed.
    pub(crate) in_memory_bytes: u64,
    /// The saved tensors whose storage the front end used when the interval began, and still uses.
    pub(crate) used_by_others: Vec<TensorId>,
    /// The bytes of the tensors that the front end has released since the interval began.
    pub(crate) released_bytes: u64,
    /// The most bytes that were allocated beside saved tensors and residents in the interval so far.
    pub(crate) other_bytes: u64,
    /// The peak of the step so far.
    pub(crate) peak: Peak,
    /// The meter of the step's pace, if its program's allocations are counted.
    pub(crate) pace: Option<PaceMeter>,
}

impl Measured {
    pub(crate) fn new<'a>(
        pass: Pass,
        all_residents: impl Iterator<Item = (TensorId, &'a OffloadTensor)>,
        clock: IntervalClock,
        allocated_bytes: u64,
        state_bytes: u64,
        pace: Option<PaceMeter>,
    ) -> Self {
        let mut profile = Profile::new();
        let mut residents = Vec::new();
        for (id, tensor) in all_residents {
            profile.add_resident(&tensor.name, tensor.bytes);
            residents.push(id);
        }
        let events = Vec::new();
        let operations = Operations::default();
        let saved = HashMap::new();
        let recomputes = Vec::new();
        let codecs = Vec::new();
        Self {
            pass,
            profile,
            clock,
            events,
            operations,
            saved,
            residents,
            recomputes,
            codecs,
            writes: HashMap::new(),
            allocated_bytes,
            state_bytes,
            in_memory_bytes: 0,
            used_by_others: Vec::new(),
            released_bytes: 0,
            other_bytes: 0,
            peak: Peak::default(),
            pace,
        }
    }

    /// Adds the details of the tensor that the profile's last point saved.
    pub(crate) fn add(
        &mut self,
        id: SavedBytesId,
        recompute: Option<Arc<dyn Recomputation>>,
        codec: Choice,
        compression: Option<f64>,
    ) {
        let index = SavedIndex(self.recomputes.len());
        self.profile.saved_mut(index).compression = compression;
        self.saved.insert(id, index);
        self.recomputes.push(recompute);
        self.codecs.push(codec);
    }

    /// Notes that the front end has asked for an operation, and that it made the bytes `made`, if given.
    pub(crate) fn operation(&mut self, made: Option<SavedBytesId>, stream: Option<&Stream>) -> Result<(), DriverError> {
        self.clock.split(stream)?;
        if let Some(made) = made {
            self.operations.add(made, self.events.len());
        }
        // The next save or need tells the bytes that the interval needs, for all operations since the last one.
        self.profile.end(0);
        self.events.push(StepEvent::Operation);
        self.pace.iter_mut().for_each(PaceMeter::end_operation);
        Ok(())
    }

    /// Notes that the front end is about to write to these bytes.
    pub(crate) fn write(&mut self, id: SavedBytesId) {
        let events = self.events.len();
        self.writes.entry(id).or_insert(events);
    }

    /// Removes the makings of tensors that are used after one of their inputs was written to. A tensor is used where
    /// backward needs it, and where a tensor that is made from it is used.
    fn remove_overwritten(&self, makings: &mut [Option<Making>]) {
        let mut last_uses = vec![0; makings.len()];
        for (at, event) in self.events.iter().enumerate() {
            if let StepEvent::Need { index } = event {
                last_uses[index.0] = at;
            }
        }
        // The inputs of a tensor were saved before it.
        for index in (0..makings.len()).rev() {
            let Some(making) = &makings[index] else { continue };
            if making.stays.iter().any(|id| self.writes.get(id).is_some_and(|&write| write <= last_uses[index])) {
                makings[index] = None;
                continue;
            }
            for input in &making.inputs {
                last_uses[input.0] = last_uses[input.0].max(last_uses[index]);
            }
        }
    }

    /// Notes that a resident is about to be used, after an interval that needed `other_bytes` beside saved tensors.
    pub(crate) fn lend(&mut self, other_bytes: u64, id: TensorId) {
        match self.residents.iter().position(|resident| *resident == id) {
            Some(resident) => self.profile.lend(other_bytes, ResidentIndex(resident)),
            None => {
                self.profile.end(other_bytes);
            }
        }
    }

    /// Notes that the use of a resident is over, after an interval that needed `other_bytes` beside saved tensors.
    pub(crate) fn give_back(&mut self, other_bytes: u64, id: TensorId) {
        match self.residents.iter().position(|resident| *resident == id) {
            Some(resident) => self.profile.give_back(other_bytes, ResidentIndex(resident)),
            None => {
                self.profile.end(other_bytes);
            }
        }
    }

    /// Returns how a saved tensor is made, if that is known.
    pub(crate) fn making(&self, index: SavedIndex) -> Option<Making> {
        self.operations.making(&**self.recomputes.get(index.0)?.as_ref()?, index, &self.saved)
    }

    /// Returns whether backward has begun: a saved tensor has been needed.
    pub(crate) fn is_backward(&self) -> bool {
        self.events.iter().any(|event| matches!(event, StepEvent::Need { .. }))
    }

    /// Adds the peak since it was last taken, and returns the most bytes that were allocated beside saved tensors and
    /// residents in the interval so far.
    pub(crate) fn other_bytes(&mut self, peak: Peak) -> u64 {
        self.peak = self.peak.max(peak);
        self.other_bytes =
            self.other_bytes.max(peak.allocated_bytes.saturating_sub(self.in_memory_bytes + self.released_bytes));
        self.other_bytes
    }

    /// Returns the profile of the step. Its operations only serve to time how saved tensors are made: a plan knows only
    /// the intervals between saves, needs and uses of residents, so that planned steps need no event for each
    /// operation.
    pub(crate) fn finish(self) -> Result<Profiled, OffloadError> {
        let mut makings: Vec<_> = (0..self.recomputes.len()).map(|index| self.making(SavedIndex(index))).collect();
        self.remove_overwritten(&mut makings);
        let Self { mut profile, clock, events, residents, codecs, allocated_bytes, state_bytes, pace, .. } = self;
        let times_ns = clock.finish()?;
        profile.set_times(times_ns.iter().copied());
        profile.hold_staying();
        let mut sharing: HashMap<OperationAt, u64> = HashMap::new();
        for operation in makings.iter().flatten().flat_map(|making| &making.operations) {
            *sharing.entry(*operation).or_default() += 1;
        }
        for (index, making) in makings.iter().enumerate() {
            let recipe = making.as_ref().map(|making| making.recipe(&times_ns, &sharing));
            profile.saved_mut(SavedIndex(index)).recipe = recipe;
        }
        let ends = events.iter().map(|event| usize::from(*event != StepEvent::Operation));
        let count = |group: &mut usize, end| {
            *group += end;
            Some(*group)
        };
        let groups: Vec<usize> = std::iter::once(0).chain(ends).scan(0, count).collect();
        let profile = profile.merged(&groups);
        let operated = events.iter().zip(&groups).filter(|(event, _)| **event == StepEvent::Operation);
        let operated = operated.map(|(_, group)| *group).collect();
        for operation in makings.iter_mut().flatten().flat_map(|making| &mut making.operations) {
            let interval = operation.interval;
            let before = events[..interval].iter().rev().take_while(|event| **event == StepEvent::Operation).count();
            *operation = OperationAt { interval: groups[interval], number: before };
        }
        let is_event: Vec<bool> = events.iter().map(|event| *event != StepEvent::Operation).collect();
        let pace = pace.map(|pace| pace.finish(&is_event));
        let events = events.into_iter().filter(|event| *event != StepEvent::Operation).collect();
        let makings = makings.into_iter().map(|making| making.map(Arc::new)).collect();
        let (untimed_steps, is_estimate) = (TIMED_STEPS, false);
        Ok(Profiled {
            events,
            profile,
            operated,
            pace,
            makings,
            residents,
            codecs,
            allocated_bytes,
            state_bytes,
            untimed_steps,
            is_estimate,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use tenure_core::{AllocatorRegistry, DeviceKind, Storage};

    use super::*;
    use crate::schedule::Schedule;

    /// Returns a step that saves two tensors, with three operations between the saves.
    fn measured() -> Measured {
        let now = std::sync::Arc::new(parking_lot::Mutex::new(std::time::Instant::now()));
        let time = Arc::clone(&now);
        let clock = IntervalClock::with_host_time(Arc::new(move || *time.lock()));
        let mut measured = Measured::new(Pass::Plain, std::iter::empty(), clock, 0, 0, None);
        let save = StepEvent::Save { bytes: 1 };
        let events =
            [(save, 50), (StepEvent::Operation, 5), (StepEvent::Operation, 6), (StepEvent::Operation, 7), (save, 2)];
        for (event, ms) in events.into_iter().chain([(StepEvent::Need { index: SavedIndex(1) }, 9)]) {
            measured.clock.begin(None).unwrap();
            *now.lock() += Duration::from_millis(ms);
            measured.clock.end(None).unwrap();
            match event {
                StepEvent::Save { bytes } => drop(measured.profile.save(ms, "saved", bytes)),
                StepEvent::Need { index } => measured.profile.need(ms, index),
                _ => drop(measured.profile.end(ms)),
            }
            measured.events.push(event);
        }
        measured.clock.begin(None).unwrap();
        measured.clock.end(None).unwrap();
        measured.profile.end(0);
        measured.recomputes = vec![None, None];
        measured
    }

    #[test]
    fn plans_know_of_the_intervals_between_what_is_saved_and_needed() {
        let profiled = measured().finish().unwrap();
        assert_eq!(profiled.events.len(), 3);
        let of_ms = |ms: [u64; 4]| ms.map(|ms| ms * 1_000_000).to_vec();
        assert_eq!(profiled.profile.times().collect::<Vec<_>>(), of_ms([50, 20, 9, 0]));
        let mut expected = Profile::new();
        expected.save(50, "saved", 1);
        expected.save(7, "saved", 1);
        expected.need(9, SavedIndex(1));
        expected.end(0);
        expected.set_times(of_ms([50, 20, 9, 0]));
        assert_eq!(profiled.profile, expected);
    }

    #[test]
    fn operations_are_watched_from_the_interval_of_the_one_before() {
        let mut profiled = measured().finish().unwrap();
        let at = |interval| OperationAt { interval, number: 0 };
        let making = |interval| Some(Arc::new(Making { operations: vec![at(interval)], ..Making::default() }));
        profiled.makings = vec![making(4), making(5)];
        profiled.operated = vec![0, 2, 4, 5];
        let drops = |number| {
            let step =
                tenure_plan::plan::PlanStep { tensor: number, kernel: 2, action: tenure_plan::plan::PlanAction::Drop };
            Schedule::of(&profiled.profile, &tenure_plan::Plan { places: vec![0, 0], steps: vec![step] })
        };
        let repeated = [0, 1].map(|number| profiled.repeated(&drops(number)));
        assert_eq!(repeated, [4, 5].map(|interval| HashSet::from([at(interval)])));
        assert_eq!(
            repeated.map(|repeated| profiled.intervals_to_watch(&repeated)),
            [vec![2, 3, 4], vec![4, 5]].map(HashSet::from_iter)
        );
    }

    #[test]
    fn a_tensor_that_is_used_after_a_write_to_its_inputs_is_not_recomputed() {
        let allocator = AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap();
        let parameter = (Storage::new(8, allocator).unwrap().generation(), 3);
        let need = |index| StepEvent::Need { index: SavedIndex(index) };
        let remaining = |needs: [StepEvent; 2], written_after: usize, stays: [Vec<SavedBytesId>; 2]| {
            let clock = IntervalClock::with_host_time(Arc::new(std::time::Instant::now));
            let mut measured = Measured::new(Pass::Plain, std::iter::empty(), clock, 0, 0, None);
            for (at, event) in needs.into_iter().enumerate() {
                if at == written_after {
                    measured.write(parameter);
                }
                measured.events.push(event);
            }
            let [first, second] = stays;
            // The second tensor is made from the first.
            let mut makings = vec![
                Some(Making { stays: first, ..Making::default() }),
                Some(Making { stays: second, inputs: vec![SavedIndex(0)], ..Making::default() }),
            ];
            measured.remove_overwritten(&mut makings);
            makings.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        let backward = [need(1), need(0)];
        assert_eq!(remaining(backward, 2, [vec![parameter], vec![parameter]]), [true, true]);
        assert_eq!(remaining(backward, 1, [vec![parameter], vec![]]), [false, true]);
        assert_eq!(remaining(backward, 1, [vec![], vec![parameter]]), [true, true]);
        assert_eq!(remaining(backward, 0, [vec![], vec![parameter]]), [true, false]);
        // The first tensor is needed before the write, but the second one is made from it after the write.
        assert_eq!(remaining([need(0), need(1)], 1, [vec![parameter], vec![]]), [false, true]);
    }

    #[test]
    fn the_lesser_of_two_times_counts_also_for_what_is_made_then() {
        let mut profiled = measured().finish().unwrap();
        let operations = [0, 1].map(|number| OperationAt { interval: 1, number }).to_vec();
        profiled.makings = vec![None, Some(Arc::new(Making { operations, ..Making::default() }))];
        profiled.profile.saved_mut(SavedIndex(1)).recipe =
            Some(crate::Recipe { inputs: Vec::new(), operations: 1, time_ns: 11_000_000 });
        // Nothing is known of the step's last interval.
        let (timed, is_shorter) = profiled.timed(&[60_000_000, 10_000_000]);
        let recipe = |profiled: &Profiled| profiled.profile.saved()[1].recipe.as_ref().map(|recipe| recipe.time_ns);
        assert_eq!(timed.profile.times().take(2).collect::<Vec<_>>(), [50_000_000, 10_000_000]);
        assert_eq!(recipe(&timed), Some(5_500_000));
        let (timed_again, _) = timed.timed(&[1, 30_000_000]);
        assert_eq!(recipe(&timed_again), Some(5_500_000));
        assert!(is_shorter && timed.untimed_steps == TIMED_STEPS - 1, "another step is timed");
        let (settled, is_shorter) = timed.timed(&[49_000_000, 10_000_000]);
        assert!(!is_shorter && settled.untimed_steps == 0, "the step took as long as before");
    }
}
