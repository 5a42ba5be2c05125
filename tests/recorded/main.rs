//! Tests of programs that were recorded on GPUs. Their files are not in the repository: without `../shared` beside it,
//! these tests are ignored.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../crates/tenure-alloc/tests/suite/common/mod.rs"]
mod backing;
mod goals;
mod native;
mod placement;
mod traces;

use std::path::Path;

use tenure_plan::packing::PackingProblem;
use tenure_plan::{Problem, Trace};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");

/// The recorded memory history of a training or serving program.
fn trace(name: &str) -> Trace {
    Trace::read(Path::new(SHARED).join("traces").join(name).with_extension("pickle.xz")).unwrap()
}

/// BERT-base's training with 256 sequences, as a problem of placement.
fn bert() -> Problem {
    Problem::read(Path::new(SHARED).join("instances/bert_base_b256.json")).unwrap()
}

/// The same with `percent` percent of its peak in the first tier.
fn bert_within(percent: u64) -> Problem {
    let bert = bert();
    let capacity = bert.peak_bytes() / 100 * percent;
    bert.with_fast_bytes(capacity)
}

/// One of MiniMalloc's instances, to be packed into a mebibyte.
fn minimalloc(name: &str) -> PackingProblem {
    PackingProblem::read(Path::new(SHARED).join(format!("instances/minimalloc_{name}.1048576.csv"))).unwrap()
}
