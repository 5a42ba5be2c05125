//! Planning of measured steps: the problem for the planner, the plan, and the error if there is none.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use tenure_core::Tag;
use tenure_plan::planner::{Condensed, PlannerError};
use tenure_plan::{PlanError, Planner, Problem, simulator};
use tenure_tier::Destination;

use crate::cache::{CachedPlan, StepKey};
use crate::course::Planned;
use crate::error::{LeastBudget, OffloadError, ProfileError};
use crate::inner::{EngineInner, EngineOptions};
use crate::machine::{Machine, SpillLink};
use crate::pace::Timetable;
use crate::profile::Profile;
use crate::profiled::Profiled;
use crate::report::Planning;
use crate::schedule::Schedule;

/// The number of intervals from which an outdated plan is replaced in the background. Planning fewer takes some
/// milliseconds.
const MANY_INTERVALS: usize = 256;

/// Plans leave at most one part in this many of the budget free for intermediate results of recomputed tensors.
const RECOMPUTING_PART: u64 = 8;

/// Whether a plan has to leave spare bytes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// If it cannot, some of the program's state is to leave.
    Needed,
    /// It does if it can.
    Optional,
}

impl EngineInner {
    /// Returns the plan of a step, and makes it first if there is none. If the plan is outdated, makes another: at
    /// once, or, if the step has many intervals, in the background. Until that one is ready, steps follow the old plan.
    pub(crate) fn planned(
        self: &Arc<Self>,
        cached: &CachedPlan,
        budget_bytes: u64,
        spare: Spare,
    ) -> Result<Arc<Planned>, OffloadError> {
        let CachedPlan { key, profiled, planned, is_outdated } = cached;
        match planned {
            Some(planned) if !is_outdated => Ok(Arc::clone(planned)),
            Some(planned) if profiled.profile.intervals() >= MANY_INTERVALS => {
                if spare == Spare::Needed {
                    let spare_bytes = self.ledger.lock().spare_bytes;
                    self.problem(&profiled.profile, budget_bytes, spare_bytes)?;
                }
                let is_planning = std::mem::replace(&mut self.ledger.lock().is_planning, true);
                if !is_planning {
                    let inner = Arc::clone(self);
                    let key = *key;
                    let profiled = Arc::clone(profiled);
                    let spawned = thread::Builder::new().name("tenure-plan".into()).spawn(move || {
                        // If there is no new plan, steps go on with the old one.
                        let _ = inner.make_plan(key, &profiled, budget_bytes, Spare::Optional);
                        inner.ledger.lock().is_planning = false;
                    });
                    if spawned.is_err() {
                        self.ledger.lock().is_planning = false;
                    }
                }
                Ok(Arc::clone(planned))
            }
            _ => self.make_plan(*key, profiled, budget_bytes, spare),
        }
    }

    /// Makes a plan, and adds it to the cache if the budget is still the same.
    fn make_plan(
        &self,
        key: StepKey,
        profiled: &Arc<Profiled>,
        budget_bytes: u64,
        spare: Spare,
    ) -> Result<Arc<Planned>, OffloadError> {
        let planned = Arc::new(self.plan(profiled, budget_bytes, spare)?);
        self.memory.release_cached()?;
        let mut ledger = self.ledger.lock();
        if ledger.budget_bytes.unwrap_or(u64::MAX) == budget_bytes {
            ledger.steps.insert_plan(key, profiled, Arc::clone(&planned));
        }
        Ok(planned)
    }

    /// Makes a plan for steps like a measured one.
    fn plan(&self, profiled: &Profiled, budget_bytes: u64, spare: Spare) -> Result<Planned, OffloadError> {
        let EngineOptions { planner, planning, .. } = &self.options;
        let profile = &profiled.profile;
        let plan = |spare_bytes| {
            let began = Instant::now();
            let problem = self.problem(profile, budget_bytes, spare_bytes)?;
            let planned = Condensed::new(&**planner).plan(&problem, planning, &mut |_| ControlFlow::Continue(()));
            let planned = planned.map_err(|error| self.no_plan(error, &problem, profile, budget_bytes))?;
            let evaluations = planned.evaluations;
            let plan = planned.plan;
            // A plan that cannot be simulated has no predicted time, and is followed all the same.
            let outcome = simulator::simulate(&problem, &plan).ok();
            let predicted = outcome.map(|outcome| Duration::from_nanos(outcome.makespan_ns as u64));
            let schedule = Schedule::of(profile, &plan);
            let planning = Planning { operations: profile.intervals(), evaluations, elapsed: began.elapsed() };
            tracing::info!("{planning}");
            self.ledger.lock().planning = Some(planning);
            let repeated = profiled.repeated(&schedule);
            let needed_bytes = schedule.needed_bytes(profile);
            let watched_intervals = profiled.intervals_to_watch(&repeated);
            let limit_bytes = budget_bytes.saturating_sub(self.ledger.lock().aside_bytes);
            let left_bytes = limit_bytes.saturating_sub(self.memory.slack_bytes() + spare_bytes);
            let lacking_bytes = schedule.lacking_bytes(profile, &needed_bytes, left_bytes);
            let room_bytes = limit_bytes.saturating_sub(self.ledger.lock().ahead_bytes);
            let timetable = profiled.pace.as_ref().map(|pace| {
                let releases = schedule.releases(profile, &needed_bytes, room_bytes);
                Timetable::of(profiled, pace, &schedule, &repeated, &releases, budget_bytes)
            });
            let is_tried = AtomicBool::new(false);
            let planned = Planned {
                schedule,
                predicted,
                repeated,
                watched_intervals,
                needed_bytes,
                timetable,
                is_tried,
                late_bytes: Default::default(),
            };
            Ok((planned, lacking_bytes.min(budget_bytes / RECOMPUTING_PART)))
        };
        let spare_bytes = self.ledger.lock().spare_bytes;
        // Without spare bytes, room is made when an allocation finds none.
        let can_do_without = |bytes| spare == Spare::Optional && bytes > 0;
        let first = plan(spare_bytes).or_else(|error| if can_do_without(spare_bytes) { plan(0) } else { Err(error) });
        let (planned, lacking_bytes) = first?;
        if lacking_bytes == 0 {
            return Ok(planned);
        }
        match plan(spare_bytes + lacking_bytes) {
            Ok((roomier, _)) => Ok(roomier),
            Err(_) if can_do_without(lacking_bytes) => Ok(planned),
            Err(error) => Err(error),
        }
    }

