//! What was learned, in figures: `cargo run --release --example evidence -- [PROBLEM.json ...]`.
//!
//! First, placements: how many evaluations each policy needs until its score is within 0.5 % of the best that any of them
//! finds, on problems that nobody has trained on: those made up here from other seeds, and the files at 20 and 50 % of their
//! peak. Then schedules, where planners are told other costs than the true ones: how much faster the plans of marl are, at
//! equal evaluations, than those of evolutionary search and of the density rule, over ten seeds.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tenure_agent::{Marl, Policy};
use tenure_plan::planner::{Evaluator, Evolutionary, Objective, PlannerError, PlannerOptions, PlannerProgress};
use tenure_plan::problem::Tier;
use tenure_plan::problem::generate::{Family, Uncertain};
use tenure_plan::{Problem, Rule, simulate};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Made-up problems have seeds from here on: training draws its own from all numbers of 64 bits.
const SEEDS: u64 = 4_000_000;
const EVALUATIONS: u64 = 2000;

fn main() -> Result<()> {
    let programs: Result<Vec<Problem>> = std::env::args().skip(1).map(|file| Ok(Problem::read(file)?)).collect();
    let programs = programs?;
    placements(&programs)?;
    println!("\ntime of others' plans over that of marl's, in truth: geometric mean and range, over ten seeds");
    schedules("made-up problems, 12 for each seed", &|seed| {
        let numbered = Family::ALL.into_iter().cycle().take(12).enumerate();
        numbered.map(|(number, family)| Ok(family.contended(SEEDS + seed * 1000 + number as u64)?)).collect()
    })?;
    programs.iter().try_for_each(|program| {
        let draw = |number| Uncertain::of(program.clone().into_parts(), number);
        let name = format!("{}, other tiers for each seed", program.name());
        schedules(&name, &|seed| Ok(vec![draw(SEEDS + seed)?]))
    })
}

fn options(objective: Objective, evaluations: u64, seed: u64) -> PlannerOptions {
    PlannerOptions { objective, time_limit: Duration::from_secs(60), evaluations: Some(evaluations), seed }
}

/// The best so far after each evaluation of a search.
fn curve(
    judge: &Problem,
    options: &PlannerOptions,
    search: impl FnOnce(&mut Evaluator<'_, '_>) -> std::result::Result<(), PlannerError>,
) -> Result<Vec<f64>> {
    let mut curve = Vec::new();
    let mut watch = |progress: &PlannerProgress| {
        curve.push(progress.best.unwrap_or(f64::NAN));
        ControlFlow::Continue(())
    };
    search(&mut Evaluator::new(judge, options, &mut watch))?;
    Ok(curve)
}

fn placements(programs: &[Problem]) -> Result<()> {
    let mut problems = Vec::new();
    for program in programs {
        for percent in [20, 50] {
            let mut parts = program.clone().into_parts();
            let capacity = program.peak_bytes() / 100 * percent;
            parts.tiers = [Some(capacity), None].map(two_tiers).to_vec();
            parts.name = format!("{} {percent} %", parts.name);
            problems.push(Problem::new(parts)?);
        }
    }
    for (number, family) in Family::ALL.into_iter().cycle().take(12).enumerate() {
        problems.push(family.fixed(SEEDS + number as u64)?);
    }
    let policies = [Policy::trained()?, Policy::density()?, Policy::new(1)?, Policy::new(2)?, Policy::new(3)?];
    let planners = policies.map(Marl::new);
    println!("evaluations until within 0.5 % of the best that is found in {EVALUATIONS}");
    println!(
        "{:24} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}  {:>6}",
        "problem", "tensors", "density rule", "best", "bound", "trained", "density", "random (three)", "ms"
    );
    for problem in &problems {
        let (mut curves, mut bound, mut first_ms) = (Vec::new(), 1.0_f64, 0.0);
        for marl in &planners {
            let options = options(Objective::Score, EVALUATIONS, 1);
            let mut found = None;
            let begun = Instant::now();
            curves.push(curve(problem, &options, |evaluator| {
                found = marl.search(problem, &options, evaluator)?;
                Ok(())
            })?);
            if curves.len() == 1 {
                first_ms = begun.elapsed().as_secs_f64() * 1e3 / curves[0].len() as f64;
            }
            bound = bound.min(found.unwrap_or(1.0));
        }
        let best = curves.iter().flatten().copied().fold(0.0, f64::max);
        let needed = |curve: &Vec<f64>| match curve.iter().position(|score| *score >= 0.995 * best) {
            Some(number) => (number + 1).to_string(),
            None => format!(">{EVALUATIONS}"),
        };
        let capacity = problem.tiers()[0].capacity.unwrap_or(u64::MAX);
        let needed: Vec<String> = curves.iter().map(needed).collect();
        println!(
            "{:24} {:7} {:12.4} {:7.4} {:7.4} {:>7} {:>8} {:>14}  {first_ms:6.2}",
            problem.name(),
            problem.tensors().len(),
            Rule::Density.place(problem, capacity).score(problem),
            best,
            bound,
            needed[0],
            needed[1],
            needed[2..].join(" "),
        );
    }
    Ok(())
}

