//! Tensors that stay where they are: evaluations until a policy is within 0.5 % of the optimum.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tenure_agent::{Marl, Policy};
use tenure_plan::planner::{Milp, Objective};
use tenure_plan::problem::ProblemTier;
use tenure_plan::problem::generate::Family;
use tenure_plan::{Planner, Problem, simulate};

use super::{Curves, Result, SEEDS, Spread, after, curve, options};

const EVALUATIONS: u64 = 1000;
/// The share of the optimum that counts as close.
const CLOSE: f64 = 0.995;
/// The number of made-up problems.
const PROBLEMS: usize = 24;
/// The number of untrained policies, each from another seed.
const RANDOM: u64 = 5;
/// The most tensors of a program that is solved here.
const SOLVED: usize = 2_000;
/// The numbers of evaluations at which curves are drawn.
const POINTS: [u64; 13] = [1, 2, 3, 4, 6, 8, 12, 20, 40, 80, 160, 400, 1000];

pub(super) fn compare(programs: &[Problem], curves: &mut Curves) -> Result<()> {
    let mut planners = vec![Marl::trained()?, Marl::new(Policy::zero()?)];
    for seed in 1..=RANDOM {
        planners.push(Marl::new(Policy::new(seed)?));
    }
    println!("evaluations until within 0.5 % of the optimum, of {EVALUATIONS}");
    println!(
        "{:24} {:>7} {:>7} {:>6} {:>8} {:>8}  {:34} {:>6}",
        "problem", "tensors", "optimum", "marl", "ms", "density", "random, from five seeds", "half"
    );
    let mut is_half = Vec::new();
    let mut gaps = vec![vec![Vec::new(); POINTS.len()]; 3];
    for problem in problems(programs)? {
        let optimum = optimum(&problem)?;
        let (mut needed, mut ms) = (Vec::new(), 0.0);
        for (number, marl) in planners.iter().enumerate() {
            let options = options(Objective::Score, EVALUATIONS, 1);
            let begun = Instant::now();
            let scores = curve(&problem, &options, |evaluator| marl.search(&problem, &options, evaluator).map(drop))?;
            let at = scores.iter().position(|score| *score >= CLOSE * optimum);
            if number == 0 {
                ms = begun.elapsed().as_secs_f64() * 1e3 / scores.len() as f64
                    * at.map_or(f64::NAN, |at| at as f64 + 1.0);
            }
            needed.push(at.map(|at| at as u64 + 1));
            for (gaps, point) in gaps[number.min(2)].iter_mut().zip(POINTS) {
                gaps.push(100.0 * (1.0 - after(&scores, point) / optimum));
            }
        }
        let mut random = needed.split_off(2);
        random.sort_unstable_by_key(|needed| needed.unwrap_or(u64::MAX));
        // The median of the five.
        let others = needed[1].unwrap_or(u64::MAX).min(random[random.len() / 2].unwrap_or(u64::MAX));
        let half = needed[0].is_some_and(|needed| needed.saturating_mul(2) <= others);
        is_half.push((half, others));
        let said = |needed: &Option<u64>| needed.map_or(format!(">{EVALUATIONS}"), |needed| needed.to_string());
        println!(
            "{:24} {:7} {optimum:7.4} {:>6} {ms:8.2} {:>8}  {:34} {:>6}",
            problem.name(),
            problem.tensors().len(),
            said(&needed[0]),
            said(&needed[1]),
            random.iter().map(said).collect::<Vec<_>>().join(" "),
            if half { "yes" } else { "no" },
        );
    }
    let halves = is_half.iter().filter(|(half, _)| *half).count();
    let at_once = is_half.iter().filter(|(half, others)| !half && *others == 1).count();
    println!(
        "at most half of what both the density policy and the middle one of the random policies need: {halves} of {}; \
         of the others, one of these is there at once in {at_once}",
        is_half.len()
    );
    for (line, gaps) in ["marl", "density", "random"].into_iter().zip(&gaps) {
        for (gaps, point) in gaps.iter().zip(POINTS) {
            curves.add("placements: % below the optimum", line, point, &Spread::of(gaps))?;
        }
    }
    Ok(())
}

/// Returns the programs with 20 and 50 % of their peak in the fast tier, and made-up problems.
fn problems(programs: &[Problem]) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for program in programs.iter().filter(|program| program.tensors().len() <= SOLVED) {
        for percent in [20, 50] {
            let mut parts = program.clone().into_parts();
            let capacity = program.peak_bytes() / 100 * percent;
            parts.tiers = [Some(capacity), None].map(tier).to_vec();
            parts.name = format!("{} {percent} %", parts.name);
            problems.push(Problem::new(parts)?);
        }
    }
    for (number, family) in Family::ALL.into_iter().cycle().take(PROBLEMS).enumerate() {
        problems.push(family.fixed(SEEDS + number as u64)?);
    }
    Ok(problems)
}

fn tier(capacity: Option<u64>) -> ProblemTier {
    ProblemTier {
        name: if capacity.is_some() { "fast" } else { "slow" }.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: 1,
        write_bandwidth: 1,
        latency_ns: 0,
        loaded: Vec::new(),
    }
}

/// Returns the solver's best score. Prints a note if its bound is higher.
fn optimum(problem: &Problem) -> Result<f64> {
    let options = super::PlannerOptions { time_limit: Duration::from_secs(60), ..options(Objective::Score, 1, 0) };
    let planned = Milp.plan(problem, &options, &mut |_| ControlFlow::Continue(()))?;
    let score = simulate(problem, &planned.plan)?.score();
    if let Some(bound) = planned.bound.filter(|bound| *bound > score * 1.0001) {
        println!("{}: {score:.5} was found, and {bound:.5} is not ruled out", problem.name());
    }
    Ok(score)
}
