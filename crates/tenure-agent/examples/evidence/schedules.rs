//! Contention, migration and unknown costs: the times of others' plans over those of marl's, at equal evaluations.

use tenure_agent::Marl;
use tenure_plan::planner::{Evolutionary, Objective};
use tenure_plan::problem::generate::{Family, Uncertain};
use tenure_plan::{Problem, Rule, simulate};

use super::{Curves, Result, SEEDS, Spread, after, curve, options};

const POINTS: [u64; 11] = [1, 3, 10, 30, 60, 100, 150, 250, 400, 700, 1000];
/// The points at which figures are printed.
const PRINTED: [u64; 5] = [1, 30, 100, 400, 1000];
const RUNS: u64 = 10;
/// The number of made-up problems in each run.
const PROBLEMS: usize = 12;
/// The number of tensors above which fewer plans are tried.
const LARGE: usize = 10_000;

pub(super) fn compare(programs: &[Problem], curves: &mut Curves) -> Result<()> {
    println!("\ntime of others' plans over that of marl's, in truth: geometric mean and range, over {RUNS} seeds");
    let most = POINTS[POINTS.len() - 1];
    run(&format!("made-up programs, {PROBLEMS} for each seed"), most, curves, &|seed| {
        let numbered = Family::ALL.into_iter().cycle().take(PROBLEMS).enumerate();
        numbered.map(|(number, family)| Ok(family.contended(SEEDS + seed * 1000 + number as u64)?)).collect()
    })?;
    programs.iter().try_for_each(|program| {
        let most = if program.tensors().len() > LARGE { 100 } else { most };
        run(program.name(), most, curves, &|seed| Ok(vec![Uncertain::of(program.clone().into_parts(), SEEDS + seed)?]))
    })
}

fn run(name: &str, most: u64, curves: &mut Curves, problems: &dyn Fn(u64) -> Result<Vec<Uncertain>>) -> Result<()> {
    let marl = Marl::trained()?;
    // For each point, the logarithms of all runs, and how often marl has the better plan.
    let points: Vec<u64> = POINTS.into_iter().filter(|point| *point <= most).collect();
    let mut evolution = vec![Vec::new(); points.len()];
    let mut density = vec![Vec::new(); points.len()];
    let mut won = vec![0; points.len()];
    let mut all = 0;
    for seed in 0..RUNS {
        let problems = problems(seed)?;
        let times: Result<Vec<Times>> = problems.iter().map(|problem| Times::of(&marl, problem, most, seed)).collect();
        let times = times?;
        let mean = |over: &dyn Fn(&Times) -> f64| times.iter().map(over).sum::<f64>() / times.len() as f64;
        for (at, &point) in points.iter().enumerate() {
            evolution[at].push(mean(&|it| (after(&it.evolution, point) / after(&it.marl, point)).ln()));
            density[at].push(mean(&|it| (it.density / after(&it.marl, point)).ln()));
            won[at] += times.iter().filter(|it| after(&it.marl, point) < after(&it.evolution, point)).count();
        }
        all += times.len();
    }
    println!("{name}\n{:>11} {:>26} {:>26} {:>10}", "evaluations", "evolutionary", "density rule", "won");
    for (at, &point) in points.iter().enumerate() {
        let [evolution, density] = [&evolution[at], &density[at]].map(|logarithms| factors(logarithms));
        curves.add(&format!("schedules: {name}"), "evolutionary", point, &evolution)?;
        curves.add(&format!("schedules: {name}"), "density rule", point, &density)?;
        if PRINTED.contains(&point) {
            let said = |it: &Spread| format!("{:.3} ({:.3} to {:.3})", it.mean, it.least, it.most);
            let won = format!("{} of {all}", won[at]);
            println!("{point:11} {:>26} {:>26} {won:>10}", said(&evolution), said(&density));
        }
    }
    Ok(())
}

/// Times in ns of the best plans so far, after each evaluation.
struct Times {
    marl: Vec<f64>,
    evolution: Vec<f64>,
    density: f64,
}

impl Times {
    fn of(marl: &Marl, problem: &Uncertain, evaluations: u64, seed: u64) -> Result<Self> {
        let options = options(Objective::Makespan, evaluations, seed);
        let Uncertain { told, truth } = problem;
        let capacity = told.tiers()[0].capacity.unwrap_or(u64::MAX);
        Ok(Self {
            marl: curve(truth, &options, |evaluator| marl.search(told, &options, evaluator).map(drop))?,
            evolution: curve(truth, &options, |evaluator| {
                Evolutionary::default().search(told, &options, evaluator);
                Ok(())
            })?,
            density: simulate(truth, &Rule::Density.place(told, capacity).plan())?.makespan_ns,
        })
    }
}

/// Returns the factors that these are the logarithms of.
fn factors(logarithms: &[f64]) -> Spread {
    let Spread { mean, least, most } = Spread::of(logarithms);
    Spread { mean: mean.exp(), least: least.exp(), most: most.exp() }
}