fn two_tiers(capacity: Option<u64>) -> Tier {
    Tier {
        name: if capacity.is_some() { "fast" } else { "slow" }.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: 1,
        write_bandwidth: 1,
        latency_ns: 0,
        loaded: Vec::new(),
    }
}

fn schedules(name: &str, problems: &dyn Fn(u64) -> Result<Vec<Uncertain>>) -> Result<()> {
    println!("{name}\n{:>11} {:>26} {:>26} {:>9}", "evaluations", "evolutionary", "density rule", "won");
    let marl = Marl::trained()?;
    for evaluations in [1, 30, 100, 400, 1000] {
        let (mut over_evolution, mut over_density, mut won, mut all) = (Vec::new(), Vec::new(), 0, 0);
        for seed in 0..10 {
            let (mut evolution, mut density) = (0.0, 0.0);
            let problems = problems(seed)?;
            for problem in &problems {
                let [ours, evolved, rule] = times(&marl, problem, evaluations, seed)?;
                evolution += (evolved / ours).ln() / problems.len() as f64;
                density += (rule / ours).ln() / problems.len() as f64;
                won += usize::from(ours < evolved);
                all += 1;
            }
            over_evolution.push(evolution);
            over_density.push(density);
        }
        let [evolution, density] = [over_evolution, over_density].map(|logarithms| spread(&logarithms));
        println!("{evaluations:11} {evolution:>26} {density:>26} {:>9}", format!("{won} of {all}"));
    }
    Ok(())
}

/// Of the plans of marl, of evolutionary search and of the density rule.
fn times(marl: &Marl, problem: &Uncertain, evaluations: u64, seed: u64) -> Result<[f64; 3]> {
    let options = options(Objective::Makespan, evaluations, seed);
    let Uncertain { told, truth } = problem;
    let ours = curve(truth, &options, |evaluator| marl.search(told, &options, evaluator).map(drop))?;
    let evolved = curve(truth, &options, |evaluator| {
        Evolutionary::default().search(told, &options, evaluator);
        Ok(())
    })?;
    let capacity = told.tiers()[0].capacity.unwrap_or(u64::MAX);
    let rule = simulate(truth, &Rule::Density.place(told, capacity).plan())?.makespan_ns;
    let last = |curve: &[f64]| curve.last().copied().unwrap_or(f64::INFINITY);
    Ok([last(&ours), last(&evolved), rule])
}

/// Mean, and least and most, of what these are logarithms of.
fn spread(logarithms: &[f64]) -> String {
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    let least = logarithms.iter().copied().fold(f64::INFINITY, f64::min);
    let most = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.3} ({:.3} to {:.3})", mean.exp(), least.exp(), most.exp())
}
