//! The engine's part in steps that go by the ticks of the program's allocations: see [`pace`](crate::pace).

use std::sync::Arc;

use parking_lot::MutexGuard;
use tenure_core::{DType, Device, Storage};
use tenure_device::Stream;
use tenure_device::allocation_clock::{AllocationClock, Tick};

use crate::course::{Course, Pacing};
use crate::error::OffloadError;
use crate::identity::TensorId;
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::pace::{PacedFrontEnd, Position, TickPlace, Watched};
use crate::place::{Recomputation, SavedHandle, TensorOwner};
use crate::profiled::is_alike;

/// In a step that follows no plan, the front end reports all saves and no operation.
const ALL_SAVES: Watched = Watched { saves: true, operations_from: None };

impl EngineInner {
    /// Returns the clock of the program's allocations.
    pub(crate) fn allocation_clock(&self) -> &'static AllocationClock {
        AllocationClock::of(self.memory.device().map_or(Device::CPU, |memory| memory.device()))
    }

    /// Starts the clock for the step that begins, if the front end's program is one whose allocations are counted.
    pub(crate) fn start_allocation_clock(&self) {
        if self.paced.get().is_none() {
            return;
        }
        let clock = self.allocation_clock();
        let ledger = self.ledger.lock();
        let least_bytes = usize::try_from(self.options.min_tensor_bytes).unwrap_or(usize::MAX);
        clock.start(least_bytes, ledger.course.expected_sizes().as_deref());
        clock.set_alarm(ledger.course.next_alarm(None));
    }

    pub(crate) fn stop_allocation_clock(&self) {
        if self.paced.get().is_some() {
            self.allocation_clock().stop();
        }
    }

    /// Does what the step's course has to do at a tick. It is called before the program gets the memory of that
    /// allocation.
    pub(crate) fn tick(&self, tick: Tick) {
        let Some(front_end) = self.paced.get() else { return };
        if let Err(error) = self.pass_tick(&**front_end, tick) {
            self.ledger.lock().fail(error);
        }
    }

    fn pass_tick(&self, front_end: &dyn PacedFrontEnd, tick: Tick) -> Result<(), OffloadError> {
        let position = front_end.position();
        let stream = front_end.stream();
        let may_be_captured = self.memory.device().is_some_and(|memory| memory.allocator().is_capturing());
        let is_captured = may_be_captured
            && stream.as_ref().is_some_and(|stream| stream.driver().is_capturing(stream.id()).unwrap_or(false));
        let mut ledger = self.ledger.lock();
        let first = ledger.first_of_step();
        let Course::Planned { profiled, planned, events, pacing: Pacing::Ticks(paced), clock } = &mut ledger.course
        else {
            if let Course::Measured(measured) = &mut ledger.course {
                measured.pace.iter_mut().for_each(|pace| pace.tick(tick, position));
            }
            self.allocation_clock().set_alarm(ledger.course.next_alarm(Some(tick.number)));
            return Ok(());
        };
        let (Some(pace), Some(timetable)) = (&profiled.pace, &planned.timetable) else { return Ok(()) };
        // Copies of the plan would become a part of a CUDA graph.
        let place = if is_captured { None } else { paced.place(pace, tick, position) };
        let number = match place {
            None => {
                self.leave_plan(ledger);
                return Ok(());
            }
            Some(TickPlace::At(number)) if number == tick.number => number,
            Some(TickPlace::At(number)) => {
                self.allocation_clock().go_on_at(number + 1);
                number
            }
            Some(TickPlace::Before(number)) => {
                self.allocation_clock().go_on_at(number);
                let Some(before) = number.checked_sub(1) else {
                    self.allocation_clock().set_alarm(ledger.course.next_alarm(None));
                    return Ok(());
                };
                before
            }
        };
        let before = std::mem::replace(events, pace.passed(number).max(*events));
        let points = before..*events;
        let actions = points.clone().flat_map(|point| profiled.with_ids(planned.schedule.at(point), first)).collect();
        let watched = paced.pass(pace, timetable, number, position.sequence());
        let is_timed = clock.is_some() && !points.is_empty();
        if is_timed && let Some(clock) = clock {
            clock.end(stream.as_ref())?;
            paced.note_timed(*events);
        }
        self.allocation_clock().set_alarm(ledger.course.next_alarm(Some(number)));
        if watched.is_some() || !points.is_empty() {
            self.take_actions(ledger, actions)?;
        } else {
            drop(ledger);
        }
        watched.into_iter().for_each(|watched| front_end.watch(watched));
        if is_timed && let Some(clock) = self.ledger.lock().course.clock() {
            clock.begin(stream.as_ref())?;
        }
        Ok(())
    }

    /// Leaves the plan: the step does something else than the measured one.
    fn leave_plan(&self, mut ledger: MutexGuard<'_, Ledger>) {
        let course = std::mem::replace(&mut ledger.course, Course::Free);
        drop(ledger);
        drop(course);
        self.allocation_clock().compare_no_more();
        self.paced.get().into_iter().for_each(|front_end| front_end.watch(ALL_SAVES));
    }

    /// Makes the front end report all that is saved from now on, as an allocation finds no room: what is saved later
    /// can then make room.
    pub(crate) fn watch_all(&self) {
        let Some(front_end) = self.paced.get() else { return };
        let watched = self.ledger.lock().course.watch_all(self.allocation_clock().now());
        watched.into_iter().for_each(|watched| front_end.watch(watched));
    }

    /// Counts the events after the last tick, where a step ends.
    pub(crate) fn pass_last_ticks(&self) {
        let now = self.allocation_clock().now();
        if let Course::Planned { profiled, events, pacing: Pacing::Ticks(paced), .. } = &mut self.ledger.lock().course {
            let passed = profiled.pace.as_ref().map_or(0, |pace| pace.passed(now)).max(*events);
            // Where sizes vary, the last ticks may be missing.
            *events = if paced.has_varied() { profiled.events.len() } else { passed };
        }
    }

    /// Returns whether the step goes by ticks, so that the events which the front end reports do not move it on.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.ledger.lock().course, Course::Planned { pacing: Pacing::Ticks(_), .. })
    }

    /// Does what [`Engine::need`](crate::Engine::need) does, in a step that goes by ticks.
    pub(crate) fn need_at_tick(&self, id: TensorId, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        // To bring bytes back takes no time of the interval.
        if let Some(clock) = self.ledger.lock().course.clock() {
            clock.pause(stream)?;
        }
        let storage = self.bring_back(id, stream)?;
        if let Some(clock) = self.ledger.lock().course.clock() {
            clock.begin(stream)?;
        }
        Ok(storage)
    }

    /// Returns where the calling thread is.
    fn position(&self) -> Position {
        self.paced.get().map_or(Position::Unknown, |front_end| front_end.position())
    }

    /// Does what [`Engine::pass_save`](crate::Engine::pass_save) does, in a step that goes by ticks.
    pub(crate) fn pass_save_at_tick(&self, ledger: &mut Ledger) {
        if let Course::Planned { profiled, planned, pacing: Pacing::Ticks(paced), .. } = &mut ledger.course
            && let (Some(pace), Some(timetable)) = (&profiled.pace, &planned.timetable)
        {
            paced.save(pace, timetable, self.allocation_clock().now(), self.position());
        }
    }

    /// Does what [`Engine::save`](crate::Engine::save) does, in a step that goes by ticks.
    pub(crate) fn save_at_tick(
        self: &Arc<Self>,
        mut ledger: MutexGuard<'_, Ledger>,
        storage: &Storage,
        version: u64,
        dtype: DType,
        stream: Option<&Stream>,
        recompute: Option<Arc<dyn Recomputation>>,
    ) -> Result<Option<Arc<SavedHandle>>, OffloadError> {
        let now = self.allocation_clock().now();
        let position = self.position();
        let bytes_id = (storage.generation(), version);
        let first = ledger.first_of_step();
        let known = ledger.find(bytes_id);
        let Course::Planned { profiled, planned, pacing: Pacing::Ticks(paced), .. } = &mut ledger.course else {
            return Ok(known);
        };
        let (Some(pace), Some(timetable)) = (&profiled.pace, &planned.timetable) else { return Ok(known) };
        let index = paced.save(pace, timetable, now, position);
        if known.is_some() {
            return Ok(known);
        }
        let Some(index) = index else { return Ok(None) };
        let saved = &profiled.profile.saved()[index.0];
        let name = saved.key.clone();
        let id = TensorId::in_step(first, index);
        let bytes = storage.bytes() as u64;
        let has_varied = paced.has_varied();
        let is_expected = if has_varied { is_alike(saved.bytes, bytes) } else { profiled.is_size(saved.bytes, bytes) };
        if !is_expected || ledger.tensors.contains_key(&id) {
            // Where sizes depend on data, it may be another tensor.
            if !has_varied {
                self.leave_plan(ledger);
            }
            return Ok(None);
        }
        if let Some(error) = ledger.failure.take() {
            return Err(error);
        }
        let Some(tensor) = EngineInner::saved_tensor(storage, dtype, stream, recompute, name) else { return Ok(None) };
        ledger.add_as(id, tensor);
        let saved = Arc::new(SavedHandle { owner: Arc::clone(self) as Arc<dyn TensorOwner>, id });
        ledger.remember(bytes_id, &saved);
        Ok(Some(saved))
    }
}
