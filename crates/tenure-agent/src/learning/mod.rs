//! Learning from the programs that are served: their measured times correct what their problems tell.

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

/// Programs that are remembered: those that asked last.
const PROGRAMS: usize = 16;
/// Mappings of a program whose times may still be reported: the last ones. Placements whose times are remembered: the fastest.
const GIVEN: usize = 64;
const OBSERVATIONS: usize = 32;
/// Reports on a placement whose times are remembered: the last ones. Their medians count.
const REPORTS: usize = 5;
/// The longest time that is believed: an hour, in ns.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Placements of a program that are tried. Afterwards the fastest of them is the answer.
const TRIED: usize = 9;

/// The planner [`Marl`], which also learns from measured times what the costs of each program really are.
///
/// Before the first report it plans as [`Marl`] does. Afterwards it places tensors so that the time is least that kernels
/// lose by accesses to slower tiers, as it was measured. Where no placement is said to be faster than those that were measured,
/// it tries one that would be if what was never measured cost half; after nine placements it answers with the fastest. A
/// program is known by what it computes with: its name, tensors, kernels, and the names of its tiers; not by times or
/// bandwidths that were told.
pub struct Learner {
    marl: Marl,
    programs: Mutex<VecDeque<Program>>,
    file: Option<LearnedFile>,
}

/// Times of one step of a program under a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The mapping's file, as the agent's answer named it.
    pub mapping: PathBuf,
    /// Nanoseconds of one step: no less than the longest kernel's, an hour at most.
    pub step_ns: u64,
    /// Nanoseconds of each of the problem's kernels, in their order, not all of them 0.
    pub kernels_ns: Vec<u64>,
}

/// Why measured times are not learned from. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// No mapping of this agent, or too old a one.
    #[error("{:?} is no mapping that this agent remembers: ask it again, and report times of the new one", .0.display().to_string())]
    Mapping(PathBuf),
    /// Times of another problem.
    #[error("times of {found} kernel{}: the mapping's problem has {kernels}: report a time for each", plural(*found as u64))]
    Kernels {
        /// Times that were reported.
        found: usize,
        /// Kernels of the problem.
        kernels: usize,
    },
    /// A step takes time, and so does a kernel.
    #[error("a step of 0 ns, or kernels that all take 0 ns, cannot be: report times in nanoseconds")]
    NoTime,
    /// A step is no shorter than its kernels.
    #[error(
        "a step of {step_ns} ns with a kernel of {kernel_ns} ns cannot be: report both of the same step, in nanoseconds"
    )]
    ShortStep {
        /// The step's time, in ns.
        step_ns: u64,
        /// The longest kernel's time, in ns.
        kernel_ns: u64,
    },
    /// A step that nobody waits for.
    #[error("{ns} ns are longer than an hour, which is not believed: report nanoseconds of one step")]
    TooLong {
        /// The longest time, in ns.
        ns: u64,
    },
    /// The learner's file cannot be written.
    #[error(transparent)]
    File(#[from] LearnedError),
}

/// A program, and everything that is known of it.
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

/// Times of one report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    step_ns: u64,
    kernels_ns: Vec<u64>,
}

impl Learner {
    /// Learns as long as it lives.
    pub fn new(marl: Marl) -> Self {
        Self { marl, programs: Mutex::default(), file: None }
    }

    /// Goes on with what was learned before, in a file that is written now and after each report; begins anew if there is none.
    /// Only its user can read the file, and a lock beside it (`FILE.lock`) keeps other agents from learning into it.
    ///
    /// # Errors
    /// The file cannot be read or written, is none of this version, or another agent learns into it.
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

    /// Learns from measured times. Returns how many reports on the program there were.
    ///
    /// # Errors
    /// [`ReportError`]; if it is [`ReportError::File`], the times are learned from until the agent ends.
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

