//! Learning from served programs: their measured times correct the costs of their problems.

mod costs;
mod error;
mod file;
mod program;

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tenure_plan::planner::{Objective, Planned, Planner, PlannerError, PlannerOptions, PlannerProgress, Watch};
use tenure_plan::{Plan, Problem, simulate};

use crate::marl::Marl;
use costs::Costs;
use file::LearnedFile;
use program::{Given, Observation, Program, Times, is_same};

pub(crate) use error::plural;
pub use error::{LearnedError, ReportError};

/// The number of programs that are remembered: the last ones that asked.
const PROGRAMS: usize = 16;
/// The number of mappings of a program whose times may still be reported: the last ones.
const GIVEN: usize = 64;
/// The number of placements of a program that are tried. Afterwards the fastest of them is the answer.
const PLACEMENTS_TRIED: usize = 9;

/// The planner [`Marl`], which also learns the true costs of each program from measured times.
///
/// Before the first report it plans as [`Marl`] does. Afterwards it places tensors so that kernels lose the least time
/// by accesses to slower tiers, by measured costs. If no placement is predicted to be faster than the measured ones, it
/// tries one that would be faster if costs that were never measured were half of the estimates. After nine placements
/// it answers with the fastest. A program is identified by its name, tensors and kernels and the names of its tiers,
/// not by the times and bandwidths in its problem.
pub struct Learner {
    marl: Marl,
    programs: Mutex<VecDeque<Program>>,
    file: Option<LearnedFile>,
}

/// Measured times of one step of a program under a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The mapping's file, as named in the agent's answer.
    pub mapping: PathBuf,
    /// The time of one step in ns: at least that of the longest kernel, at most an hour.
    pub step_ns: u64,
    /// The time of each of the problem's kernels in ns, in their order. They must not all be 0.
    pub kernels_ns: Vec<u64>,
}

impl Learner {
    /// Creates a learner that keeps what it learns in memory only.
    pub fn new(marl: Marl) -> Self {
        Self { marl, programs: Mutex::default(), file: None }
    }

    /// Creates a learner that continues from a file, if there is one. It writes the file now and after each report.
    /// Only its user can read the file, and a lock next to it (`FILE.lock`) keeps other agents from learning into it.
    ///
    /// # Errors
    /// The file cannot be read or written, is not of this version, or another agent learns into it.
    pub fn open(marl: Marl, path: impl AsRef<Path>) -> Result<Self, LearnedError> {
        let (file, programs) = LearnedFile::open(path.as_ref())?;
        Ok(Self { marl, programs: Mutex::new(programs), file: Some(file) })
    }

    /// Remembers a mapping that was given for `problem`, so that its times can be reported.
    pub fn remember(&self, problem: &Problem, mapping: &Path, plan: &Plan) {
        let mut programs = self.programs();
        let known = programs.iter().position(|program| is_same(&program.problem, problem));
        let mut program = known.and_then(|number| programs.remove(number)).unwrap_or_else(|| Program {
            problem: problem.clone(),
            given: VecDeque::new(),
            observations: Vec::new(),
            reports: 0,
        });
        program.given.push_front(Given { mapping: mapping.to_owned(), places: plan.places.clone() });
        program.given.truncate(GIVEN);
        programs.push_front(program);
        programs.truncate(PROGRAMS);
    }

    /// Learns from measured times. Returns the number of reports on the program so far.
    ///
    /// # Errors
    /// [`ReportError`]. After [`ReportError::File`], the times are used until the agent ends, but are not in the file.
    pub fn report(&self, measured: &Measured) -> Result<u64, ReportError> {
        let mut programs = self.programs();
        let found = programs.iter_mut().find_map(|program| {
            let given = program.given.iter().find(|given| given.mapping == measured.mapping)?;
            let places = given.places.clone();
            Some((program, places))
        });
        let (program, places) = found.ok_or_else(|| ReportError::Mapping(measured.mapping.clone()))?;
        let times = Times { step_ns: measured.step_ns, kernels_ns: measured.kernels_ns.clone() };
        times.check(program.problem.kernels().len())?;
        program.learn(places, times);
        let reports = program.reports;
        self.file.as_ref().map_or(Ok(()), |file| file.write(&programs))?;
        Ok(reports)
    }