    /// Returns the error for a step that the planner found no plan for.
    fn no_plan(&self, error: PlannerError, problem: &Problem, profile: &Profile, budget_bytes: u64) -> OffloadError {
        let PlannerError::Plan(PlanError::NoRoom { kernel, .. }) = error else { return error.into() };
        let folders = |destination| match (destination, self.mover.disk()) {
            (Destination::Disk, Some(disk)) => format!(" in {}", disk.folders()),
            _ => String::new(),
        };
        let rooms: Vec<String> = self
            .options
            .links
            .iter()
            .filter_map(|(link, destination)| {
                Some(format!("{}{} takes {}", link.name, folders(*destination), link.capacity?))
            })
            .collect();
        let when = problem.kernels()[kernel].name.clone();
        let saved_bytes = profile.bytes();
        OffloadError::NoPlan { budget_bytes, when, saved_bytes, rooms: rooms.join(", ") }
    }

    /// Returns the planning problem of a profile, for a budget of which `spare_bytes` stay free.
    pub(crate) fn problem(
        &self,
        profile: &Profile,
        budget_bytes: u64,
        spare_bytes: u64,
    ) -> Result<Problem, OffloadError> {
        let EngineOptions { links, .. } = &self.options;
        // A slower link is useful only if the tiers of the faster ones have too little room.
        let all_bytes = profile.bytes();
        let mut room = 0_u64;
        let mut useful = Vec::new();
        for (link, destination) in links {
            if room >= all_bytes {
                break;
            }
            let mut link = link.clone();
            if *destination == Destination::Host {
                // State that has left lies there too.
                let taken_bytes = self.mover.zero_copy().map_or(0, |memory| memory.bytes());
                link.capacity = link.capacity.map(|capacity| capacity.saturating_sub(taken_bytes));
            }
            room = room.saturating_add(link.capacity.unwrap_or(u64::MAX));
            useful.push(link);
        }
        let links: Vec<SpillLink> = useful;
        // A disk reserves room as if bytes were not encoded. So where room may be short, the problem must not count on
        // compression.
        let is_scarce = links.iter().any(|link| link.capacity.is_some_and(|capacity| capacity < all_bytes));
        let least = least_with(links.iter().map(|link| link.capacity), profile);
        let mut profile = profile.clone();
        if is_scarce {
            profile.forget_compression();
        }
        let slack_bytes = self.memory.slack_bytes() + spare_bytes + self.ledger.lock().aside_bytes;
        let launch_ns = self.memory.launch_ns();
        let machine = Machine { budget_bytes, slack_bytes, bandwidth: 1 << 40, launch_ns, links };
        let mut problem = profile.problem("a training step", &machine);
        if let Err(ProfileError::TooSmall { needed, least: bound, .. }) = &mut problem {
            needed.known = self.permanent_bytes();
            *bound = least;
        }
        Ok(problem?)
    }

    /// Returns the allocated bytes of weights, gradients, optimizer states and inputs that the engine does not manage,
    /// by tag.
    fn permanent_bytes(&self) -> Vec<(Tag, u64)> {
        let tags = self.memory.statistics().tags;
        let ledger = self.ledger.lock();
        [Tag::Weight, Tag::Gradient, Tag::OptimizerState, Tag::Input]
            .map(|tag| {
                let allocated = tags[tag as usize].allocated_bytes.current;
                let ours =
                    ledger.tensors.values().filter(|tensor| tensor.tag == tag && tensor.place.storage().is_some());
                (tag, allocated.saturating_sub(ours.map(|tensor| tensor.bytes).sum()))
            })
            .to_vec()
    }
}

/// Returns how far the least budget of a profile can be trusted with tiers of these capacities.
fn least_with(capacities: impl Iterator<Item = Option<u64>>, profile: &Profile) -> LeastBudget {
    let spilled_bytes = profile.plain_bytes().saturating_sub(profile.least_bytes().0);
    let room_bytes = capacities.fold(0_u64, |room, capacity| room.saturating_add(capacity.unwrap_or(u64::MAX)));
    if room_bytes < spilled_bytes {
        LeastBudget::BoundWithRoom { missing_bytes: spilled_bytes - room_bytes }
    } else {
        LeastBudget::Bound
    }
}
