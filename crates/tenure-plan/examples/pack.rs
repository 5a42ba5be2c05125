//! How long it takes to pack buffers into a capacity:
//! `cargo run --release --package tenure-plan --example pack -- 1048576 FILE.csv...`

use std::env;
use std::error::Error;
use std::ops::ControlFlow;

use tenure_plan::packing::{PackingOptions, PackingProblem};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let capacity: u64 = args.next().ok_or("usage: pack CAPACITY FILE.csv...")?.parse()?;
    // 0 asks for the lowest packing, for at most a minute.
    let capacity_bytes = Some(capacity).filter(|&capacity| capacity > 0);
    let time_limit = Some(std::time::Duration::from_secs(60));
    let options = PackingOptions { capacity_bytes, time_limit, ..PackingOptions::default() };
    for path in args {
        let problem = PackingProblem::read(&path)?;
        let outcome = problem.pack(&options, |_| ControlFlow::Continue(()));
        println!(
            "{path}: {} buffers, height {}, at least {}, {} nodes, {:.3} s",
            problem.buffers().len(),
            outcome.packing.height_bytes(),
            outcome.lower_bound_bytes,
            outcome.nodes,
            outcome.elapsed.as_secs_f64()
        );
    }
    Ok(())
}
