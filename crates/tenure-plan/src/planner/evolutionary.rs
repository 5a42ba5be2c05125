//! Evolutionary search: crosses and mutates decisions, and prefers the better ones as parents.

use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};

use super::{Decisions, Decoder, Evaluator, Planner, PlannerOptions, PlannerResult, Treatment, Watch, begin};
use crate::{Problem, Rule};

/// The size of the population: more than there are rules.
pub(super) const POPULATION: usize = 40;
/// The number of candidates of which the best becomes a parent.
const TOURNAMENT: usize = 3;
/// The average number of tensors of a child whose decisions are mutated.
const MUTATIONS: f64 = 3.0;

/// Evolves a population of decisions. It begins with the rules and with random decisions. A child takes the decisions
/// of each tensor from one of two parents, some of them are mutated, and the child replaces the worst.
#[derive(Clone, Copy, Debug)]
pub struct Evolutionary {
    /// Plans to try if the options do not limit them.
    pub evaluations: u64,
}

impl Default for Evolutionary {
    fn default() -> Self {
        Self { evaluations: 4000 }
    }
}

impl Planner for Evolutionary {
    fn name(&self) -> &str {
        "evolutionary"
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let options = PlannerOptions { evaluations: options.evaluations.or(Some(self.evaluations)), ..*options };
        let mut evaluator = begin(problem, &options, watch)?;
        self.search(problem, &options, &mut evaluator);
        evaluator.finish()
    }
}

impl Evolutionary {
    /// Tries plans as long as `evaluator` allows. It may judge by another problem than `problem`: by the true costs, if
    /// `problem` only estimates them.
    pub fn search(&self, problem: &Problem, options: &PlannerOptions, evaluator: &mut Evaluator<'_, '_>) {
        let decoder = Decoder::new(problem, options.objective);
        let mut random_decisions = RandomDecisions::new(problem, &decoder, options.seed);
        let mut population = Vec::new();
        while evaluator.may_go_on() && population.len() < POPULATION {
            let decisions = match Rule::ALL.get(population.len()) {
                Some(rule) => Decisions::keep(problem.tensors().len(), &rule.order(problem)),
                None => random_decisions.draw(),
            };
            population.push((evaluator.cost(&decoder.decode(&decisions)), decisions));
        }
        evolve(&mut population, &mut random_decisions, &decoder, evaluator);
    }
}

/// Lets a population of at least one member have children as long as the evaluator allows.
pub(super) fn evolve(
    population: &mut [(f64, Decisions)],
    random_decisions: &mut RandomDecisions,
    decoder: &Decoder<'_>,
    evaluator: &mut Evaluator<'_, '_>,
) {
    while evaluator.may_go_on() {
        let child = random_decisions.child(population);
        let cost = evaluator.cost(&decoder.decode(&child));
        if let Some(worst) = population.iter_mut().max_by(|left, right| left.0.total_cmp(&right.0))
            && cost < worst.0
        {
            *worst = (cost, child);
        }
    }
}

/// Makes random decisions: whole ones, children of two parents, and mutations.
pub(super) struct RandomDecisions {
    /// The possible treatments of each tensor.
    possible: Vec<Vec<Treatment>>,
    random: Random,
}

impl RandomDecisions {
    pub(super) fn new(problem: &Problem, decoder: &Decoder<'_>, seed: u64) -> Self {
        let possible =
            |tensor| Treatment::ALL.into_iter().filter(|treatment| decoder.is_possible(tensor, *treatment)).collect();
        let possible = (0..problem.tensors().len()).map(possible).collect();
        Self { possible, random: Random::seed_from_u64(seed) }
    }

    /// Makes random decisions about all tensors.
    pub(super) fn draw(&mut self) -> Decisions {
        let mut decisions = Decisions::keep(self.possible.len(), &[]);
        (0..self.possible.len()).for_each(|tensor| self.mutate(&mut decisions, tensor));
        decisions
    }

    /// Makes a child of two members of the population, each the winner of a tournament.
    fn child(&mut self, population: &[(f64, Decisions)]) -> Decisions {
        let mut parent = || {
            let mut draw = || &population[self.random.random_range(0..population.len())];
            let first = draw();
            let others = (1..TOURNAMENT).map(|_| draw());
            &others.fold(first, |best, other| if other.0 < best.0 { other } else { best }).1
        };
        let mother = parent();
        let father = parent();
        let mut child = mother.clone();
        let share = (MUTATIONS / self.possible.len() as f64).min(1.0);
        for tensor in 0..self.possible.len() {
            if self.random.random() {
                child.priorities[tensor] = father.priorities[tensor];
                child.treatments[tensor] = father.treatments[tensor];
            }
            if self.random.random_bool(share) {
                self.mutate(&mut child, tensor);
            }
        }
        child
    }

    /// Draws the decisions about a tensor anew.
    fn mutate(&mut self, decisions: &mut Decisions, tensor: usize) {
        decisions.priorities[tensor] = self.random.random();
        let possible = &self.possible[tensor];
        decisions.treatments[tensor] = possible[self.random.random_range(0..possible.len())];
    }
}
