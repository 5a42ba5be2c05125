//! Evolutionary search: decisions are crossed and changed, the better ones more often.

use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};

use super::{Decisions, Decoder, Evaluator, Planned, Planner, PlannerError, PlannerOptions, Treatment, Watch};
use crate::{PlanError, Problem, Rule};

/// A population of decisions. It begins with the rules and with random ones; children take the decisions of each tensor from
/// one of two parents, some are changed, and a child takes the place of the worst.
#[derive(Clone, Copy, Debug)]
pub struct Evolutionary {
    /// How many there are: more than the rules.
    pub population: usize,
    /// How many of which the best becomes a parent.
    pub tournament: usize,
    /// Tensors of a child whose decisions are changed, on average.
    pub mutations: f64,
    /// Plans to try, if the options do not say how many.
    pub evaluations: u64,
}

impl Default for Evolutionary {
    fn default() -> Self {
        Self { population: 40, tournament: 3, mutations: 3.0, evaluations: 4000 }
    }
}

impl Planner for Evolutionary {
    fn name(&self) -> &str {
        "evolutionary"
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        if problem.tiers().is_empty() {
            return Err(PlanError::NoTiers.into());
        }
        let options = PlannerOptions { evaluations: options.evaluations.or(Some(self.evaluations)), ..*options };
        let mut evaluator = Evaluator::new(problem, &options, watch);
        self.search(problem, &options, &mut evaluator);
        evaluator.finish()
    }
}

impl Evolutionary {
    /// Tries plans as long as `evaluator` allows. It may judge by another problem than the one that is told: by the truth,
    /// where times are not known well.
    pub fn search(&self, problem: &Problem, options: &PlannerOptions, evaluator: &mut Evaluator<'_, '_>) {
        let decoder = Decoder::new(problem, options.objective);
        let mut genes = Genes::new(problem, &decoder, options.seed);
        let mut population = Vec::new();
        while evaluator.may_go_on() && population.len() < self.population {
            let decisions = match Rule::ALL.get(population.len()) {
                Some(rule) => Decisions::keep(problem.tensors().len(), &rule.order(problem)),
                None => genes.any(),
            };
            population.push((evaluator.cost(&decoder.decode(&decisions)), decisions));
        }
        self.evolve(population, &mut genes, &decoder, evaluator);
    }

    /// Lets a population, of at least one, have children as long as the evaluator allows.
    pub(super) fn evolve(
        &self,
        mut population: Vec<(f64, Decisions)>,
        genes: &mut Genes,
        decoder: &Decoder<'_>,
        evaluator: &mut Evaluator<'_, '_>,
    ) {
        while evaluator.may_go_on() && !population.is_empty() {
            let child = self.child(&population, genes);
            let cost = evaluator.cost(&decoder.decode(&child));
            if let Some(worst) = population.iter_mut().max_by(|left, right| left.0.total_cmp(&right.0))
                && cost < worst.0
            {
                *worst = (cost, child);
            }
        }
    }

    fn child(&self, population: &[(f64, Decisions)], genes: &mut Genes) -> Decisions {
        let mut parent = || {
            let drawn = (0..self.tournament).map(|_| &population[genes.random.random_range(0..population.len())]);
            drawn.min_by(|left, right| left.0.total_cmp(&right.0)).map(|(_, decisions)| decisions)
        };
        let (Some(mother), Some(father)) = (parent(), parent()) else { return genes.any() };
        let mut child = mother.clone();
        let share = (self.mutations / genes.possible.len() as f64).min(1.0);
        for tensor in 0..genes.possible.len() {
            if genes.random.random() {
                child.priorities[tensor] = father.priorities[tensor];
                child.treatments[tensor] = father.treatments[tensor];
            }
            if genes.random.random_bool(share) {
                genes.change(&mut child, tensor);
            }
        }
        child
    }
}

/// What can be decided, at random.
pub(super) struct Genes {
    possible: Vec<Vec<Treatment>>,
    random: Random,
}

impl Genes {
    pub(super) fn new(problem: &Problem, decoder: &Decoder<'_>, seed: u64) -> Self {
        let possible = |tensor| Treatment::ALL.into_iter().filter(|it| decoder.is_possible(tensor, *it)).collect();
        let possible = (0..problem.tensors().len()).map(possible).collect();
        Self { possible, random: Random::seed_from_u64(seed) }
    }

    fn any(&mut self) -> Decisions {
        let mut decisions = Decisions::keep(self.possible.len(), &[]);
        (0..self.possible.len()).for_each(|tensor| self.change(&mut decisions, tensor));
        decisions
    }

    fn change(&mut self, decisions: &mut Decisions, tensor: usize) {
        decisions.priorities[tensor] = self.random.random();
        let possible = &self.possible[tensor];
        decisions.treatments[tensor] = possible[self.random.random_range(0..possible.len())];
    }
}