    /// Plans as [`Planner::plan`] does. Also returns the time of a step with the plan in ns, if times were reported.
    ///
    /// # Errors
    /// The errors of [`Planner::plan`].
    pub(crate) fn plan_by_times(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<(Planned, Option<f64>), PlannerError> {
        let observations = self.observations(problem);
        let fastest = observations.iter().min_by(|left, right| left.step_ns().total_cmp(&right.step_ns()));
        // Measured times do not apply to a plan in which tensors move.
        let Some(fastest) = fastest.filter(|_| options.objective == Objective::Score) else {
            return Ok((self.marl.plan(problem, options, watch)?, None));
        };
        let begun = Instant::now();
        let fastest_plan = Plan { places: fastest.places.clone(), steps: Vec::new() };
        let is_playable = simulate(problem, &fastest_plan).is_ok();
        if observations.len() >= PLACEMENTS_TRIED && is_playable {
            let planned = Planned { plan: fastest_plan, evaluations: 0, bound: None, elapsed: begun.elapsed() };
            return Ok((planned, Some(fastest.step_ns())));
        }
        let is_stopped = Cell::new(false);
        let watch = &mut |progress: &PlannerProgress| {
            let flow = watch(progress);
            is_stopped.set(flow.is_break());
            flow
        };
        // The other half of the time is for the searches.
        let may_fit = options.time_limit / 2;
        let nothing = PlannerProgress { evaluations: 0, best: None };
        let mut may_go_on = || begun.elapsed() < may_fit && watch(&nothing).is_continue();
        let costs = Costs::fit(problem, &observations, &mut may_go_on);
        let failed =
            |error: tenure_plan::ProblemError| PlannerError::Failed { planner: "marl", reason: error.to_string() };
        // A placement that was measured teaches nothing new. If no other is predicted to be faster, there may be one
        // where costs that were never measured are lower.
        let mut evaluations = 0;
        for (assumed_costs, searches_left) in [(&costs, 2), (&costs.optimistic(), 1)] {
            let corrected = assumed_costs.problem().map_err(failed)?;
            let time_limit = options.time_limit.saturating_sub(begun.elapsed()) / searches_left;
            let found = self.marl.plan(&corrected, &PlannerOptions { time_limit, ..*options }, watch)?;
            evaluations += found.evaluations;
            let places = &found.plan.places;
            let is_measured = observations.iter().any(|known| known.places == *places);
            if !is_playable || (!is_measured && assumed_costs.step_ns(places) < fastest.step_ns()) {
                let step_ns = costs.step_ns(places);
                // The bound is one of time, not of the score.
                return Ok((Planned { bound: None, evaluations, elapsed: begun.elapsed(), ..found }, Some(step_ns)));
            }
            if is_stopped.get() {
                break;
            }
        }
        let planned = Planned { plan: fastest_plan, evaluations, bound: None, elapsed: begun.elapsed() };
        Ok((planned, Some(fastest.step_ns())))
    }

    fn programs(&self) -> MutexGuard<'_, VecDeque<Program>> {
        // A panic leaves nothing half done: programs are changed by single assignments.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the measured times of a program.
    fn observations(&self, problem: &Problem) -> Vec<Observation> {
        let programs = self.programs();
        let program = programs.iter().find(|program| is_same(&program.problem, problem));
        program.map_or_else(Vec::new, |program| program.observations.clone())
    }
}

impl Planner for Learner {
    fn name(&self) -> &str {
        self.marl.name()
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        self.plan_by_times(problem, options, watch).map(|(planned, _)| planned)
    }
}
