//! Trains a small network to tell two half moons apart: a data set, a model and a trainer.
//!
//! `cargo run --release -p tenure --example 02_classifier`

use tenure::nn::data;
use tenure::nn::layers::{Activation, Linear, Sequential};
use tenure::prelude::*;

/// Two interleaved half circles: a point on the plane, and which half circle it lies on.
struct Moons(usize);

impl Dataset for Moons {
    type Item = (Tensor, i64);

    fn len(&self) -> usize {
        self.0
    }

    fn item(&self, index: usize) -> data::Result<Self::Item> {
        let angle = std::f32::consts::PI * (index / 2) as f32 / (self.0 / 2) as f32;
        let class = index % 2;
        let point = match class {
            0 => [angle.cos(), angle.sin()],
            _ => [1.0 - angle.cos(), 0.5 - angle.sin()],
        };
        Ok((Tensor::from_slice(&point, &[2])?, class as i64))
    }
}

fn main() -> Result<(), tenure::Error> {
    let scope = Scope::new(&Generator::new(0));
    let model = Sequential::default()
        .then(&scope, |at| Linear::new(at, 2, 32))?
        .then(&scope, |_| Ok(Activation::Relu))?
        .then(&scope, |at| Linear::new(at, 32, 2))?;
    let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
    let loader =
        |shuffle| DataLoader::new(Moons(512), LoaderOptions { batch_size: 64, shuffle, ..LoaderOptions::default() });

    let plan = TrainerOptions { steps: 400, ..TrainerOptions::default() };
    let mut trainer = Trainer::new(Classification(model), loader(Some(0)), optimizer, plan);
    while let Some(step) = trainer.step()? {
        if step.number % 100 == 0 {
            println!("step {}: loss {:.4}", step.number, step.loss);
        }
    }
    let score = trainer.evaluate(&loader(None), |_| true)?.expect("it is never stopped");
    println!("{} of {} points are told apart", score.right, score.all);
    assert!(score.accuracy() > Some(0.97));
    Ok(())
}
