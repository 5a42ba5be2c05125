//! Tests that the programs of `examples/losses.rs` train to the losses in `goldens/losses.json`, as those of
//! `python/examples` do in `python/tests/test_models.py`. `TENURE_UPDATE=1` writes the losses anew.
//!
//! Another processor may add numbers up in another order, so the goldens hold but for rounding. On one machine the
//! losses of both languages are the same, bit for bit.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/losses.rs"]
mod losses;
#[path = "common/steps.rs"]
mod steps;

use std::path::Path;
use std::{env, fs};

use losses::{Gpt2Options, Program, ResNet18Options};
use serde_json::{Value, json};

/// The largest relative difference from a golden.
const TOLERANCE: f64 = 1e-5;

#[test]
fn the_programs_train_to_the_golden_losses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/losses.json");
    let mut goldens: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let options: ResNet18Options = serde_json::from_value(goldens["resnet18"]["options"].clone()).unwrap();
    let resnet18 = losses(Program::resnet18(options).unwrap(), options.steps);
    let options: Gpt2Options = serde_json::from_value(goldens["gpt2"]["options"].clone()).unwrap();
    let gpt2 = losses(Program::gpt2(options).unwrap(), options.steps);
    for (name, found) in [("resnet18", resnet18), ("gpt2", gpt2)] {
        if env::var_os("TENURE_UPDATE").is_some() {
            goldens[name]["losses"] = json!(found);
            continue;
        }
        let expected: Vec<f64> = serde_json::from_value(goldens[name]["losses"].clone()).unwrap();
        let is_close = |(found, expected): (&f64, &f64)| (found - expected).abs() <= TOLERANCE * expected;
        assert_eq!(found.len(), expected.len(), "{name}");
        assert!(found.iter().zip(&expected).all(is_close), "{name}: {found:?}, expected {expected:?}");
    }
    if env::var_os("TENURE_UPDATE").is_some() {
        fs::write(path, serde_json::to_string_pretty(&goldens).unwrap() + "\n").unwrap();
    }
}

fn losses(mut program: Program, steps: usize) -> Vec<f64> {
    (0..steps).map(|_| program.step().unwrap()).collect()
}