    /// Plans, as [`Planner::plan`]. Returns also how long a step takes with the plan, in ns, if times were reported.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub(crate) fn plan_by_times(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<(Planned, Option<f64>), PlannerError> {
        let observations = self.observations(problem);
        let fastest = observations.iter().min_by(|left, right| left.step_ns().total_cmp(&right.step_ns()));
        // A plan in which tensors move is not what was measured.
        let Some(fastest) = fastest.filter(|_| options.objective == Objective::Score) else {
            return Ok((self.marl.plan(problem, options, watch)?, None));
        };
        let begun = Instant::now();
        let settled = Plan { places: fastest.places.clone(), steps: Vec::new() };
        let is_playable = simulate(problem, &settled).is_ok();
        if observations.len() >= TRIED && is_playable {
            let planned = Planned { plan: settled, evaluations: 0, bound: None, elapsed: begun.elapsed() };
            return Ok((planned, Some(fastest.step_ns())));
        }
        let is_stopped = Cell::new(false);
        let watch = &mut |progress: &PlannerProgress| {
            let flow = watch(progress);
            is_stopped.set(flow.is_break());
            flow
        };
        // The searches have the other half of the time.
        let may_fit = options.time_limit / 2;
        let nothing = PlannerProgress { evaluations: 0, best: None };
        let mut may_go_on = || begun.elapsed() < may_fit && watch(&nothing).is_continue();
        let costs = Costs::fit(problem, &observations, &mut may_go_on);
        let failed =
            |error: tenure_plan::ProblemError| PlannerError::Failed { planner: "marl", reason: error.to_string() };
        // A placement that was measured teaches nothing new. If there is no other that is said to be faster, there may be one
        // where costs are lower that were never measured.
        let mut evaluations = 0;
        for (believed, searches_left) in [(&costs, 2), (&costs.hoped(), 1)] {
            let corrected = believed.problem().map_err(failed)?;
            let time_limit = options.time_limit.saturating_sub(begun.elapsed()) / searches_left;
            let found = self.marl.plan(&corrected, &PlannerOptions { time_limit, ..*options }, watch)?;
            evaluations += found.evaluations;
            let places = &found.plan.places;
            let is_measured = observations.iter().any(|known| known.places == *places);
            if !is_playable || (!is_measured && believed.step_ns(places) < fastest.step_ns()) {
                let step_ns = costs.step_ns(places);
                // Its bound is of time, not of the score.
                return Ok((Planned { bound: None, evaluations, elapsed: begun.elapsed(), ..found }, Some(step_ns)));
            }
            if is_stopped.get() {
                break;
            }
        }
        let planned = Planned { plan: settled, evaluations, bound: None, elapsed: begun.elapsed() };
        Ok((planned, Some(fastest.step_ns())))
    }

    fn programs(&self) -> MutexGuard<'_, VecDeque<Program>> {
        // Nothing is left half done by a panic: programs are changed by single assignments.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times that were measured of a program.
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
    /// Nanoseconds of a step.
    fn step_ns(&self) -> f64 {
        median(self.times.iter().map(|times| times.step_ns))
    }

    /// Nanoseconds of a kernel.
    fn kernel_ns(&self, kernel: usize) -> f64 {
        median(self.times.iter().map(|times| times.kernels_ns[kernel]))
    }
}

impl Times {
    /// Refuses times that cannot be true of a problem with so many kernels.
    fn check(&self, kernels: usize) -> Result<(), ReportError> {
        let (step_ns, found) = (self.step_ns, self.kernels_ns.len());
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

/// The median of some times, at least one: of an even number of them the mean of the two in the middle.
fn median(times_ns: impl Iterator<Item = u64>) -> f64 {
    let mut times_ns: Vec<u64> = times_ns.collect();
    times_ns.sort_unstable();
    let middle = times_ns.len() / 2;
    let upper = times_ns[middle] as f64;
    if times_ns.len() % 2 == 1 { upper } else { 0.5 * (times_ns[middle - 1] as f64 + upper) }
}

/// The ending of a noun after its number.
pub(crate) fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Whether two problems are of one program.
fn is_same(left: &Problem, right: &Problem) -> bool {
    let tiers = |problem: &Problem| problem.tiers().iter().map(|tier| tier.name.clone()).collect::<Vec<_>>();
    let is_same_program = left.name() == right.name() && tiers(left) == tiers(right);
    let (tensors, kernels) = (left.tensors().iter().zip(right.tensors()), left.kernels().iter().zip(right.kernels()));
    is_same_program
        && (left.tensors().len(), left.kernels().len()) == (right.tensors().len(), right.kernels().len())
        && tensors
            .into_iter()
            .all(|(left, right)| (&left.key, left.bytes, left.tag) == (&right.key, right.bytes, right.tag))
        && kernels
            .into_iter()
            .all(|(left, right)| (&left.name, &left.reads, &left.writes) == (&right.name, &right.reads, &right.writes))
}
