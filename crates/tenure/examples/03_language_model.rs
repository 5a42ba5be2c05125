//! Trains a small GPT-2 on the bytes of a text file, and has it continue a sentence.
//!
//! `cargo run --release -p tenure --example 03_language_model -- FILE`; without FILE, on a line of its own source.

use std::{env, fs};

use tenure::nn::data::TextWindows;
use tenure::nn::models::{Gpt2, Gpt2Config};
use tenure::prelude::*;

const WINDOW: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match env::args().nth(1) {
        Some(path) => fs::read(path)?,
        None => b"a chunk may be mapped at many addresses at once; ".repeat(40),
    };
    let config =
        Gpt2Config { vocab_size: 256, n_positions: WINDOW, n_embd: 64, n_layer: 2, n_head: 4, ..Gpt2Config::default() };
    let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
    let optimizer = Optimizer::new(model.parameters(), 3e-3, Adam::w());
    let data = TextWindows::of_tokens(text.iter().map(|&byte| byte.into()).collect(), WINDOW)?;
    let loader = DataLoader::new(data, LoaderOptions { batch_size: 8, shuffle: Some(0), ..LoaderOptions::default() });

    let mut trainer = Trainer::new(
        Classification(model),
        loader,
        optimizer,
        TrainerOptions { steps: 120, ..TrainerOptions::default() },
    );
    while let Some(step) = trainer.step()? {
        if step.number % 20 == 0 {
            println!("step {}: loss {:.3}", step.number, step.loss);
        }
    }

    let model = &trainer.task().0;
    let mut tokens: Vec<i64> = text.iter().take(12).map(|&byte| byte.into()).collect();
    while tokens.len() < WINDOW {
        let window = Tensor::from_slice(&tokens, &[1, tokens.len()])?;
        let scores = no_grad(|| model.forward(&window))?;
        let likeliest = scores.argmax(Some(-1), false)?.to_vec::<i64>()?;
        tokens.push(*likeliest.last().expect("there is one for each token"));
    }
    let bytes: Vec<u8> = tokens.into_iter().map(|token| token as u8).collect();
    println!("{}", String::from_utf8_lossy(&bytes));
    Ok(())
}
