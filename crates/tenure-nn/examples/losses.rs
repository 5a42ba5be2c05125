//! Trains a ResNet-18 or a GPT-2 on one random batch, and prints the losses and the milliseconds of the steps as JSON.
//! `python/examples` has the same programs in Python: their losses are the same, bit for bit.
//!
//! ```sh
//! cargo run --release --package tenure-nn --example losses -- resnet18 '{"batch": 4, "size": 64, "steps": 5}'
//! python python/examples/resnet18.py --batch 4 --size 64 --steps 5 --json
//! ```
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

#[path = "../tests/common/losses.rs"]
mod losses;
#[path = "../tests/common/steps.rs"]
mod steps;

use std::env;
use std::error::Error;
use std::time::Instant;

use losses::{Gpt2Options, Program, ResNet18Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let model = arguments.next().ok_or("a model is needed: resnet18 or gpt2")?;
    let options = arguments.next().unwrap_or_else(|| "{}".to_owned());
    let (mut program, steps) = match &*model {
        "resnet18" => {
            let options: ResNet18Options = serde_json::from_str(&options)?;
            (Program::resnet18(options)?, options.steps)
        }
        "gpt2" => {
            let options: Gpt2Options = serde_json::from_str(&options)?;
            (Program::gpt2(options)?, options.steps)
        }
        _ => return Err(format!("no model is called {model}: there are resnet18 and gpt2").into()),
    };
    let mut losses = Vec::new();
    let mut milliseconds = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        losses.push(program.step()?);
        milliseconds.push(1e3 * start.elapsed().as_secs_f64());
    }
    println!("{}", serde_json::json!({ "losses": losses, "ms": milliseconds }));
    Ok(())
}
