//! Interrupts a run, resumes it from its checkpoint, and gets the losses of the uninterrupted run, bit for bit.
//!
//! `cargo run --release -p tenure --example 05_checkpoint`

use tenure::nn::data::TextWindows;
use tenure::nn::models::{Gpt2, Gpt2Config};
use tenure::prelude::*;
use tenure::tensor::random::manual_seed;

fn trainer() -> Result<Trainer<Classification<Gpt2>, TextWindows>, tenure::Error> {
    manual_seed(0); // for dropout
    let config =
        Gpt2Config { vocab_size: 16, n_positions: 16, n_embd: 32, n_layer: 1, n_head: 2, ..Gpt2Config::default() };
    let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
    let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
    let tokens = (0..2000).map(|index| index * 7 % 13).collect();
    let data = TextWindows::of_tokens(tokens, config.n_positions)?;
    let loader = DataLoader::new(data, LoaderOptions { batch_size: 4, shuffle: Some(1), ..LoaderOptions::default() });
    Ok(Trainer::new(
        Classification(model),
        loader,
        optimizer,
        TrainerOptions { steps: 20, ..TrainerOptions::default() },
    ))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut whole = trainer()?;
    while whole.step()?.is_some() {}

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let mut first = trainer()?;
    for _ in 0..8 {
        first.step()?;
    }
    first.save(&path)?;
    drop(first);

    let mut second = trainer()?;
    second.resume(&path)?;
    while let Some(step) = second.step()? {
        let uninterrupted = &whole.history()[step.number as usize - 1];
        println!("step {}: loss {:.6}, uninterrupted {:.6}", step.number, step.loss, uninterrupted.loss);
        assert_eq!(step.loss.to_bits(), uninterrupted.loss.to_bits());
    }
    Ok(())
}
