//! The choice of a treatment for each tensor: keep it, move it away between its uses, recompute it, or leave it in the
//! slow tier.

use std::collections::HashMap;

use tenure_core::Tag;
use tenure_plan::Problem;
use tenure_plan::planner::{Decisions, Decoder, Treatment};
use tenure_plan::problem::ProblemLink;

use crate::market::Market;
use crate::play::Play;
use crate::policy::{LEANINGS, Policy, ROUNDS};

/// The largest absolute value of a bid.
const MAX_BID: f64 = 30.0;

/// The possible decisions for a problem. Tensors of one tag, made by kernels of one name, of about one size, are a
/// *group*: an agent that leans to one treatment or another.
pub(crate) struct Choices {
    /// The order of tensors if no group has a leaning: higher bids come first.
    bids: Vec<f64>,
    possible: Vec<[bool; Treatment::ALL.len()]>,
    /// The group of each tensor, and the number of tensors in each group.
    groups: Vec<usize>,
    members: Vec<usize>,
    /// [`TENSOR_FEATURES`](crate::policy::TENSOR_FEATURES) numbers of about -1 to 1 for each tensor, one tensor after the
    /// other.
    pub(crate) features: Vec<f32>,
}

impl Choices {
    /// Computes the choices at the prices that a policy reaches.
    pub(crate) fn new(problem: &Problem, decoder: &Decoder<'_>, policy: &Policy) -> tenure_tensor::Result<Self> {
        let capacity = problem.tiers()[0].capacity.unwrap_or(u64::MAX);
        let slower_ns = (0..problem.tensors().len()).map(|tensor| match decoder.slower_ns(tensor) {
            // Kernels cannot reach any other tier, so no time is known. The more bytes they access, the more there is
            // to lose.
            ns if ns.is_infinite() => problem.accessed_bytes(tensor) as f64,
            ns => ns,
        });
        let slower_ns: Vec<f64> = slower_ns.collect();
        let market = Market::new(problem, capacity, |tensor| slower_ns[tensor]);
        let mut play = Play::new(&market);
        for _ in 0..ROUNDS {
            play.round(policy)?;
        }
        let mut bids = vec![-MAX_BID; slower_ns.len()];
        for (buyer, bid) in market.buyers.iter().zip(market.bids(&play.log_prices)) {
            bids[buyer.tensor] = bid.clamp(-MAX_BID, MAX_BID);
        }
        let possible: Vec<_> = (0..bids.len())
            .map(|tensor| Treatment::ALL.map(|treatment| decoder.is_possible(tensor, treatment)))
            .collect();
        let (groups, members) = group(problem);
        let tensor_features = TensorFeatures::new(problem, &market, &play.log_prices, &slower_ns);
        let features =
            (0..bids.len()).flat_map(|tensor| tensor_features.tensor_row(tensor, bids[tensor], possible[tensor]));
        Ok(Self { features: features.map(|value| value as f32).collect(), bids, possible, groups, members })
    }

    /// Returns the number of groups.
    pub(crate) fn group_count(&self) -> usize {
        self.members.len()
    }

    /// Returns the group of a tensor.
    pub(crate) fn group(&self, tensor: usize) -> usize {
        self.groups[tensor]
    }

    /// Returns the decisions that the leanings give, [`LEANINGS`] numbers for each tensor. Among treatments with equal
    /// leanings it takes the first, which is to keep the tensor.
    pub(crate) fn decide(&self, leanings: &[f64]) -> Decisions {
        let turn = LEANINGS - 1;
        let rows = leanings.chunks_exact(LEANINGS);
        let priorities = self.bids.iter().zip(rows.clone()).map(|(bid, row)| bid + row[turn]).collect();
        let treatments = self.possible.iter().zip(rows).map(|(possible, row)| {
            let possible = (0..turn).rev().filter(|number| possible[*number]);
            let most = possible.max_by(|left, right| row[*left].total_cmp(&row[*right]));
            Treatment::ALL[most.unwrap_or(0)]
        });
        Decisions { priorities, treatments: treatments.collect() }
    }

    /// Returns each tensor's leanings plus the offsets of its group.
    pub(crate) fn with_group_offsets(&self, leanings: &[f32], offsets: &[f64]) -> Vec<f64> {
        let offsets = self.groups.iter().flat_map(|group| &offsets[group * LEANINGS..(group + 1) * LEANINGS]);
        leanings.iter().zip(offsets).map(|(leaning, offset)| f64::from(*leaning) + offset).collect()
    }

