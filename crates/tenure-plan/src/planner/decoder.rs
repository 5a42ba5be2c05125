//! From decisions to a plan: tensors are treated one after the other, and each gets room and links that those before it left.
//!
//! Times are those of kernels that wait for nothing. A tensor is where it is needed at each of its uses, and in the gaps
//! between them it stays, is moved away and back, or is given up and computed again. What is found to fit is played without
//! waits, as far as links do what they should; where nothing fits, it goes away and comes back all the same, and kernels wait.
//! Of the slower tiers, each tensor has the first with room.

use std::ops::Range;

use super::Objective;
use super::schedule::Schedule;
use crate::Plan;
use crate::problem::Problem;
use crate::uses::{Use, uses};

/// What is tried first with a tensor. If it cannot be, the others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It stays in the first tier.
    Keep,
    /// It is moved away in the gaps between its uses, and back.
    Away,
    /// It is given up, and computed again before it is needed.
    Recompute,
    /// It is in a slower tier that kernels reach, all its life.
    Slow,
}

impl Treatment {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Away, Self::Recompute, Self::Slow];
}

/// What is decided of the tensors of a problem.
#[derive(Clone, Debug)]
pub struct Decisions {
    /// The greatest has its way first; of equals, the earlier in the problem.
    pub priorities: Vec<f64>,
    /// What is tried first with each.
    pub treatments: Vec<Treatment>,
}

impl Decisions {
    /// All are kept, as far as there is room, those first that come first in `order`, and those last that it leaves out.
    pub fn keep(tensors: usize, order: &[usize]) -> Self {
        let mut priorities = vec![0.0; tensors];
        for (rank, tensor) in order.iter().enumerate() {
            priorities[*tensor] = 1.0 - rank as f64 / tensors as f64;
        }
        Self { priorities, treatments: vec![Treatment::Keep; tensors] }
    }
}

/// Makes plans of decisions about a problem's tensors.
pub struct Decoder<'a> {
    pub(super) problem: &'a Problem,
    /// When each kernel begins, and when the last ends, in nanoseconds.
    pub(super) begins: Vec<f64>,
    /// The kernels that need each tensor, in their order. What is there all the time is needed at both ends or at none.
    pub(super) uses: Vec<Vec<usize>>,
    /// What can be computed again of each tensor, and comes behind it.
    made_of: Vec<Vec<usize>>,
    /// Where tensors are moved away to: the first with room.
    pub(super) aways: Vec<Away>,
    /// The tiers that kernels reach beside the first.
    pub(super) slows: Vec<usize>,
    /// Nanoseconds that kernels take longer if a tensor is in the first of these.
    slower_ns: Vec<f64>,
    /// Whether tensors may move or be computed again.
    pub(super) changes: bool,
}

/// A tier beside the first, and the ways there and back.
#[derive(Clone, Copy)]
pub(super) struct Away {
    pub(super) tier: usize,
    pub(super) out: usize,
    pub(super) back: usize,
}

/// Kernels that do not need a tensor, until the first that needs it again. What is there all the time may be away from the end
/// of an iteration to the beginning of the next: then `to` comes before `from`.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Gap {
    /// Whether there is a kernel in it.
    fn is_wide(self) -> bool {
        self.to > self.from
    }

    pub(super) fn is_around(self) -> bool {
        self.to < self.from
    }

    /// The same as ranges, of so many kernels.
    pub(super) fn kernels(self, all: usize) -> [Range<usize>; 2] {
        if self.is_around() { [self.from..all, 0..self.to] } else { [self.from..self.to, 0..0] }
    }

    pub(super) fn has(self, kernel: usize) -> bool {
        if self.is_around() { kernel >= self.from || kernel < self.to } else { (self.from..self.to).contains(&kernel) }
    }
}

