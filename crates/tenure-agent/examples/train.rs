//! Trains a policy on made-up problems and writes it: `cargo run --release --example train -- FILE [SEED]`. The policy
//! that comes with the crate was made this way. The learning curve is printed, tab separated.

use std::error::Error;
use std::io::{self, Write};
use std::ops::ControlFlow;

use tenure_agent::train::{TrainEvent, TrainOptions, train};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give the file that the policy is written to")?;
    let seed = arguments.next().map(|seed| seed.parse()).transpose()?;
    let options = TrainOptions { seed: seed.unwrap_or(TrainOptions::default().seed), ..TrainOptions::default() };
    let mut out = io::stdout();
    writeln!(out, "stage\tstep\tvalidation")?;
    let trained = train(&options, &mut |event| {
        let TrainEvent::Point(point) = event else { return ControlFlow::Continue(()) };
        let written = writeln!(out, "{:?}\t{}\t{:.5}", point.stage, point.step, point.validation);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(trained.policy.write(path)?)
}
