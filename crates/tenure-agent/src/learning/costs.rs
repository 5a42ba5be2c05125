//! Costs of kernels and accesses: a problem's estimates, corrected by measured times.
//!
//! A kernel takes its time in the fastest tier, and longer for each access to a slower one. Measured times are sums of
//! these parts. Similar parts (kernels of one name; accesses of one direction and size to one tier) share a factor, and
//! each kernel and each tensor may differ from its kind. A ridge regression fits the factors: they are the most likely
//! ones if measured times are a few per cent off and estimated costs are off by a factor of about two.

use std::collections::HashMap;

use tenure_plan::problem::{ProblemAccess, ProblemKernel, ProblemTier};
use tenure_plan::{Problem, ProblemError};

use super::program::Observation;

/// The error of measured times: standard deviation as a share of the time.
const NOISE: f64 = 0.03;
/// The additional error in ns that is always there, from clocks and interrupts.
const JITTER_NS: f64 = 100.0;
/// The errors of a kind's estimated costs, and of its members: standard deviations of factors. Kernels of one name are
/// much alike. Accesses to one tensor may be in random order and take several times as long as those to another.
const KIND_SPREAD: f64 = 1.0;
const KERNEL_SPREAD: f64 = 0.3;
const TENSOR_SPREAD: f64 = 1.0;
/// The number of rounds of coordinate descent: in each, every factor is fitted to the residuals of the others.
const SWEEPS: usize = 60;
/// The optimistic share of its cost that an access has if none of its tensor was measured in that tier.
const OPTIMISTIC_SHARE: f64 = 0.5;
/// The least factor of an access's estimated cost.
const LEAST_FACTOR: f64 = 0.01;
/// The sum of all costs as bytes: large enough that rounding does not matter, small enough that no sum exceeds 64 bits.
const ALL_COSTS: f64 = 1e15;

/// A factor of the regression, shared by some kernels or accesses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Factor<'a> {
    /// The factor of all kernels of one name.
    Name(&'a str),
    /// The factor of a single kernel.
    Kernel(usize),
    /// The factor of all accesses of one size class to a tier in one direction.
    Accesses { tier: usize, is_write: bool, size: u32 },
    /// The factor of all accesses to one tensor in a tier in one direction.
    Tensor { tier: usize, is_write: bool, tensor: usize },
}

impl Factor<'_> {
    /// Returns whether several kernels or accesses of one kind share the factor.
    fn is_shared(self) -> bool {
        matches!(self, Self::Name(_) | Self::Accesses { .. })
    }
}

/// Costs of a problem's kernels and accesses, corrected by measurements.
#[derive(Clone)]
pub(super) struct Costs<'a> {
    problem: &'a Problem,
    /// The number of each factor.
    numbers: HashMap<Factor<'a>, usize>,
    /// The value of each factor, by number.
    values: Vec<f64>,
    /// The share of its cost that an access has if none of its tensor was measured in that tier.
    unmeasured_share: f64,
}

/// One measured time: the factors of its parts, each with its estimated ns.
struct Row {
    parts: Vec<(usize, f64)>,
    measured_ns: f64,
}

impl<'a> Costs<'a> {
    /// Fits factors as long as `may_go_on` returns true. Fewer rounds give less exact factors.
    pub(super) fn fit(problem: &'a Problem, observations: &[Observation], may_go_on: &mut dyn FnMut() -> bool) -> Self {
        let mut costs = Self { problem, numbers: HashMap::new(), values: Vec::new(), unmeasured_share: 1.0 };
        let rows: Vec<Row> = observations.iter().flat_map(|observation| costs.rows(observation)).collect();
        let mut uses = vec![Vec::new(); costs.values.len()];
        for (number, row) in rows.iter().enumerate() {
            row.parts.iter().for_each(|(factor, ns)| uses[*factor].push((number, *ns)));
        }
        let priors = costs.priors();
        let mut left: Vec<f64> = rows.iter().map(|row| row.measured_ns - row.sum(&costs.values)).collect();
        let weights: Vec<f64> = rows.iter().map(|row| (NOISE * row.measured_ns + JITTER_NS).powi(-2)).collect();
        for _ in 0..SWEEPS {
            if !may_go_on() {
                break;
            }
            for (factor, uses) in uses.iter().enumerate() {
                let (prior, spread) = priors[factor];
                let trust = spread.powi(-2);
                let pull: f64 = uses.iter().map(|(row, ns)| weights[*row] * ns * left[*row]).sum();
                let weight: f64 = uses.iter().map(|(row, ns)| weights[*row] * ns * ns).sum();
                let change = (pull + trust * (prior - costs.values[factor])) / (weight + trust);
                costs.values[factor] += change;
                uses.iter().for_each(|(row, ns)| left[*row] -= change * ns);
            }
        }
        costs
    }