impl<'a> Decoder<'a> {
    /// For a problem that has tiers. Where the score counts, tensors stay where they are.
    pub fn new(problem: &'a Problem, objective: Objective) -> Self {
        let others = 1..problem.tiers().len();
        let slows: Vec<usize> = others.clone().filter(|tier| problem.tiers()[*tier].is_reachable).collect();
        let costs = uses(problem);
        let slower_ns = |uses: &Vec<Use>| match slows.first() {
            Some(slow) => uses.iter().map(|a_use| a_use.extra_ns[*slow]).sum(),
            None => f64::INFINITY,
        };
        let slower_ns = costs.iter().map(slower_ns).collect();
        let mut uses = problem.users();
        let last = problem.kernels().len().saturating_sub(1);
        for (uses, tensor) in uses.iter_mut().zip(problem.tensors()) {
            match (tensor.is_always_there(), uses.first(), uses.last()) {
                (true, Some(0), Some(end)) if *end < last => uses.push(last),
                (true, Some(first), Some(end)) if *first > 0 && *end == last => uses.insert(0, 0),
                _ => {}
            }
        }
        let changes = objective == Objective::Makespan;
        let away = |tier| Some(Away { tier, out: problem.link(0, tier)?, back: problem.link(tier, 0)? });
        let aways = others.filter(|_| changes).filter_map(away).collect();
        let mut made_of = vec![Vec::new(); problem.tensors().len()];
        for (number, tensor) in problem.tensors().iter().enumerate() {
            let is_before = |input: &&usize| uses[**input].first() < uses[number].first();
            let inputs = tensor.recompute.iter().flat_map(|recompute| &recompute.inputs);
            inputs.filter(is_before).for_each(|input| made_of[*input].push(number));
        }
        Self { problem, begins: problem.begins_ns(), uses, made_of, aways, slows, slower_ns, changes }
    }

    /// Whether a treatment is anything else than keeping a tensor.
    pub fn is_possible(&self, tensor: usize, treatment: Treatment) -> bool {
        match treatment {
            Treatment::Keep => true,
            Treatment::Away => !self.aways.is_empty() && !self.gaps(tensor, &[]).is_empty(),
            Treatment::Recompute => {
                let again = &self.problem.tensors()[tensor].recompute;
                self.changes && again.is_some() && self.gaps(tensor, &[]).iter().any(|gap| !gap.is_around())
            }
            Treatment::Slow => !self.slows.is_empty(),
        }
    }

    /// The plan in which tensors are treated as was decided, the first in the order of their priorities, as far as those before
    /// leave room.
    ///
    /// # Panics
    /// If there are not as many decisions as tensors.
    pub fn decode(&self, decisions: &Decisions) -> Plan {
        let mut order: Vec<usize> = (0..self.problem.tensors().len()).collect();
        order.sort_by(|left, right| decisions.priorities[*right].total_cmp(&decisions.priorities[*left]));
        let schedule = |has_uses_first| {
            let mut schedule = Schedule::new(self, has_uses_first);
            order.iter().for_each(|tensor| self.treat(*tensor, decisions, &mut schedule));
            schedule
        };
        // Where kernels reach the first tier only, or too little of others, everybody's uses come before anybody's gaps.
        let mut found = schedule(self.slows.is_empty());
        if found.is_overfull() && self.changes && !self.slows.is_empty() {
            found = schedule(true);
        }
        found.into_plan()
    }

    /// Treats a tensor, behind those that are to be computed again of it: then it is there, or computed again, when they need
    /// it.
    fn treat(&self, tensor: usize, decisions: &Decisions, schedule: &mut Schedule<'_, '_>) {
        let mut waiting = vec![tensor];
        while let Some(tensor) = waiting.last().copied() {
            let is_first =
                |other: &usize| decisions.treatments[*other] == Treatment::Recompute && !schedule.is_treated(*other);
            match self.made_of[tensor].iter().copied().find(is_first) {
                Some(other) if !schedule.is_treated(tensor) => waiting.push(other),
                _ => {
                    schedule.treat(tensor, decisions.treatments[tensor]);
                    waiting.pop();
                }
            }
        }
    }

    /// What it takes to have a tensor in the first tier that it can move to, in all gaps that are long enough: nanoseconds of
    /// links, and when it is in the fastest.
    pub(super) fn away(&self, tensor: usize) -> (Vec<(usize, f64)>, Vec<Range<usize>>) {
        let (mut links, mut room) = (Vec::new(), self.stays(tensor));
        let Some(away) = self.aways.first() else { return (links, room) };
        let (out_ns, back_ns) = (self.takes_ns(tensor, away.out), self.takes_ns(tensor, away.back));
        let all = self.problem.kernels().len();
        for gap in self.gaps(tensor, &[]) {
            let gone = self.gone_at(gap, self.begins[gap.from] + out_ns).min(all - 1);
            let comes = self.kernel_from((self.begins[gap.to] - back_ns).max(0.0)).min(gap.to - 1);
            if !gap.is_around() && gone >= comes {
                room.push(gap.from..gap.to);
                continue;
            }
            room.extend([gap.from..gone + 1, comes..gap.to]);
            links.extend([(self.line(away.out), out_ns), (self.line(away.back), back_ns)]);
        }
        (links, room)
    }

