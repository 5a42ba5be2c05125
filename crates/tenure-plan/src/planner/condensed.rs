//! Condensed problems: problems of very many kernels are planned with groups of neighbouring kernels merged.
//!
//! A training step has thousands of kernels and some hundreds of tensors that may move. Consecutive kernels that write
//! only workspaces are alike to a planner: merged, they take the sum of their times, and room for the largest of their
//! workspaces.

use std::ops::Range;

use rustc_hash::FxHashSet;
use tenure_core::Tag;

use super::{Planned, Planner, PlannerOptions, PlannerResult, Watch};
use crate::plan::{Plan, PlanAction, PlanStep};
use crate::problem::{Problem, ProblemAccess, ProblemKernel, ProblemParts, ProblemRecompute, ProblemTensor};
use crate::simulate;

/// A planner that condenses a problem of many kernels and asks another planner about it. The resulting plan is expanded
/// to the whole problem and judged there. If that is not possible, it asks the planner about the whole problem.
///
/// If the options do not limit the number of plans to try, it follows from the problem's size.
#[derive(Clone, Copy)]
pub struct Condensed<'a> {
    /// The planner.
    pub planner: &'a dyn Planner,
    /// Problems with at most this many kernels are not condensed. Others are condensed to about as many, plus one for
    /// each tensor that is written.
    pub most_kernels: usize,
}

impl<'a> Condensed<'a> {
    /// Makes a planner that asks `planner` about some hundreds of kernels, which takes less than a second.
    pub fn new(planner: &'a dyn Planner) -> Self {
        Self { planner, most_kernels: 500 }
    }

    /// Returns the number of plans to try: fewer for larger problems.
    fn evaluations(problem: &Problem) -> u64 {
        /// Kernels plus tensors, summed over all plans.
        const WORK: u64 = 500_000;
        let size = (problem.kernels().len() + problem.tensors().len()).max(1) as u64;
        (WORK / size).clamp(100, 4000)
    }

    /// Asks the planner for a plan of `problem`, with a limit on the plans to try.
    fn plan_with_limit(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let evaluations = options.evaluations.or_else(|| Some(Self::evaluations(problem)));
        self.planner.plan(problem, &PlannerOptions { evaluations, ..*options }, watch)
    }
}

impl Planner for Condensed<'_> {
    fn name(&self) -> &str {
        self.planner.name()
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        if problem.kernels().len() > self.most_kernels
            && let Some(groups) = Groups::of(problem, self.most_kernels)
            && let Some(condensed) = groups.condense(problem)
            && let Ok(planned) = self.plan_with_limit(&condensed, options, watch)
        {
            // A tensor that returns early in a group may take the room of a later kernel of the group: try a plan with
            // late returns too.
            let plans = [false, true].map(|is_late| groups.expand(problem, &planned.plan, is_late));
            if let Some(plan) = plans.into_iter().find(|plan| simulate(problem, plan).is_ok()) {
                return Ok(Planned { plan, ..planned });
            }
        }
        self.plan_with_limit(problem, options, watch)
    }
}

/// Groups of kernels, each merged into one.
struct Groups {
    /// The kernels of each group.
    kernels: Vec<Range<usize>>,
    /// The numbers of the tensors that are not workspaces of one kernel.
    tensors: Vec<usize>,
    /// For each tensor: its number in the condensed problem, or `None` for a workspace.
    numbers: Vec<Option<usize>>,
}

impl Groups {
    /// Forms groups. Each takes at most two `most`-ths of the time of all kernels, and no more room than the largest
    /// single kernel. A kernel that writes a tensor other than a workspace is the last of its group, so that tensors
    /// are created in the same order. Returns `None` if workspaces might be in another tier than the first.
    fn of(problem: &Problem, most: usize) -> Option<Self> {
        if problem.tiers().iter().skip(1).any(|tier| tier.is_reachable) {
            return None;
        }
        let tensors: Vec<usize> =
            (0..problem.tensors().len()).filter(|tensor| !is_workspace(problem, *tensor)).collect();
        let mut numbers = vec![None; problem.tensors().len()];
        tensors.iter().enumerate().for_each(|(number, tensor)| numbers[*tensor] = Some(number));
        let mut groups = Self { kernels: Vec::new(), tensors, numbers };
        let most_ns = problem.kernels_ns() / most.max(1) as u64 * 2;
        let most_bytes =
            problem.kernels().iter().map(|kernel| GroupRoom::default().add(problem, &groups, kernel)).max()?;
        let mut begin = 0;
        let mut time_ns = 0;
        let mut room = GroupRoom::default();
        for (number, kernel) in problem.kernels().iter().enumerate() {
            let is_too_much = time_ns + kernel.time_ns > most_ns || room.add(problem, &groups, kernel) > most_bytes;
            if is_too_much && number > begin {
                groups.kernels.push(begin..number);
                (begin, time_ns, room) = (number, 0, GroupRoom::default());
                room.add(problem, &groups, kernel);
            }
            time_ns += kernel.time_ns;
            if kernel.writes.iter().any(|access| groups.numbers[access.tensor].is_some()) {
                groups.kernels.push(begin..number + 1);
                (begin, time_ns, room) = (number + 1, 0, GroupRoom::default());
            }
        }
        let rest = begin..problem.kernels().len();
        groups.kernels.extend((!rest.is_empty()).then_some(rest));
        Some(groups)
    }

