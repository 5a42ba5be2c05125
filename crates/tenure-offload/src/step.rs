//! A step, from its beginning to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use tenure_device::Stream;
use tenure_tier::Urgency;

use crate::clock::{IntervalClock, LEAD};
use crate::course::{Course, Pacing};
use crate::error::OffloadError;
use crate::identity::{Pass, Signature, TensorId};
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::machine::Peak;
use crate::measured::Measured;
use crate::pace::{PaceMeter, Paced};
use crate::place::SavedBytesId;
use crate::planning::Spare;
use crate::profiled::StepEvent;
use crate::reclaim;
use crate::report::StepReport;
use crate::schedule::OffloadAction;

/// A step that is under way. If it is dropped before it is [finished](Self::finish), its measurements are lost.
#[must_use = "it holds for as long as it lives"]
pub struct OffloadStep {
    inner: Arc<EngineInner>,
}

impl OffloadStep {
    /// See [`Engine::begin`](crate::Engine::begin).
    pub(crate) fn begin(inner: &Arc<EngineInner>, signature: Signature, pass: Pass) -> Result<Self, OffloadError> {
        if pass == Pass::Budgeted {
            inner.release_wanted_state();
        }
        let course = match pass {
            Pass::Plain => inner.measured(pass),
            // All that several threads save is reported, and leaves where there is no room.
            Pass::Budgeted if inner.paced.get().is_some_and(|front_end| !front_end.is_alone()) => Course::Free,
            Pass::Budgeted if let Some(course) = inner.unwatched(signature) => course,
            Pass::Budgeted => inner.course(signature)?,
        };
        inner.set_limit(match (pass, &course) {
            (Pass::Plain, _) => None,
            (Pass::Budgeted, Course::Unwatched { .. }) => inner.unwatched_bytes(),
            (Pass::Budgeted, _) => inner.ledger.lock().limit_bytes(),
        })?;
        inner.memory.begin_step(signature.kind)?;
        if let Some(device) = inner.memory.device()
            && course.is_settled()
            && !inner.ledger.lock().steps.is_outdated(signature)
        {
            let is_simulated = inner.memory.is_simulated();
            let lacking_bytes = inner.layout.lock().lay_out(device.allocator(), signature.kind, is_simulated);
            inner.ledger.lock().note_lacking(lacking_bytes);
        }
        let before = inner.ledger.lock().begin_step(signature, course);
        drop(before);
        inner.start_allocation_clock();
        let step = Self { inner: Arc::clone(inner) };
        inner.take_first_actions()?;
        // The step does not count memory that was held at an earlier time.
        inner.memory.take_peak();
        inner.begin_interval(None)?;
        Ok(step)
    }

    /// Ends the step. If the step was measured, later steps of its signature follow a plan.
    ///
    /// # Errors
    /// An error of a transfer that no call has returned yet.
    pub fn finish(self) -> Result<StepReport, OffloadError> {
        self.inner.finish()
    }

    /// Returns whether the step is known to fit into the budget without any moves. The front end need not report
    /// anything of it until the engine [wakes](crate::Engine::on_wake) the front end.
    pub fn is_unwatched(&self) -> bool {
        matches!(self.inner.ledger.lock().course, Course::Unwatched { .. })
    }

    /// Returns whether the step is measured, because nothing like it is known.
    pub fn is_measured(&self) -> bool {
        matches!(self.inner.ledger.lock().course, Course::Measured(_))
    }
}

impl Drop for OffloadStep {
    fn drop(&mut self) {
        self.inner.stop_allocation_clock();
        let course = std::mem::take(&mut self.inner.ledger.lock().course);
        // The ledger must not be locked: see `EngineInner::finish`.
        drop(course);
        // If the driver fails, the next call to it returns the error.
        let _ = reclaim::release_all(&self.inner);
    }
}

impl EngineInner {
    /// Returns the course of a step that is measured.
    fn measured(&self, pass: Pass) -> Course {
        let clock = IntervalClock::with_host_time(Arc::clone(&self.host_time.lock()));
        let ledger = self.ledger.lock();
        let residents = ledger.residents.iter().map(|id| (*id, &ledger.tensors[id]));
        let pace = self.paced.get().map(|front_end| PaceMeter::new(self.allocation_clock(), Arc::clone(front_end)));
        let state_bytes = ledger.steps.state_bytes();
        Course::Measured(Box::new(Measured::new(pass, residents, clock, self.allocated_bytes(), state_bytes, pace)))
    }

