//! Takes any bytes as buffers to be packed. Parsed buffers are packed, and the answer parses as a problem again.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use tenure_plan::packing::{Buffer, PackingError, PackingOptions, PackingProblem};

fuzz_target!(|bytes: &[u8]| {
    // The fuzzer rarely begins with the columns' names, so they are added.
    let columns: [&[u8]; 3] = [b"", b"id,lower,upper,size,alignment\n", b"id,lower,upper,size,offset\n"];
    for file in columns.map(|columns| [columns, bytes].concat()) {
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
    let placed = problem.buffers().iter().zip(outcome.packing.offsets());
    let fixed = placed.map(|(buffer, offset)| Buffer { offset: Some(*offset), ..buffer.clone() });
    assert_eq!(again.buffers(), fixed.collect::<Vec<_>>());
}
