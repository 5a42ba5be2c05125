//! Learning from served programs: their measured times correct the costs of their problems.

mod costs;
mod file;

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

pub use file::LearnedError;

/// The number of programs that are remembered: the last ones that asked.
const PROGRAMS: usize = 16;
/// The number of mappings of a program whose times may still be reported: the last ones.
const GIVEN: usize = 64;
/// The number of placements of a program whose times are remembered: the fastest ones.
const OBSERVATIONS: usize = 32;
/// The number of reports on a placement that are remembered: the last ones. Their medians count.
const REPORTS: usize = 5;
/// The longest time that is accepted: an hour, in ns.
const LONGEST_NS: u64 = 3_600_000_000_000;
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

/// The reason why measured times are not learned from. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The mapping is not of this agent, or too old.
    #[error("{:?} is not a mapping that this agent remembers: ask it again, and report times of the new one", .0.display().to_string())]
    Mapping(PathBuf),
    /// The times are of another problem.
    #[error("times of {found} kernel{}: the mapping's problem has {kernels}: report a time for each", plural(*found as u64))]
    Kernels {
        /// The number of times that were reported.
        found: usize,
        /// The number of kernels of the problem.
        kernels: usize,
    },
    /// The step, or every kernel, has a time of 0.
    #[error("a step of 0 ns, or kernels that all take 0 ns, cannot be: report times in nanoseconds")]
    NoTime,
    /// The step is shorter than one of its kernels.
    #[error(
        "a step of {step_ns} ns with a kernel of {kernel_ns} ns cannot be: report both of the same step, in nanoseconds"
    )]
    ShortStep {
        /// The step's time, in ns.
        step_ns: u64,
        /// The longest kernel's time, in ns.
        kernel_ns: u64,
    },
    /// A time is longer than an hour.
    #[error("{ns} ns are longer than an hour, which is not believed: report nanoseconds of one step")]
    TooLong {
        /// The longest time, in ns.
        ns: u64,
    },
    /// The learner's file cannot be written.
    #[error(transparent)]
    File(#[from] LearnedError),
}

/// A program, its recent mappings and its measured times.
#[derive(Debug, PartialEq)]
struct Program {
    problem: Problem,
    given: VecDeque<Given>,
    observations: Vec<Observation>,
    reports: u64,
}

/// A mapping that was given: its file, and each tensor's tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    mapping: PathBuf,
    places: Vec<usize>,
}

/// The last reports on one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Observation {
    places: Vec<usize>,
    times: VecDeque<Times>,
}

/// The times of one report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    step_ns: u64,
    kernels_ns: Vec<u64>,
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

impl Program {
    /// Adds times to those of the same placement.
    fn learn(&mut self, places: Vec<usize>, times: Times) {
        self.reports += 1;
        if let Some(known) = self.observations.iter_mut().find(|known| known.places == places) {
            known.times.push_front(times);
            known.times.truncate(REPORTS);
            return;
        }
        if self.observations.len() == OBSERVATIONS {
            let times = self.observations.iter().map(Observation::step_ns).enumerate();
            let slowest = times.max_by(|(_, left), (_, right)| left.total_cmp(right));
            if let Some((number, _)) = slowest {
                self.observations.remove(number);
            }
        }
        self.observations.push(Observation { places, times: [times].into() });
    }
}

impl Observation {
    /// Returns the median time of a step in ns.
    fn step_ns(&self) -> f64 {
        median(self.times.iter().map(|times| times.step_ns))
    }

    /// Returns the median time of a kernel in ns.
    fn kernel_ns(&self, kernel: usize) -> f64 {
        median(self.times.iter().map(|times| times.kernels_ns[kernel]))
    }
}

impl Times {
    /// Checks that times can be true for a problem with `kernels` kernels.
    fn check(&self, kernels: usize) -> Result<(), ReportError> {
        let step_ns = self.step_ns;
        let found = self.kernels_ns.len();
        if found != kernels {
            return Err(ReportError::Kernels { found, kernels });
        }
        let longest_ns = self.kernels_ns.iter().copied().max();
        if step_ns == 0 || longest_ns == Some(0) {
            return Err(ReportError::NoTime);
        }
        let kernel_ns = longest_ns.unwrap_or(0);
        let ns = step_ns.max(kernel_ns);
        if ns > LONGEST_NS {
            return Err(ReportError::TooLong { ns });
        }
        if step_ns < kernel_ns {
            return Err(ReportError::ShortStep { step_ns, kernel_ns });
        }
        Ok(())
    }
}

/// Returns the median of at least one time. For an even number of times it is the mean of the middle two.
fn median(times_ns: impl Iterator<Item = u64>) -> f64 {
    let mut times_ns: Vec<u64> = times_ns.collect();
    times_ns.sort_unstable();
    let middle = times_ns.len() / 2;
    let upper = times_ns[middle] as f64;
    if times_ns.len() % 2 == 1 { upper } else { 0.5 * (times_ns[middle - 1] as f64 + upper) }
}

/// Returns the plural ending of a noun after `number`.
pub(crate) fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Returns whether two problems are of one program.
fn is_same(left: &Problem, right: &Problem) -> bool {
    let tiers = |problem: &Problem| problem.tiers().iter().map(|tier| tier.name.clone()).collect::<Vec<_>>();
    let is_same_program = left.name() == right.name() && tiers(left) == tiers(right);
    let tensors = left.tensors().iter().zip(right.tensors());
    let kernels = left.kernels().iter().zip(right.kernels());
    is_same_program
        && (left.tensors().len(), left.kernels().len()) == (right.tensors().len(), right.kernels().len())
        && tensors
            .into_iter()
            .all(|(left, right)| (&left.key, left.bytes, left.tag) == (&right.key, right.bytes, right.tag))
        && kernels
            .into_iter()
            .all(|(left, right)| (&left.name, &left.reads, &left.writes) == (&right.name, &right.reads, &right.writes))
}