    /// Returns the course of a step with this signature, within the budget.
    pub(crate) fn course(self: &Arc<Self>, signature: Signature) -> Result<Course, OffloadError> {
        let allocated_bytes = self.allocated_bytes();
        // The allocated bytes change a little from step to step, and with the batch.
        let least_allocated_bytes = (allocated_bytes - allocated_bytes / 16).saturating_sub(signature.input_bytes);
        let mut spare = Spare::Needed;
        let (profiled, planned) = loop {
            let (cached, budget_bytes) = {
                let mut ledger = self.ledger.lock();
                (ledger.steps.look_up(signature, least_allocated_bytes), ledger.budget_bytes)
            };
            let Some(cached) = cached else {
                self.make_room_for_measurement();
                return Ok(self.measured(Pass::Budgeted));
            };
            if !self.ledger.lock().must_spare() {
                spare = Spare::Optional;
            }
            match self.planned(&cached, budget_bytes.unwrap_or(u64::MAX), spare) {
                Ok(planned) => break (cached.profiled, planned),
                Err(error) if self.make_room_for_plan(&error, spare) => {}
                // The state stays, as there is no room for it elsewhere.
                Err(_) if spare == Spare::Needed => spare = Spare::Optional,
                // The step may take less than was estimated.
                Err(_) if cached.profiled.is_estimate => return Ok(self.measured(Pass::Budgeted)),
                Err(error) => return Err(error),
            }
        };
        let lead = if self.memory.is_simulated() { Duration::ZERO } else { LEAD };
        // In the first step of a plan, the allocator may have to join pages, for blocks that lie elsewhere than before.
        let is_tried = planned.is_tried.load(Ordering::Relaxed);
        let is_timed_now = self.memory.device().is_some() && profiled.untimed_steps > 0 && is_tried;
        let clock = is_timed_now.then(|| IntervalClock::with_lead(lead));
        let pacing = match (&planned.timetable, self.paced.get()) {
            (Some(timetable), Some(front_end)) => {
                let budget_bytes = self.ledger.lock().budget_bytes.unwrap_or(u64::MAX);
                let position = front_end.position();
                Pacing::Ticks(Box::new(Paced::new(timetable, position, budget_bytes, profiled.is_estimate)))
            }
            _ => Pacing::Events { operations: 0 },
        };
        Ok(Course::Planned { profiled, planned, events: 0, pacing, clock })
    }

    /// Ends the interval by an event, and takes the plan's actions after it.
    pub(crate) fn handle_event(&self, event: StepEvent, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut ledger = self.ledger.lock();
        ledger.end_interval(&self.memory, stream, Some(event), "")?;
        let actions = ledger.next_actions(event);
        self.take_actions(ledger, actions)
    }

    /// Takes the plan's actions before the first event, which move residents to where the step expects them.
    fn take_first_actions(&self) -> Result<(), OffloadError> {
        let ledger = self.ledger.lock();
        let actions = ledger.first_actions();
        self.take_actions(ledger, actions)
    }

    /// See [`Engine::operation`] and [`Engine::begin_operation`].
    pub(crate) fn operation(&self, id: Option<SavedBytesId>, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.ledger.lock().operation(&self.memory, id, stream)
    }

    /// Begins an interval: the front end computes from now on.
    pub(crate) fn begin_interval(&self, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.ledger.lock().begin_interval(&self.memory, stream)
    }