    /// What it takes to compute a tensor again after each gap: nanoseconds, and when it is in the first tier.
    pub(super) fn again(&self, tensor: usize) -> (f64, Vec<Range<usize>>) {
        let gaps = self.gaps(tensor, &[]).len();
        let once = self.problem.tensors()[tensor].recompute.as_ref().map_or(0, |again| again.time_ns);
        (once as f64 * gaps as f64, self.stays(tensor))
    }

    /// Nanoseconds that kernels take longer if a tensor is in the next tier that they reach; infinite if there is none.
    pub fn slower_ns(&self, tensor: usize) -> f64 {
        self.slower_ns[tensor]
    }
    pub(super) fn takes_ns(&self, tensor: usize, link: usize) -> f64 {
        self.problem.moved_bytes(tensor, link) as f64 * 1e9 / self.problem.links()[link].bandwidth as f64
    }

    /// Where it is noted what is taken of a link: one that shares its bandwidth has the same.
    pub(super) fn line(&self, link: usize) -> usize {
        let links = self.problem.links();
        let shares = |other: &usize| links[link].shared_with == Some(*other) || links[*other].shared_with == Some(link);
        (0..link).find(shares).unwrap_or(link)
    }

    /// Whether `input` is there before a kernel, with what it had when `tensor` was computed from it.
    pub(super) fn is_as_before(&self, input: usize, tensor: usize, kernel: usize) -> bool {
        let (uses, computed) = (&self.uses[input], self.uses[tensor][0]);
        // What no kernel uses may be anywhere. What came to be before can be computed again before.
        let is_there = uses.first().zip(uses.last()).is_some_and(|(first, last)| {
            let input = &self.problem.tensors()[input];
            input.is_always_there()
                || (*first < computed || *first == computed && input.recompute.is_none()) && kernel <= *last
        });
        let writes = |kernel: &usize| self.problem.kernels()[*kernel].writes.iter().any(|it| it.tensor == input);
        is_there && !uses.iter().filter(|use_of| (computed + 1..kernel).contains(use_of)).any(writes)
    }

    /// The gaps between the uses of a tensor and others of it.
    pub(super) fn gaps(&self, tensor: usize, others: &[usize]) -> Vec<Gap> {
        let mut uses = self.uses[tensor].clone();
        uses.extend(others);
        uses.sort_unstable();
        let inner = uses.windows(2).map(|uses| Gap { from: uses[0] + 1, to: uses[1] });
        let mut gaps: Vec<Gap> = inner.filter(|gap| gap.is_wide()).collect();
        if let (Some(&first @ 1..), Some(last)) = (uses.first(), uses.last())
            && self.problem.tensors()[tensor].is_always_there()
        {
            gaps.push(Gap { from: last + 1, to: first });
        }
        gaps
    }

    /// The kernels during which a tensor must be in the first tier if it is used there: those that need it, and what lies
    /// between them and is no gap.
    pub(super) fn stays(&self, tensor: usize) -> Vec<Range<usize>> {
        let mut stays: Vec<Range<usize>> = Vec::new();
        for kernel in self.uses[tensor].iter().copied() {
            match stays.last_mut() {
                Some(before) if !(Gap { from: before.end, to: kernel }).is_wide() => before.end = kernel + 1,
                _ => stays.push(kernel..kernel + 1),
            }
        }
        stays
    }

    /// The kernel that runs from a time on.
    pub(super) fn kernel_from(&self, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin <= ns).saturating_sub(1)
    }

    /// The kernel during which a tensor that has left by a time is still there: at least the last before the gap, for
    /// kernels and transfers may take no time.
    pub(super) fn gone_at(&self, gap: Gap, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin < ns).max(gap.from) - 1
    }
}
