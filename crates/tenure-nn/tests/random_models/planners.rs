//! Planners for models so small that they fit in any budget.

use std::time::Duration;

use tenure_plan::Problem;
use tenure_plan::plan::PlanAction;
use tenure_plan::planner::{
    Decisions, Decoder, Evolutionary, FlashNeuron, Objective, Planned, Planner, PlannerError, PlannerOptions,
    Scheduled, Treatment, Watch,
};
use tenure_plan::problem::ProblemKernel;
use tenure_tensor::random::Generator;

/// The kinds of planners.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    FlashNeuron,
    Scheduled,
    Evolutionary,
    /// Random possible actions.
    Anybody,
    /// Random actions without recomputation, at other times than planned: requests come too early, too late, twice, or
    /// never.
    Anytime,
}

impl Who {
    pub(crate) const ALL: [Self; 5] =
        [Self::FlashNeuron, Self::Scheduled, Self::Evolutionary, Self::Anybody, Self::Anytime];
}

/// A planner that gets only a part of the memory: `part` is its place between the least that works and a plain step's
/// peak. With `None` it gets all of the memory.
pub(crate) struct Within {
    pub(crate) who: Who,
    pub(crate) part: Option<f64>,
    pub(crate) seed: u64,
}

pub(crate) fn options(seed: u64) -> PlannerOptions {
    // The number of evaluations ends the search, not the clock.
    let objective = Objective::Makespan;
    let time_limit = Duration::from_secs(24 * 60 * 60);
    PlannerOptions { objective, time_limit, evaluations: Some(12), seed }
}

impl Planner for Within {
    fn name(&self) -> &str {
        "within"
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        let least: u64 = problem
            .kernels()
            .iter()
            .map(|kernel: &ProblemKernel| {
                let mut used: Vec<usize> = kernel.accesses().map(|access| access.tensor).collect();
                used.sort_unstable();
                used.dedup();
                used.into_iter().map(|tensor| problem.tensors()[tensor].bytes).sum()
            })
            .max()
            .unwrap_or(0);
        let between = problem.peak_bytes().saturating_sub(least);
        let problem = match self.part {
            Some(part) => problem.clone().with_fast_bytes(least + (between as f64 * part) as u64),
            None => problem.clone(),
        };
        let planner: &dyn Planner = match self.who {
            Who::FlashNeuron => &FlashNeuron,
            Who::Scheduled => &Scheduled,
            Who::Evolutionary => &Evolutionary::default(),
            Who::Anybody | Who::Anytime => return Ok(self.any(&problem)),
        };
        planner.plan(&problem, options, watch)
    }
}

impl Within {
    fn any(&self, problem: &Problem) -> Planned {
        let generator = Generator::new(self.seed);
        let below = |bound: usize| (generator.next_u64() % bound.max(1) as u64) as usize;
        let treatments: &[Treatment] = match self.who {
            Who::Anytime => &[Treatment::Keep, Treatment::Away],
            _ => &[Treatment::Keep, Treatment::Away, Treatment::Recompute],
        };
        let tensors = problem.tensors().len();
        let decisions = Decisions {
            priorities: (0..tensors).map(|_| below(1000) as f64).collect(),
            treatments: (0..tensors).map(|_| treatments[below(treatments.len())]).collect(),
        };
        let mut plan = Decoder::new(problem, Objective::Makespan).decode(&decisions);
        if matches!(self.who, Who::Anytime) {
            plan.steps.retain(|step| matches!(step.action, PlanAction::Move { .. }) && below(8) > 0);
            let others = plan.steps.clone();
            plan.steps.extend(others.into_iter().filter(|_| below(8) == 0));
            plan.steps
                .iter_mut()
                .filter(|_| below(2) == 0)
                .for_each(|step| step.kernel = below(problem.kernels().len()));
        }
        Planned { plan, evaluations: 1, bound: None, elapsed: Duration::ZERO }
    }
}
