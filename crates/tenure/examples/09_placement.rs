//! Records what a training step allocates, plans which tensors live in half as much fast memory, and trains with the
//! plan enforced: the rest lives in a file that stands for persistent memory.
//!
//! `cargo run --release -p tenure --example 09_placement`

use std::ops::ControlFlow;
use std::time::Duration;

use tenure::nn::data::TextWindows;
use tenure::nn::models::{Gpt2, Gpt2Config};
use tenure::plan::planner::{Objective, Planner, PlannerOptions, Scheduled};
use tenure::plan::{Mapping, problem};
use tenure::prelude::*;
use tenure::tensor::random::manual_seed;
use tenure::tier::{Medium, Placement, PlacementOptions, Recorder, Tier};
use tenure::units::{Bytes, Percent};

/// Trains three steps and calls `before_step` before each. Returns the last loss.
fn train(mut before_step: impl FnMut()) -> Result<f32, Box<dyn std::error::Error>> {
    manual_seed(0); // for dropout
    let config =
        Gpt2Config { vocab_size: 32, n_positions: 32, n_embd: 64, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
    let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-3, Adam::w());
    let data = TextWindows::of_tokens((0..2000).map(|index| index * 5 % 31).collect(), config.n_positions)?;
    let loader = DataLoader::new(data, LoaderOptions { batch_size: 8, ..LoaderOptions::default() });
    let mut trainer = Trainer::new(
        Classification(model),
        loader,
        optimizer,
        TrainerOptions { steps: 3, ..TrainerOptions::default() },
    );
    let mut loss = 0.0;
    for _ in 0..3 {
        before_step();
        loss = trainer.step()?.expect("the plan has three steps").loss;
    }
    Ok(loss)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = Recorder::new()?;
    let recording = recorder.enter();
    let plain_loss = train(|| recorder.begin_iteration())?;
    drop(recording);

    let tier = |name: &str, gigabytes_per_second: u64| problem::ProblemTier {
        name: name.into(),
        capacity: None,
        is_reachable: true,
        read_bandwidth: gigabytes_per_second << 30,
        write_bandwidth: gigabytes_per_second << 30,
        latency_ns: 0,
        loaded: Vec::new(),
    };
    let problem = recorder.problem("gpt2", vec![tier("DRAM", 20), tier("PM", 5)], Vec::new())?;
    let fast_bytes = problem.peak_bytes() / 2;
    let problem = problem.with_fast_bytes(fast_bytes);
    let options = PlannerOptions {
        objective: Objective::Score,
        time_limit: Duration::from_secs(60),
        evaluations: Some(200),
        seed: 0,
    };
    let planned = Scheduled.plan(&problem, &options, &mut |_| ControlFlow::Continue(()))?;
    let mapping = Mapping::of_plan(&problem, &planned.plan)?;

    let tiers = vec![
        Tier::open("DRAM", &Medium::Dram, Some(256 << 20))?,
        Tier::open("PM", &Medium::Path(std::env::temp_dir()), Some(256 << 20))?,
    ];
    let placement = Placement::open(mapping, tiers, PlacementOptions::default())?;
    let entered = placement.enter();
    let mut report = placement.report();
    let placed_loss = train(|| report = placement.report())?;
    drop(entered);

    assert_eq!(plain_loss.to_bits(), placed_loss.to_bits());
    println!("{} of DRAM for a step that holds {}", Bytes(fast_bytes), Bytes(2 * fast_bytes));
    for tier in &report.tiers {
        println!("{}: {}, at most {} in use", tier.name, tier.nature, Bytes(tier.peak));
    }
    println!("{} of the bytes are verified to be where the plan says", Percent(report.verified_share));
    Ok(())
}
