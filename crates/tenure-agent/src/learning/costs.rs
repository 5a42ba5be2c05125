//! Costs as they are met: those that a problem tells, corrected by measured times.
//!
//! A kernel takes its time in the fastest tier, and longer for each access to a slower one. Measured times are sums of
//! these parts. Parts that are alike (kernels of one name; accesses of one direction and size to one tier) share a factor,
//! and each kernel and each tensor may differ from its kind. The factors are those of a ridge regression: the most likely
//! ones, if measured times are a few per cent off and told costs are off by a factor of about two.

use std::collections::HashMap;

use tenure_plan::problem::{Access, Kernel, Tier};
use tenure_plan::{Problem, ProblemError};

use super::Observation;

/// How far measured times are off: standard deviation, as a share of the time.
const NOISE: f64 = 0.03;
/// How far told costs of a kind are off, and members of a kind from it: standard deviations of factors.
const KIND_SPREAD: f64 = 1.0;
const MEMBER_SPREAD: f64 = 0.3;
/// Rounds in which each factor is fitted to what the others leave.
const SWEEPS: usize = 60;
/// An access costs no less than this share of what was told.
const LEAST_FACTOR: f64 = 0.01;
/// Costs of all accesses as bytes, so that rounding does not matter and no sum passes 64 bits.
const ALL_COSTS: f64 = 1e15;

/// What shares a factor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Factor<'a> {
    /// Kernels of one name, and one of them.
    Name(&'a str),
    Kernel(usize),
    /// Accesses to a tier, in one direction, of one size, and all of one tensor.
    Accesses {
        tier: usize,
        is_write: bool,
        size: u32,
    },
    Tensor {
        tier: usize,
        tensor: usize,
    },
}

impl Factor<'_> {
    fn is_of_a_kind(self) -> bool {
        matches!(self, Self::Name(_) | Self::Accesses { .. })
    }
}

/// The factors that were found.
struct Fit<'a> {
    numbers: HashMap<Factor<'a>, usize>,
    values: Vec<f64>,
}

/// One measured time: the factors that it is a sum of, with what each is multiplied by, in ns.
struct Row {
    parts: Vec<(usize, f64)>,
    measured_ns: f64,
}

/// `problem` with what each access costs more in the next tier than in the first, as it was met, in place of its bytes. So
/// the best score is the least time.
///
/// # Errors
/// None that is known of: [`ProblemError`] if that were no problem.
pub(super) fn corrected(problem: &Problem, observations: &[Observation]) -> Result<Problem, ProblemError> {
    let Some(tier) = (1..problem.tiers().len()).find(|tier| problem.tiers()[*tier].is_reachable) else {
        return Ok(problem.clone());
    };
    let fit = fit(problem, observations);
    let costs: Vec<Vec<f64>> = (problem.kernels().iter())
        .map(|kernel| accesses(kernel).map(|access| fit.cost_ns(problem, tier, access)).collect())
        .collect();
    let all: f64 = costs.iter().flatten().sum();
    let scale = ALL_COSTS / all.max(1.0);
    let mut parts = problem.clone().into_parts();
    for (kernel, costs) in parts.kernels.iter_mut().zip(costs) {
        let accesses = kernel.reads.iter_mut().chain(&mut kernel.writes);
        accesses.zip(costs).for_each(|(access, cost)| access.bytes = (cost * scale) as u64);
    }
    Problem::new(parts)
}

fn fit<'a>(problem: &'a Problem, observations: &[Observation]) -> Fit<'a> {
    let mut fit = Fit { numbers: HashMap::new(), values: Vec::new() };
    let rows: Vec<Row> = observations.iter().flat_map(|observation| fit.rows(problem, observation)).collect();
    let mut uses = vec![Vec::new(); fit.values.len()];
    for (number, row) in rows.iter().enumerate() {
        row.parts.iter().for_each(|(factor, ns)| uses[*factor].push((number, *ns)));
    }
    let priors = fit.priors();
    let mut left: Vec<f64> = rows.iter().map(|row| row.measured_ns - row.sum(&fit.values)).collect();
    let weights: Vec<f64> = rows.iter().map(|row| (NOISE * row.measured_ns.max(1.0)).powi(-2)).collect();
    for _ in 0..SWEEPS {
        for (factor, uses) in uses.iter().enumerate() {
            let (prior, spread) = priors[factor];
            let trust = spread.powi(-2);
            let pull: f64 = uses.iter().map(|(row, ns)| weights[*row] * ns * left[*row]).sum();
            let weight: f64 = uses.iter().map(|(row, ns)| weights[*row] * ns * ns).sum();
            let change = (pull + trust * (prior - fit.values[factor])) / (weight + trust);
            fit.values[factor] += change;
            uses.iter().for_each(|(row, ns)| left[*row] -= change * ns);
        }
    }
    fit
}