    /// Converts a direction (a gradient) of group offsets to one of leanings: each member of a group gets an equal
    /// share.
    pub(crate) fn leaning_directions(&self, direction: &[f64]) -> Vec<f32> {
        self.groups
            .iter()
            .flat_map(|group: &usize| {
                let all = &direction[group * LEANINGS..(group + 1) * LEANINGS];
                let members = self.members[*group] as f64;
                all.iter().map(move |value| (value / members) as f32)
            })
            .collect()
    }
}

/// Returns the group of each tensor, and the number of tensors in each group.
fn group(problem: &Problem) -> (Vec<usize>, Vec<usize>) {
    let mut maker = vec![""; problem.tensors().len()];
    for kernel in problem.kernels().iter().rev() {
        for access in kernel.accesses() {
            maker[access.tensor] = &kernel.name;
        }
    }
    let mut numbers = HashMap::new();
    let mut members = Vec::new();
    let mut groups = Vec::new();
    for (tensor, maker) in problem.tensors().iter().zip(maker) {
        let size = tensor.bytes.max(1).ilog2() / 2;
        let group = *numbers.entry((tensor.tag, maker, size)).or_insert(members.len());
        if group == members.len() {
            members.push(0);
        }
        members[group] += 1;
        groups.push(group);
    }
    (groups, members)
}

/// Computes the features of a problem's tensors, before any plan is tried.
struct TensorFeatures<'a> {
    problem: &'a Problem,
    market: &'a Market<'a>,
    slower_ns: &'a [f64],
    /// The times in ns at which kernels begin and the last ends.
    begins: Vec<f64>,
    /// The longest gap in time between two uses of each tensor: from the kernel after one use to the kernel of the
    /// next.
    gaps: Vec<(usize, usize)>,
    /// The number of accesses to each tensor.
    uses: Vec<usize>,
    /// Running sums of the kernels' prices.
    price_sums: Vec<f64>,
    /// The features that are the same for all tensors.
    problem_row: Vec<f64>,
}

impl<'a> TensorFeatures<'a> {
    fn new(problem: &'a Problem, market: &'a Market<'a>, log_prices: &[f64], slower_ns: &'a [f64]) -> Self {
        let begins = problem.begins_ns();
        let tensors = problem.tensors().len();
        let mut gaps = vec![(0, 0); tensors];
        let mut uses = vec![0; tensors];
        let mut before = vec![None; tensors];
        let ns = |(from, to): (usize, usize)| begins[to] - begins[from];
        for (number, kernel) in problem.kernels().iter().enumerate() {
            for access in kernel.accesses() {
                let tensor = access.tensor;
                if let Some(last) = before[tensor].replace(number).filter(|last| *last < number)
                    && ns((last + 1, number)) > ns(gaps[tensor])
                {
                    gaps[tensor] = (last + 1, number);
                }
                uses[tensor] += 1;
            }
        }
        let price_sums = sums(log_prices.iter().map(|price| price.exp()));
        let mut tensor_features =
            Self { problem, market, slower_ns, begins, gaps, uses, price_sums, problem_row: Vec::new() };
        tensor_features.problem_row = tensor_features.problem_features();
        tensor_features
    }

    /// Returns the features of the whole problem: possible gains and their costs.
    fn problem_features(&self) -> Vec<f64> {
        let all_ns = self.begins[self.begins.len() - 1].max(1.0);
        let gone = (0..self.gaps.len()).filter(|tensor| self.gaps[*tensor].1 > 0);
        let link_ns: f64 = gone.map(|tensor| self.link_ns(tensor)).sum();
        let slower_ns: f64 = self.slower_ns.iter().sum();
        let slow = self.problem.tiers().get(1);
        let load = slow.and_then(|tier| tier.loaded.last()).map_or(1.0, |loaded| loaded[1]);
        let write = slow.map_or(1.0, |tier| tier.read_bandwidth as f64 / tier.write_bandwidth as f64);
        let is_shared = self.problem.links().iter().any(|link| link.shared_with.is_some());
        let peak = self.market.pressure.iter().copied().fold(0.0, f64::max);
        vec![
            scaled_log(link_ns / all_ns),
            scaled_log(slower_ns / all_ns),
            scaled_log(peak),
            load / 4.0,
            scaled_log(write),
            f64::from(is_shared),
        ]
    }

