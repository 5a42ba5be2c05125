//! Tenure's own planner: prices of room and of links make the decisions, and the simulator judges them.
//!
//! Each byte in the first tier has a price during each kernel, and each link's time has one. At given prices, the
//! decisions about tensors do not depend on each other (a Lagrangian relaxation). The cheapest treatments make up the
//! demand. Prices rise where demand exceeds supply, and fall elsewhere (subgradient steps of Polyak's length). In each
//! round the decoder tries, for each tensor, the best treatment other than the one of least room. Tensors that gain
//! most for the price of their room come first. In addition, more and more tensors are recomputed, the cheapest first.
//! Then the best decisions and some random ones evolve. Finally, steps are taken out of the best plan as long as it
//! does not get worse.

use std::ops::Range;

use super::evolutionary::{Evolutionary, POPULATION, RandomDecisions, evolve};
use super::flashneuron::FlashNeuron;
use super::{
    Decisions, Decoder, Evaluator, Objective, Planned, Planner, PlannerOptions, PlannerResult, Treatment, Watch, begin,
};
use crate::{Problem, Rule};

/// A planner that decides by prices and evolves the results. It tries as many plans as [`Evolutionary`] if the options
/// do not limit them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scheduled;

/// Rounds of price changes.
const ROUNDS: u64 = 100;
/// Rounds if the objective is the score, so that tensors stay where they are: the prices then converge to the best
/// bound.
const STATIC_ROUNDS: u64 = 300;
/// One in this many evaluations is reserved for removing steps from the best plan.
const CLEANUP_SHARE: u64 = 4;
/// The number of best decisions that are kept before evolution. Random decisions then fill up the population: prices do
/// not see the order in time, and random decisions add what they miss.
const SURVIVORS: usize = 30;

impl Planner for Scheduled {
    fn name(&self) -> &str {
        "scheduled"
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let evaluations = options.evaluations.or(Some(Evolutionary::default().evaluations));
        let options = &PlannerOptions { evaluations, ..*options };
        let mut evaluator = begin(problem, options, watch)?;
        evaluator.reserve(options.evaluations.map_or(0, |most| most / CLEANUP_SHARE));
        let decoder = Decoder::new(problem, options.objective);
        let tensors = problem.tensors().len();
        // Begin with the plans of the other planners, whatever the time limit, so that none of them is better.
        let capacity = problem.tiers()[0].capacity.unwrap_or(u64::MAX);
        let offloaded = FlashNeuron::decide(problem);
        let mut population = vec![(evaluator.cost(&decoder.decode(&offloaded)), offloaded)];
        let plans = Rule::ALL.iter().map(|rule| rule.place(problem, capacity).plan());
        for plan in plans.take(options.evaluations.map_or(usize::MAX, |most| most.saturating_sub(1) as usize)) {
            if evaluator.is_ideal() {
                break;
            }
            evaluator.cost(&plan);
        }
        let mut starts = Rule::ALL.iter().map(|rule| Decisions::keep(tensors, &rule.order(problem)));
        let mut prices = Prices::new(problem, &decoder, options.objective);
        let mut best = population[0].0;
        let rounds = match options.objective {
            Objective::Score => STATIC_ROUNDS,
            Objective::Makespan => ROUNDS,
        };
        for _ in 0..rounds {
            if !evaluator.may_go_on() {
                break;
            }
            let decisions = starts.next().unwrap_or_else(|| prices.decide(best));
            let cost = evaluator.cost(&decoder.decode(&decisions));
            best = best.min(cost);
            population.push((cost, decisions));
        }
        if options.objective == Objective::Makespan {
            try_recomputing(problem, &decoder, &mut evaluator, &mut population);
        }
        population.sort_by(|left, right| left.0.total_cmp(&right.0));
        population.truncate(SURVIVORS);
        let mut random_decisions = RandomDecisions::new(problem, &decoder, options.seed);
        while evaluator.may_go_on() && population.len() < POPULATION {
            let decisions = random_decisions.draw();
            population.push((evaluator.cost(&decoder.decode(&decisions)), decisions));
        }
        evolve(&mut population, &mut random_decisions, &decoder, &mut evaluator);
        evaluator.reserve(0);
        remove_needless_steps(problem, &mut evaluator);
        let bound = (options.objective == Objective::Score).then(|| prices.score_bound());
        Ok(Planned { bound, ..evaluator.finish()? })
    }
}