impl<'a> Fit<'a> {
    /// The factor's number. Told costs are taken for true at first.
    fn number(&mut self, factor: Factor<'a>) -> usize {
        let next = self.values.len();
        let number = *self.numbers.entry(factor).or_insert(next);
        if number == next {
            self.values.push(if factor.is_of_a_kind() { 1.0 } else { 0.0 });
        }
        number
    }

    /// Of each factor what it is if nothing was measured, and how far it may be from that.
    fn priors(&self) -> Vec<(f64, f64)> {
        let mut priors = vec![(0.0, MEMBER_SPREAD); self.values.len()];
        for (_, number) in self.numbers.iter().filter(|(factor, _)| factor.is_of_a_kind()) {
            priors[*number] = (1.0, KIND_SPREAD);
        }
        priors
    }

    /// A row for each kernel.
    fn rows(&mut self, problem: &'a Problem, observation: &Observation) -> Vec<Row> {
        let kernels = problem.kernels().iter().zip(&observation.kernels_ns).enumerate();
        let row = |(number, (kernel, measured_ns)): (usize, (&'a Kernel, &f64))| Row {
            parts: self.parts(problem, observation, number, kernel),
            measured_ns: *measured_ns,
        };
        kernels.map(row).collect()
    }

    /// What a kernel's time is the sum of.
    fn parts(
        &mut self,
        problem: &'a Problem,
        observation: &Observation,
        number: usize,
        kernel: &'a Kernel,
    ) -> Vec<(usize, f64)> {
        let own_ns = kernel.time_ns.max(1) as f64;
        let mut parts =
            vec![(self.number(Factor::Name(&kernel.name)), own_ns), (self.number(Factor::Kernel(number)), own_ns)];
        for access in accesses(kernel) {
            let tier = observation.places[access.access.tensor];
            if tier > 0 {
                let told_ns = access.told_ns(problem, tier);
                parts.extend(access.factors(tier).map(|factor| (self.number(factor), told_ns)));
            }
        }
        parts
    }

    /// Nanoseconds that an access takes longer in a tier than in the first.
    fn cost_ns(&self, problem: &Problem, tier: usize, access: KernelAccess) -> f64 {
        let [kind, tensor] =
            access.factors(tier).map(|factor| self.numbers.get(&factor).map(|number| self.values[*number]));
        access.told_ns(problem, tier) * (kind.unwrap_or(1.0) + tensor.unwrap_or(0.0)).max(LEAST_FACTOR)
    }
}

impl Row {
    fn sum(&self, values: &[f64]) -> f64 {
        self.parts.iter().map(|(factor, ns)| values[*factor] * ns).sum()
    }
}

/// An access and its direction.
#[derive(Clone, Copy)]
struct KernelAccess {
    access: Access,
    is_write: bool,
}

fn accesses(kernel: &Kernel) -> impl Iterator<Item = KernelAccess> {
    let reads = kernel.reads.iter().map(|access| KernelAccess { access: *access, is_write: false });
    reads.chain(kernel.writes.iter().map(|access| KernelAccess { access: *access, is_write: true }))
}

impl KernelAccess {
    fn factors<'a>(self, tier: usize) -> [Factor<'a>; 2] {
        let Access { tensor, bytes } = self.access;
        let size = bytes.max(1).ilog2();
        [Factor::Accesses { tier, is_write: self.is_write, size }, Factor::Tensor { tier, tensor }]
    }

    /// Nanoseconds that it takes longer in a tier than in the first, as the problem tells. A tier that is said to be as fast
    /// costs a little all the same: what costs nothing cannot be corrected by a factor.
    fn told_ns(self, problem: &Problem, tier: usize) -> f64 {
        let bandwidth = |tier: &Tier| if self.is_write { tier.write_bandwidth } else { tier.read_bandwidth } as f64;
        let (fastest, tier) = (&problem.tiers()[0], &problem.tiers()[tier]);
        let fastest_ns = self.access.bytes as f64 * 1e9 / bandwidth(fastest);
        let slower_ns = self.access.bytes as f64 * 1e9 / bandwidth(tier) - fastest_ns;
        let waits_ns = tier.latency_ns.saturating_sub(fastest.latency_ns) as f64;
        slower_ns.max(0.1 * fastest_ns) + waits_ns
    }
}
