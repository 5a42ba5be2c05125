//! Benchmarks of the simulator and the decoder: playing a plan with a few hundred moves, and making one.
//!
//! - `simulate/bert/PERCENT`: one iteration of BERT-base's training with PERCENT of its peak in the first tier, and a
//!   disk as the second. The instance is not part of the repository: `TENURE_PROBLEM` is its path.
//! - `simulate/transformer`: a synthetic program with three tiers.
//! - `decode/...`: the decoder makes the plan; the densest tensors stay.

use std::env;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tenure_plan::planner::{Decisions, Decoder, Objective};
use tenure_plan::problem::Problem;
use tenure_plan::problem::generate::Family;
use tenure_plan::{Rule, simulate};

fn plans(criterion: &mut Criterion) {
    let mut problems = vec![("transformer".to_owned(), Family::Transformer.tiered(1).expect("a problem"))];
    if let Some(path) = env::var_os("TENURE_PROBLEM") {
        for percent in [20, 50] {
            let problem = Problem::read(&path).expect("TENURE_PROBLEM is a problem");
            let capacity_bytes = problem.peak_bytes() / 100 * percent;
            let mut parts = problem.with_fast_bytes(capacity_bytes).into_parts();
            parts.tiers[1].is_reachable = false;
            problems.push((format!("bert/{percent}"), Problem::new(parts).expect("a problem")));
        }
    }
    for (name, problem) in &problems {
        let decoder = Decoder::new(problem, Objective::Makespan);
        let decisions = Decisions::keep(problem.tensors().len(), &Rule::Density.order(problem));
        let plan = decoder.decode(&decisions);
        println!("{name}: {} kernels, {} steps", problem.kernels().len(), plan.steps.len());
        criterion.bench_function(&format!("simulate/{name}"), |bencher| {
            bencher.iter(|| simulate(problem, black_box(&plan)));
        });
        criterion.bench_function(&format!("decode/{name}"), |bencher| {
            bencher.iter(|| decoder.decode(black_box(&decisions)));
        });
    }
}

criterion_group!(benches, plans);
criterion_main!(benches);