    /// Returns the features of one tensor.
    fn tensor_row(&self, number: usize, bid: f64, possible: [bool; Treatment::ALL.len()]) -> Vec<f64> {
        let tensor = &self.problem.tensors()[number];
        let gap = self.gaps[number];
        let slower_ns = self.slower_ns[number].max(1.0);
        let link_ns = self.link_ns(number);
        let life = self.problem.lifetime(number).map_or((0, 0), |life| (*life.start(), life.end() + 1));
        let life_ns = self.ns(life).max(1.0);
        let gap_ns = self.ns(gap).max(1.0);
        let all_ns = self.begins[self.begins.len() - 1].max(1.0);
        let again_ns = tensor.recompute.as_ref().map_or(f64::INFINITY, |again| again.time_ns.max(1) as f64);
        let pressure = &self.market.pressure[gap.0..gap.1];
        let pressure = pressure.iter().sum::<f64>() / pressure.len().max(1) as f64;
        let mut row = vec![
            (bid / 4.0).clamp(-2.0, 2.0),
            scaled_log(tensor.bytes as f64 / self.market.capacity()),
            life_ns / all_ns,
            gap_ns / all_ns,
            gap_ns / life_ns,
            f64::from(tensor.is_always_there()),
            f64::from(tensor.tag == Tag::Activation),
            f64::from(tensor.tag == Tag::Gradient),
            f64::from(tensor.tag == Tag::OptimizerState),
            f64::from(tensor.tag == Tag::Input),
            f64::from(possible[Treatment::Away as usize]),
            f64::from(possible[Treatment::Recompute as usize]),
            scaled_log(link_ns / gap_ns),
            scaled_log(link_ns / slower_ns),
            scaled_log(again_ns / slower_ns),
            scaled_log(link_ns / again_ns),
            scaled_log(self.uses[number] as f64),
            scaled_log(pressure),
            self.price(gap) / self.price(life).max(f64::MIN_POSITIVE),
        ];
        row.extend(&self.problem_row);
        row
    }

    /// Returns the nanoseconds that a range of kernels takes.
    fn ns(&self, kernels: (usize, usize)) -> f64 {
        self.begins[kernels.1] - self.begins[kernels.0]
    }

    /// Returns the sum of the prices of a range of kernels.
    fn price(&self, kernels: (usize, usize)) -> f64 {
        self.price_sums[kernels.1] - self.price_sums[kernels.0]
    }

    /// Returns the time in ns to move a tensor away and back.
    fn link_ns(&self, tensor: usize) -> f64 {
        let links = self.problem.links().iter().enumerate().filter(|(_, link)| link.from == 0 || link.to == 0).take(2);
        links
            .map(|(number, link): (usize, &ProblemLink)| {
                self.problem.moved_bytes(tensor, number) as f64 * 1e9 / link.bandwidth as f64
            })
            .sum()
    }
}

/// Returns the running sums of the first 0, 1, 2, ... values.
fn sums(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0];
    for value in values {
        sums.push(sums[sums.len() - 1] + value);
    }
    sums
}

/// Returns a logarithm, scaled and limited to a feature of -2 to 2.
fn scaled_log(value: f64) -> f64 {
    (value.clamp(1e-6, 1e6).ln() / 4.0).clamp(-2.0, 2.0)
}

#[cfg(test)]
mod tests {
    use tenure_plan::planner::{Decoder, Objective};
    use tenure_plan::problem::generate::Family;
    use tenure_plan::problem::{Problem, ProblemRecompute};

    use super::Choices;
    use crate::policy::Policy;

    #[test]
    fn the_features_of_tensors_are_finite() {
        let mut parts = Family::Layered.contended(3).unwrap().told.into_parts();
        // There is nothing to move and nothing to recompute.
        for tensor in parts.tensors.iter_mut().filter(|tensor| tensor.recompute.is_some()) {
            (tensor.bytes, tensor.recompute) = (0, Some(ProblemRecompute { time_ns: 0, inputs: vec![] }));
        }
        let problem = Problem::new(parts).unwrap();
        let choices =
            Choices::new(&problem, &Decoder::new(&problem, Objective::Makespan), &Policy::trained().unwrap()).unwrap();
        assert!(choices.features.iter().all(|feature| feature.is_finite()));
    }
}
