//! Replays a PyTorch memory snapshot on each allocator, and writes a page that shows it.
//!
//! `cargo run --release -p tenure --example 08_snapshot -- snapshot.pickle`; without a file, a recorded ResNet-50 step.

use std::{env, fs};

use tenure::prelude::*;
use tenure::report::Report;
use tenure::units::Bytes;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| SAMPLE.into());
    let trace = Trace::read(&path)?;
    let report = Report::new(&trace)?;
    for outcome in report.outcomes() {
        println!(
            "{:<10} holds {} at the peak for the {} that the program asked for",
            outcome.allocator.name(),
            Bytes(outcome.peak_reserved_bytes),
            Bytes(outcome.peak_requested_bytes),
        );
    }
    let page = env::temp_dir().join("tenure-snapshot.html");
    fs::write(&page, report.html())?;
    println!("{}", page.display());
    Ok(())
}