    /// Takes actions: spills and drops first, then fetches as far as there is room.
    pub(crate) fn take_actions<'a>(
        &'a self,
        mut ledger: MutexGuard<'a, Ledger>,
        actions: Vec<(TensorId, OffloadAction)>,
    ) -> Result<(), OffloadError> {
        let (fetches, evictions): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|(_, action)| *action == OffloadAction::Fetch);
        for (id, action) in evictions {
            match action {
                OffloadAction::Spill { link } => self.spill(&mut ledger, id, link)?,
                OffloadAction::Drop => {
                    drop(ledger);
                    self.drop_bytes(id);
                    ledger = self.ledger.lock();
                }
                OffloadAction::Fetch => {}
            }
        }
        drop(ledger);
        reclaim::release_ahead(self)?;
        for (id, _) in fetches {
            // There may be no room yet. Then the tensor is fetched when it is needed.
            match self.fetch(id, Urgency::Ahead) {
                Ok(()) | Err(OffloadError::Back { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Spills a tensor that was just saved, and waits for it, if [`Engine::move_all`](crate::Engine::move_all) asks for
    /// that.
    pub(crate) fn spill_if_all_move(&self, id: TensorId) -> Result<(), OffloadError> {
        let mut ledger = self.ledger.lock();
        let is_measured = matches!(&ledger.course, Course::Measured(measured) if measured.pass == Pass::Budgeted);
        if !is_measured || !self.moves_all.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.spill(&mut ledger, id, 0)?;
        drop(ledger);
        reclaim::wait_for_spills(self)
    }

    /// See [`OffloadStep::finish`].
    fn finish(&self) -> Result<StepReport, OffloadError> {
        self.pass_last_ticks();
        let mut ledger = self.ledger.lock();
        ledger.end_interval(&self.memory, None, None, "")?;
        let course = std::mem::take(&mut ledger.course);
        let signature = ledger.signature;
        if let Some(error) = ledger.failure.take() {
            drop(ledger);
            return Err(error);
        }
        let mut report = ledger.report;
        let overflow = ledger.overflow.take();
        let overflow_bytes = overflow.map_or(0, |overflow| overflow.most_bytes);
        if matches!(course, Course::Measured(_)) {
            ledger.lacking_bytes = overflow_bytes;
        } else {
            ledger.wanted_bytes = ledger.wanted_bytes.max(overflow_bytes);
        }
        let has_exceeded = std::mem::take(&mut ledger.has_exceeded);
        if has_exceeded && !matches!(course, Course::Measured(_)) {
            report.exceeded_bytes = Some(self.memory.take_peak().allocated_bytes);
        }
        match course {
            Course::Measured(measured) => {
                // Dropping the measurement frees the front end's recomputations, which may wait for a lock of the front
                // end. So the ledger is unlocked.
                drop(ledger);
                let Peak { allocated_bytes, reserved_bytes } = measured.peak;
                (report.peak_bytes, report.reserved_bytes) = (Some(allocated_bytes), Some(reserved_bytes));
                let allocated_bytes = measured.allocated_bytes;
                let peak_bytes = measured.peak.allocated_bytes;
                report.exceeded_bytes = has_exceeded.then_some(peak_bytes);
                let pass = measured.pass;
                let mut profiled = measured.finish()?;
                let mut ledger = self.ledger.lock();
                if overflow.is_some() {
                    // What lay in zero-copy memory was not measured. The next step has more room.
                    return Ok(report);
                }
                if pass == Pass::Plain {
                    profiled.profile.limit_plain(peak_bytes);
                } else if has_exceeded {
                    profiled.profile.limit(peak_bytes);
                } else if self.is_strict() {
                    let taken_bytes = self.memory.slack_bytes() + ledger.aside_bytes;
                    let budget_bytes = ledger.budget_bytes.unwrap_or(u64::MAX);
                    profiled.profile.limit(budget_bytes.saturating_sub(taken_bytes));
                }
                // State that an update has made since the step began was there at its end only.
                let grown_bytes = ledger.steps.state_bytes().saturating_sub(profiled.state_bytes);
                profiled.profile.lower_last(grown_bytes);
                let plain_bytes = profiled.profile.plain_bytes();
                report.plain_bytes = Some(plain_bytes);
                ledger.peaks.record(signature, plain_bytes.saturating_sub(allocated_bytes));
                ledger.steps.insert(signature, Arc::new(profiled));
            }
            Course::Planned { profiled, planned, events, clock, pacing } if profiled.events.len() <= events => {
                (report.is_planned, report.predicted) = (true, planned.predicted);
                planned.is_tried.store(true, Ordering::Relaxed);
                if has_exceeded {
                    ledger.steps.remove_unlike(signature);
                } else if !profiled.is_estimate {
                    let may_go_on = report.unplanned == 0 || ledger.note_unplanned();
                    if !may_go_on && overflow.is_some() {
                        ledger.steps.remove_unlike(signature);
                    }
                } else {
                    report.plain_bytes = Some(profiled.profile.plain_bytes());
                    if report.unplanned > 0 {
                        ledger.steps.remove_unlike(signature);
                    }
                }
                if let Some(clock) = clock {
                    let times_ns = clock.finish()?;
                    let (timed, is_shorter) = match pacing {
                        Pacing::Events { .. } => profiled.timed(&times_ns),
                        Pacing::Ticks(paced) => profiled.timed_in_groups(paced.timed(), &times_ns),
                    };
                    ledger.steps.update(signature, Arc::new(timed), is_shorter);
                }
            }
            Course::Unwatched { allocated_bytes } => {
                report.is_planned = true;
                let peak_bytes = self.memory.take_peak().allocated_bytes;
                ledger.peaks.record(signature, peak_bytes.saturating_sub(allocated_bytes));
            }
            // The step did not do what was measured, or other threads took part in it.
            Course::Planned { .. } | Course::Free => ledger.steps.remove_unlike(signature),
            Course::None => {}
        }
        Ok(report)
    }
}