    /// Makes the problem whose kernels are the groups. Each group has one workspace, as large as the largest of its
    /// kernels' workspaces.
    fn condense(&self, problem: &Problem) -> Option<Problem> {
        let mut parts = ProblemParts {
            name: problem.name().into(),
            source: problem.source().into(),
            tiers: problem.tiers().to_vec(),
            links: problem.links().to_vec(),
            tensors: self.tensors.iter().map(|tensor| self.tensor(&problem.tensors()[*tensor])).collect(),
            kernels: Vec::new(),
            backward: problem.backward().map(|first| self.kernels.partition_point(|kernels| kernels.end <= first)),
        };
        for kernels in &self.kernels {
            let mut room = GroupRoom::default();
            let name = problem.kernels()[kernels.start].name.clone();
            let mut merged = ProblemKernel { name, time_ns: 0, reads: Vec::new(), writes: Vec::new() };
            for kernel in &problem.kernels()[kernels.clone()] {
                room.add(problem, self, kernel);
                merged.time_ns += kernel.time_ns;
                merged.reads.extend(self.accesses(&kernel.reads));
                merged.writes.extend(self.accesses(&kernel.writes));
            }
            if room.workspace_bytes > 0 {
                merged.writes.push(ProblemAccess { tensor: parts.tensors.len(), bytes: 0 });
                parts.tensors.push(ProblemTensor {
                    key: format!("workspace of kernels {}..{}", kernels.start, kernels.end),
                    bytes: room.workspace_bytes,
                    tag: Tag::Workspace,
                    compression: None,
                    recompute: None,
                });
            }
            parts.kernels.push(merged);
        }
        // A tensor may already have the key of a merged workspace: then there is no condensed problem.
        Problem::new(parts).ok()
    }

    /// Returns a tensor of the condensed problem. It cannot be recomputed if its inputs include a workspace.
    fn tensor(&self, tensor: &ProblemTensor) -> ProblemTensor {
        let recompute = tensor.recompute.as_ref().and_then(|ProblemRecompute { time_ns, inputs }| {
            let inputs = inputs.iter().map(|input| self.numbers[*input]).collect::<Option<Vec<usize>>>()?;
            Some(ProblemRecompute { time_ns: *time_ns, inputs })
        });
        ProblemTensor { recompute, ..tensor.clone() }
    }

    fn accesses(&self, accesses: &[ProblemAccess]) -> impl Iterator<Item = ProblemAccess> {
        accesses
            .iter()
            .filter_map(|access| Some(ProblemAccess { tensor: self.numbers[access.tensor]?, bytes: access.bytes }))
    }

    /// Expands a plan of the condensed problem to the whole problem. A tensor returns at the first kernel of a group,
    /// or at the last if `is_late`.
    fn expand(&self, problem: &Problem, plan: &Plan, is_late: bool) -> Plan {
        let mut places = vec![0; problem.tensors().len()];
        self.tensors.iter().zip(&plan.places).for_each(|(tensor, place)| places[*tensor] = *place);
        let users = problem.users();
        let steps = plan.steps.iter().filter_map(|step| {
            let (tensor, Range { start, end }) = (*self.tensors.get(step.tensor)?, self.kernels[step.kernel].clone());
            let kernel = match step.action {
                PlanAction::Drop => end - 1,
                PlanAction::Move { to: 0 } if is_late => end - 1,
                PlanAction::Move { to: 0 } | PlanAction::Recompute { .. } => start,
                // At the earliest at the last kernel of the group that uses the tensor.
                PlanAction::Move { .. } => {
                    let used = users[tensor].partition_point(|kernel| *kernel < end);
                    users[tensor][..used].last().map_or(start, |last| start.max(*last))
                }
            };
            Some(PlanStep { tensor, kernel, action: step.action })
        });
        Plan { places, steps: steps.collect() }
    }
}

/// Returns whether a tensor is a workspace that only one kernel uses.
fn is_workspace(problem: &Problem, tensor: usize) -> bool {
    let life = problem.lifetime(tensor);
    problem.tensors()[tensor].tag == Tag::Workspace && life.is_some_and(|life| life.start() == life.end())
}

/// The room that the kernels of a group need in the first tier: all their tensors, and the largest of their workspaces.
#[derive(Default)]
struct GroupRoom {
    tensors: FxHashSet<usize>,
    tensors_bytes: u64,
    workspace_bytes: u64,
}

impl GroupRoom {
    /// Adds a kernel. Returns the bytes of all kernels added so far.
    fn add(&mut self, problem: &Problem, groups: &Groups, kernel: &ProblemKernel) -> u64 {
        let mut workspace_bytes = 0;
        for ProblemAccess { tensor, .. } in kernel.accesses() {
            let bytes = problem.tensors()[*tensor].bytes;
            if groups.numbers[*tensor].is_none() {
                workspace_bytes += bytes;
            } else if self.tensors.insert(*tensor) {
                self.tensors_bytes += bytes;
            }
        }
        self.workspace_bytes = self.workspace_bytes.max(workspace_bytes);
        self.tensors_bytes + self.workspace_bytes
    }
}
