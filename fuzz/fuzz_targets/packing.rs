//! Any bytes, as buffers to be packed. What is read is packed, and its answer is a problem again.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use tenure_plan::packing::{PackingError, PackingOptions, PackingProblem};

fuzz_target!(|bytes: &[u8]| {
    // Buffers alone are rarely begun with their columns' names.
    for file in [bytes.to_vec(), [b"id,lower,upper,size,alignment\n", bytes].concat()] {
        match PackingProblem::from_csv(&file) {
            Ok(problem) => pack(&problem),
            Err(error) => assert!(matches!(error, PackingError::Line { .. })),
        }
    }
});

fn pack(problem: &PackingProblem) {
    let options = PackingOptions { node_limit: Some(1000), ..PackingOptions::default() };
    let outcome = problem.pack(&options, |_| ControlFlow::Continue(()));
    assert!(problem.lower_bound_bytes() <= outcome.lower_bound_bytes);
    assert!(outcome.lower_bound_bytes <= outcome.packing.height_bytes());
    let mut written = Vec::new();
    outcome.packing.write_csv(problem, &mut written).expect("memory takes any write");
    let again = PackingProblem::from_csv(&written).expect("our own answers are read");
    assert_eq!(again.buffers(), problem.buffers());
}
