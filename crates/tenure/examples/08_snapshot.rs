//! Replays a PyTorch memory snapshot on each allocator, and makes a page that shows it.
//!
//! `cargo run --release -p tenure --example 08_snapshot -- snapshot.pickle report.html`; without files, it replays a
//! recorded ResNet-50 step and writes nothing.

use std::{env, fs};

use tenure::prelude::*;
use tenure::report::Report;
use tenure::units::Bytes;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = env::args().skip(1);
    let path = paths.next().unwrap_or_else(|| SAMPLE.into());
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
    let page = report.html();
    println!("the page has {}", Bytes(page.len() as u64));
    if let Some(path) = paths.next() {
        fs::write(path, page)?;
    }
    Ok(())
}
