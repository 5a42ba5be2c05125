//! Trains the same model without and within a memory budget: the losses have the same bits.
//!
//! `cargo run --release -p tenure --example 04_budget`

use tenure::nn::data::TextWindows;
use tenure::nn::models::{Gpt2, Gpt2Config};
use tenure::prelude::*;
use tenure::tensor::random::manual_seed;
use tenure::units::Bytes;

type Run = Trainer<Classification<Gpt2>, TextWindows>;

fn trainer() -> Result<Run, tenure::Error> {
    manual_seed(0); // for dropout
    let config =
        Gpt2Config { vocab_size: 64, n_positions: 64, n_embd: 64, n_layer: 4, n_head: 4, ..Gpt2Config::default() };
    let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-3, Adam::w());
    let tokens = (0..8000).map(|index| index * index % 61).collect();
    let data = TextWindows::of_tokens(tokens, config.n_positions)?;
    let loader = DataLoader::new(data, LoaderOptions { batch_size: 16, ..LoaderOptions::default() });
    Ok(Trainer::new(Classification(model), loader, optimizer, TrainerOptions { steps: 4, ..TrainerOptions::default() }))
}

fn main() -> Result<(), tenure::Error> {
    let mut plain = trainer()?;
    while plain.step()?.is_some() {}

    let budget = Budget::percent(70.0).spill(std::env::temp_dir()).spill_bytes(256 << 20);
    let mut budgeted = trainer()?.within(budget)?;
    while budgeted.step()?.is_some() {}

    for (plain, budgeted) in plain.history().iter().zip(budgeted.history()) {
        assert_eq!(plain.loss.to_bits(), budgeted.loss.to_bits());
        let report = budgeted.offload.expect("each step within a budget has a report");
        println!(
            "step {}: loss {:.4}, peak {} instead of {}, {} spilled, {} recomputed",
            plain.number,
            plain.loss,
            Bytes(budgeted.memory.peak_bytes),
            Bytes(plain.memory.peak_bytes),
            Bytes(report.spilled_bytes),
            Bytes(report.recomputed_bytes),
        );
    }
    Ok(())
}
