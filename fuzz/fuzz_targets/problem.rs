//! Takes any text as a problem: every rule places a parsed problem within half of its peak.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_plan::{Problem, Rule};

fuzz_target!(|text: &str| {
    if let Ok(problem) = Problem::from_json(text) {
        for rule in Rule::ALL {
            let placement = rule.place(&problem, problem.peak_bytes() / 2);
            assert!(placement.peak_bytes(&problem) <= problem.peak_bytes() / 2);
        }
    }
});