    /// Returns the same costs, but lower ones for accesses whose cost was never measured (with another access of the
    /// same tensor in the same tier), but only estimated.
    pub(super) fn optimistic(&self) -> Self {
        Self { unmeasured_share: OPTIMISTIC_SHARE, ..self.clone() }
    }

    /// Returns the problem with the bytes of each access replaced by its additional cost in slower tiers. So the best
    /// score is the least time.
    ///
    /// # Errors
    /// [`ProblemError`] if the result were not a problem, which cannot happen as far as is known.
    pub(super) fn problem(&self) -> Result<Problem, ProblemError> {
        let shares = slower_shares(self.problem);
        let kernels = self.problem.kernels().iter();
        let costs: Vec<f64> = kernels
            .flat_map(accesses)
            .map(|access| shares.iter().map(|(tier, share)| share * self.cost_ns(*tier, access)).sum())
            .collect();
        let scale = ALL_COSTS / costs.iter().sum::<f64>().max(1.0);
        let mut parts = self.problem.clone().into_parts();
        let accesses = parts.kernels.iter_mut().flat_map(|kernel| kernel.reads.iter_mut().chain(&mut kernel.writes));
        accesses.zip(costs).for_each(|(access, cost)| access.bytes = (cost * scale) as u64);
        Problem::new(parts)
    }

    /// Returns the time in ns of a step with tensors in these tiers.
    pub(super) fn step_ns(&self, places: &[usize]) -> f64 {
        self.problem
            .kernels()
            .iter()
            .enumerate()
            .map(|(number, kernel)| {
                let own = self.value(Factor::Name(&kernel.name), 1.0) + self.value(Factor::Kernel(number), 0.0);
                let slower = accesses(kernel).map(|access| (places[access.access.tensor], access));
                let lost: f64 =
                    slower.filter(|(tier, _)| *tier > 0).map(|(tier, access)| self.cost_ns(tier, access)).sum();
                own.max(0.0) * own_ns(self.problem, kernel) + lost
            })
            .sum()
    }

    /// Returns the number of a factor. A new factor takes the estimate for true.
    fn number(&mut self, factor: Factor<'a>) -> usize {
        let next = self.values.len();
        let number = *self.numbers.entry(factor).or_insert(next);
        if number == next {
            self.values.push(if factor.is_shared() { 1.0 } else { 0.0 });
        }
        number
    }

    /// Returns each factor's value without measurements, and its standard deviation.
    fn priors(&self) -> Vec<(f64, f64)> {
        let mut priors = vec![(0.0, 0.0); self.values.len()];
        for (factor, number) in &self.numbers {
            priors[*number] = match factor {
                Factor::Name(_) | Factor::Accesses { .. } => (1.0, KIND_SPREAD),
                Factor::Kernel(_) => (0.0, KERNEL_SPREAD),
                Factor::Tensor { .. } => (0.0, TENSOR_SPREAD),
            };
        }
        priors
    }

    /// Returns a row for each kernel.
    fn rows(&mut self, observation: &Observation) -> Vec<Row> {
        let kernels = self.problem.kernels().iter().enumerate();
        kernels
            .map(|(number, kernel)| Row {
                parts: self.parts(observation, number, kernel),
                measured_ns: observation.kernel_ns(number),
            })
            .collect()
    }

    /// Returns the parts whose sum is a kernel's time.
    fn parts(&mut self, observation: &Observation, number: usize, kernel: &'a ProblemKernel) -> Vec<(usize, f64)> {
        let own_ns = own_ns(self.problem, kernel);
        let mut parts =
            vec![(self.number(Factor::Name(&kernel.name)), own_ns), (self.number(Factor::Kernel(number)), own_ns)];
        for access in accesses(kernel) {
            let tier = observation.places[access.access.tensor];
            if tier > 0 {
                let estimated_ns = access.estimated_ns(self.problem, tier);
                parts.extend(access.factors(tier).map(|factor| (self.number(factor), estimated_ns)));
            }
        }
        parts
    }