/// Tries to recompute more and more tensors, those of least time for their bytes first, and to move the others away;
/// then tries neighbours of the best of these plans. Prices do not see that the inputs of a recomputation must exist at
/// that time.
fn try_recomputing(
    problem: &Problem,
    decoder: &Decoder<'_>,
    evaluator: &mut Evaluator<'_, '_>,
    population: &mut Vec<(f64, Decisions)>,
) {
    const STEPS: usize = 16;
    let tensors = problem.tensors();
    let ns_per_byte = |tensor: usize| {
        let again = tensors[tensor].recompute.as_ref();
        again.map_or(f64::INFINITY, |again| again.time_ns as f64 / tensors[tensor].bytes.max(1) as f64)
    };
    let possible = |treatment| (0..tensors.len()).filter(move |tensor| decoder.is_possible(*tensor, treatment));
    let mut recomputed: Vec<usize> = possible(Treatment::Recompute).collect();
    recomputed.sort_by(|left, right| ns_per_byte(*left).total_cmp(&ns_per_byte(*right)));
    let mut moved = Decisions::keep(tensors.len(), &(0..tensors.len()).collect::<Vec<_>>());
    possible(Treatment::Away).for_each(|tensor| moved.treatments[tensor] = Treatment::Away);
    let mut best = (f64::INFINITY, 0);
    let mut counts = 0..=recomputed.len();
    loop {
        let step = ((counts.end() - counts.start()) / STEPS).max(1);
        for count in counts.clone().step_by(step) {
            if !evaluator.may_go_on() {
                return;
            }
            let mut decisions = moved.clone();
            recomputed[..count].iter().for_each(|tensor| decisions.treatments[*tensor] = Treatment::Recompute);
            let cost = evaluator.cost(&decoder.decode(&decisions));
            if cost < best.0 {
                best = (cost, count);
            }
            population.push((cost, decisions));
        }
        if step == 1 {
            return;
        }
        counts = best.1.saturating_sub(step)..=(best.1 + step).min(recomputed.len());
    }
}

/// Removes the steps of tensors from the best plan, small tensors first, as long as the plan does not get worse: each
/// step takes host time, which problems do not model.
fn remove_needless_steps(problem: &Problem, evaluator: &mut Evaluator<'_, '_>) {
    let Some((mut cost, plan)) = evaluator.best().map(|(cost, plan)| (cost, plan.clone())) else { return };
    let mut plan = plan;
    let mut is_improved = true;
    while is_improved {
        is_improved = false;
        let mut tensors: Vec<usize> = plan.steps.iter().map(|step| step.tensor).collect();
        tensors.sort_unstable_by_key(|tensor| (problem.tensors()[*tensor].bytes, *tensor));
        tensors.dedup();
        let mut rest = tensors.as_slice();
        let mut count = 1;
        while !rest.is_empty() && evaluator.may_try() {
            let (tried, later) = rest.split_at(count.min(rest.len()));
            let mut tried_plan = plan.clone();
            tried_plan.steps.retain(|step| !tried.contains(&step.tensor));
            let tried_cost = evaluator.cost(&tried_plan);
            if tried_cost <= cost {
                (cost, plan, rest, count, is_improved) = (tried_cost, tried_plan, later, 2 * count, true);
            } else if count > 1 {
                count /= 2;
            } else {
                rest = later;
            }
        }
    }
}

/// A possible treatment of a tensor.
struct Choice {
    treatment: Treatment,
    /// Nanoseconds, or bytes that the first tier does not serve.
    cost: f64,
    /// Nanoseconds on each link.
    link_ns: Vec<(usize, f64)>,
    /// The kernels during which it is in the first tier.
    resident: Vec<Range<usize>>,
}

/// The current prices, and the choices that they decide between.
struct Prices<'a> {
    problem: &'a Problem,
    choices: Vec<Vec<Choice>>,
    capacity: f64,
    /// The price of all of the first tier during each kernel.
    room_prices: Vec<f64>,
    /// The price of all of each link's time.
    link_prices: Vec<f64>,
    makespan_ns: f64,
    /// A lower bound on the cost.
    bound: f64,
    step: f64,
    rounds_without_gain: u32,
    objective: Objective,
}

impl<'a> Prices<'a> {
    fn new(problem: &'a Problem, decoder: &Decoder<'_>, objective: Objective) -> Self {
        let tensors = 0..problem.tensors().len();
        let makespan_ns = (problem.kernels_ns() as f64).max(1.0);
        Self {
            problem,
            choices: tensors.map(|tensor| choices(problem, decoder, objective, tensor)).collect(),
            capacity: problem.tiers()[0].capacity.map_or(f64::INFINITY, |capacity| capacity.max(1) as f64),
            room_prices: vec![0.0; problem.kernels().len()],
            link_prices: vec![0.0; problem.links().len()],
            makespan_ns,
            bound: f64::NEG_INFINITY,
            step: 1.0,
            rounds_without_gain: 0,
            objective,
        }
    }

