//! Tests of the driver calls of a training step, on a simulated CUDA device that counts them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tenure-tensor/tests/common/mod.rs"]
mod common;

use common::{cuda, in_use_alone, simulated};
use tenure_device::cost::Counters;
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::models::{Gpt2, Gpt2Config};
use tenure_nn::optim::{Adam, Optimizer, Schedule};
use tenure_nn::train::{Classification, Trainer, TrainerOptions};
use tenure_nn::{Module, Scope};
use tenure_tensor::random::Generator;

const VOCABULARY: usize = 3000;
const WINDOW: usize = 64;
const STEPS: u64 = 20;
/// An epoch of eight steps, and the first step of the next.
const WARM: usize = 9;

#[test]
fn a_step_that_is_warm_allocates_nothing_from_the_driver_and_waits_once() {
    let Some(driver) = (cuda(), simulated()).1 else { return };
    let _alone = in_use_alone();
    for is_captured in [false, true] {
        let config = Gpt2Config {
            vocab_size: VOCABULARY,
            n_positions: WINDOW,
            n_embd: 32,
            n_layer: 2,
            n_head: 2,
            ..Gpt2Config::default()
        };
        let model = Gpt2::new(&Scope::new(&Generator::new(1)).with_device(cuda()), &config).unwrap();
        let tokens = (0..=32 * WINDOW).map(|index| (index * index % VOCABULARY) as u32).collect();
        let options = LoaderOptions { batch_size: 4, shuffle: Some(3), device: cuda(), ..LoaderOptions::default() };
        let loader = DataLoader::new(TextWindows::of_tokens(tokens, WINDOW).unwrap(), options);
        let schedule = Schedule::Cosine { steps: STEPS, end: 0.1 };
        let plan =
            TrainerOptions { steps: STEPS, schedule, clip_norm: Some(1.0), is_captured, ..TrainerOptions::default() };
        let optimizer = Optimizer::new(model.parameters(), 1e-3, Adam::w());
        let mut run = Trainer::new(Classification(model), loader, optimizer, plan);
        let mut asked = Vec::new();
        let mut before = driver.counters();
        while run.step().unwrap().is_some() {
            let after = driver.counters();
            asked.push(after - before);
            before = after;
        }
        for (number, asked) in asked.iter().enumerate().skip(WARM) {
            let Counters { malloc, create, map, register_host, host_syncs, .. } = *asked;
            assert_eq!([malloc, create, map, register_host], [0; 4], "step {number}, captured: {is_captured}");
            assert!(host_syncs <= 1, "step {number}, captured: {is_captured}: {host_syncs} waits");
        }
    }
}