    /// Returns the additional time in ns of an access in a tier, compared with the first tier.
    fn cost_ns(&self, tier: usize, access: KernelAccess) -> f64 {
        let [kind, tensor] = access.factors(tier);
        let share = if self.numbers.contains_key(&tensor) { 1.0 } else { self.unmeasured_share };
        share
            * access.estimated_ns(self.problem, tier)
            * (self.value(kind, 1.0) + self.value(tensor, 0.0)).max(LEAST_FACTOR)
    }

    /// Returns the value of a factor, or `told` if no measurement has it.
    fn value(&self, factor: Factor<'_>, told: f64) -> f64 {
        self.numbers.get(&factor).map_or(told, |number| self.values[*number])
    }
}

/// Returns a kernel's time in ns in the fastest tier, as the problem says: no less than its accesses take there, since
/// recordings do not know the time of a step's last kernel.
fn own_ns(problem: &Problem, kernel: &ProblemKernel) -> f64 {
    let fastest = &problem.tiers()[0];
    let accesses_ns = accesses(kernel).map(|access| access.bytes_ns(fastest)).fold(0.0, f64::max);
    accesses_ns.max(kernel.time_ns as f64).max(1.0)
}

/// Returns the slower tiers that kernels reach, each with its share of the bytes beyond the first tier if each tier is
/// filled before the next.
fn slower_shares(problem: &Problem) -> Vec<(usize, f64)> {
    let first_bytes = problem.tiers().first().and_then(|tier| tier.capacity).unwrap_or(u64::MAX);
    let all = problem.peak_bytes().saturating_sub(first_bytes).max(1);
    let mut left = all;
    let slower = problem.tiers().iter().enumerate().skip(1).filter(|(_, tier)| tier.is_reachable);
    slower
        .map(|(number, tier)| {
            let held = tier.capacity.unwrap_or(left).min(left);
            left -= held;
            (number, held as f64 / all as f64)
        })
        .collect()
}

impl Row {
    /// Returns the predicted time in ns.
    fn sum(&self, values: &[f64]) -> f64 {
        self.parts.iter().map(|(factor, ns)| values[*factor] * ns).sum()
    }
}

/// An access and its direction.
#[derive(Clone, Copy)]
struct KernelAccess {
    access: ProblemAccess,
    is_write: bool,
}

/// Returns the reads and then the writes of a kernel.
fn accesses(kernel: &ProblemKernel) -> impl Iterator<Item = KernelAccess> {
    let reads = kernel.reads.iter().map(|access| KernelAccess { access: *access, is_write: false });
    reads.chain(kernel.writes.iter().map(|access| KernelAccess { access: *access, is_write: true }))
}

impl KernelAccess {
    /// Returns the factors of an access in a tier: that of its kind, and that of its tensor.
    fn factors<'a>(self, tier: usize) -> [Factor<'a>; 2] {
        let ProblemAccess { tensor, bytes } = self.access;
        let size = bytes.max(1).ilog2();
        let is_write = self.is_write;
        [Factor::Accesses { tier, is_write, size }, Factor::Tensor { tier, is_write, tensor }]
    }

    /// Returns the additional time in ns of an access in a tier, compared with the first, as the problem says. A tier
    /// that is said to be as fast still costs a little: a cost of zero could not be corrected by a factor.
    fn estimated_ns(self, problem: &Problem, tier: usize) -> f64 {
        let fastest = &problem.tiers()[0];
        let tier = &problem.tiers()[tier];
        let fastest_ns = self.bytes_ns(fastest);
        let slower_ns = self.bytes_ns(tier) - fastest_ns;
        let waits_ns = tier.latency_ns.saturating_sub(fastest.latency_ns) as f64;
        slower_ns.max(0.1 * fastest_ns) + waits_ns
    }

    /// Returns the time in ns that its bytes take at a tier's bandwidth.
    fn bytes_ns(self, tier: &ProblemTier) -> f64 {
        let bandwidth = if self.is_write { tier.write_bandwidth } else { tier.read_bandwidth };
        self.access.bytes as f64 * 1e9 / bandwidth as f64
    }
}