    /// Makes the decisions at the current prices, and then changes the prices. `best` is the cost of the best plan so
    /// far.
    fn decide(&mut self, best: f64) -> Decisions {
        let mut decisions = Decisions::keep(self.choices.len(), &[]);
        let mut price_sums = vec![0.0];
        for price in &self.room_prices {
            price_sums.push(price_sums[price_sums.len() - 1] + price);
        }
        // Demand minus supply.
        let mut changes = vec![0.0; self.room_prices.len() + 1];
        let mut link_excess = vec![-1.0; self.link_prices.len()];
        let mut value = -self.room_prices.iter().sum::<f64>() - self.link_prices.iter().sum::<f64>();
        for (tensor, choices) in self.choices.iter().enumerate() {
            let share = self.problem.tensors()[tensor].bytes as f64 / self.capacity;
            let link_price = |choice: &Choice| -> f64 {
                choice.link_ns.iter().map(|(link, ns)| self.link_prices[*link] * ns / self.makespan_ns).sum()
            };
            let room_price = |choice: &Choice| {
                share
                    * choice
                        .resident
                        .iter()
                        .map(|kernels| price_sums[kernels.end] - price_sums[kernels.start])
                        .sum::<f64>()
            };
            let all = |choice: &Choice| choice.cost + link_price(choice) + room_price(choice);
            let Some(chosen) = choices.iter().min_by(|left, right| all(left).total_cmp(&all(right))) else { continue };
            value += all(chosen);
            for kernels in &chosen.resident {
                changes[kernels.start] += share;
                changes[kernels.end] -= share;
            }
            for (link, ns) in &chosen.link_ns {
                link_excess[*link] += ns / self.makespan_ns;
            }
            // The last choice takes the least room. Of the others, the best is tried; a tensor comes the earlier the
            // more it gains for the price of its room.
            let Some((least, others)) = choices.split_last() else { continue };
            if let Some(tried) = others.iter().min_by(|left, right| all(left).total_cmp(&all(right))) {
                let gain = least.cost + link_price(least) - tried.cost - link_price(tried);
                decisions.treatments[tensor] = tried.treatment;
                decisions.priorities[tensor] = gain / (room_price(tried) - room_price(least)).max(1e-9 * best.abs());
            } else {
                decisions.treatments[tensor] = least.treatment;
            }
        }
        let mut held = -1.0;
        let room_excess: Vec<f64> = changes[..self.room_prices.len()]
            .iter()
            .map(|change| {
                held += change;
                held
            })
            .collect();
        self.adjust_prices(value, best, &room_excess, &link_excess);
        decisions
    }

    /// Raises prices where demand exceeds supply and lowers the others. `value` is the sum of the choices' costs at the
    /// current prices, a lower bound on the cost of every plan.
    fn adjust_prices(&mut self, value: f64, best: f64, room_excess: &[f64], link_excess: &[f64]) {
        self.rounds_without_gain += 1;
        if value > self.bound {
            (self.bound, self.rounds_without_gain) = (value, 0);
        } else if self.rounds_without_gain >= 10 {
            (self.step, self.rounds_without_gain) = (self.step * 0.7, 0);
        }
        let squared_length = |prices: &[f64], excess: &[f64]| -> f64 {
            // A price of 0 cannot fall further.
            let counted = prices.iter().zip(excess).filter(|(price, excess)| **price > 0.0 || **excess > 0.0);
            counted.map(|(_, excess)| excess * excess).sum()
        };
        let length = squared_length(&self.room_prices, room_excess) + squared_length(&self.link_prices, link_excess);
        let target = self.cost_beyond_kernels(best);
        if length == 0.0 || !target.is_finite() {
            return;
        }
        let step = self.step * (target - value).max(1e-6 * target.abs()) / length;
        let prices = self.room_prices.iter_mut().chain(&mut self.link_prices);
        for (price, excess) in prices.zip(room_excess.iter().chain(link_excess)) {
            *price = (*price + step * excess).max(0.0);
        }
    }

    /// Converts a plan's cost to the sum of the costs of tensors' choices.
    fn cost_beyond_kernels(&self, cost: f64) -> f64 {
        match self.objective {
            Objective::Makespan => cost - self.makespan_ns,
            Objective::Score => cost * self.problem.all_accessed_bytes() as f64,
        }
    }

    /// Returns an upper bound on every placement's score.
    fn score_bound(&self) -> f64 {
        match self.problem.all_accessed_bytes() {
            0 => 1.0,
            all => 1.0 - self.bound.max(0.0) / all as f64,
        }
    }
}

/// Returns the choices for a tensor; the last takes the least room.
fn choices(problem: &Problem, decoder: &Decoder<'_>, objective: Objective, tensor: usize) -> Vec<Choice> {
    let Some(life) = problem.lifetime(tensor) else { return Vec::new() };
    let possible = Treatment::ALL.into_iter().filter(|treatment| decoder.is_possible(tensor, *treatment));
    possible
        .map(|treatment| {
            let mut choice = Choice { treatment, cost: 0.0, link_ns: Vec::new(), resident: Vec::new() };
            match treatment {
                Treatment::Keep => choice.resident.push(*life.start()..life.end() + 1),
                Treatment::Away => (choice.link_ns, choice.resident) = decoder.move_costs(tensor),
                Treatment::Recompute => (choice.cost, choice.resident) = decoder.recompute_costs(tensor),
                Treatment::Slow => {
                    choice.cost = match objective {
                        Objective::Score => problem.accessed_bytes(tensor) as f64,
                        Objective::Makespan => decoder.slower_ns(tensor),
                    }
                }
            }
            choice
        })
        .collect()
}
