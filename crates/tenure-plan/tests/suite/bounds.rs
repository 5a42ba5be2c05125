//! Tests that no plan surpasses the bounds.

use crate::drawn::{any_choices, any_parts, kernel, link, placements, plans, tensor, tier};
use proptest::prelude::*;
use tenure_core::Tag;
use tenure_plan::bound::{makespan_bound_ns, score_bound, static_score_bound};
use tenure_plan::problem::{ProblemParts, ProblemRecompute};
use tenure_plan::{Problem, simulate};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn no_placement_is_better_than_the_bounds(parts in any_parts(9)) {
        let problem = Problem::new(parts).unwrap();
        let capacity = problem.tiers()[0].capacity.unwrap();
        let any = score_bound(&problem);
        let fixed = static_score_bound(&problem);
        for placement in placements(&problem, capacity) {
            // Within the solver's tolerance.
            prop_assert!(placement.score(&problem) <= fixed * (1.0 + 1e-6));
            if let Ok(outcome) = simulate(&problem, &placement.plan()) {
                prop_assert!(outcome.score() <= any * (1.0 + 1e-12));
                prop_assert!(makespan_bound_ns(&problem) <= outcome.makespan_ns * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn no_plan_is_better_than_the_bounds(parts in any_parts(9), choices in any_choices(9)) {
        let problem = Problem::new(parts).unwrap();
        let score = score_bound(&problem);
        let makespan_ns = makespan_bound_ns(&problem);
        for plan in plans(&problem, &choices) {
            if let Ok(outcome) = simulate(&problem, &plan) {
                prop_assert!(outcome.score() <= score * (1.0 + 1e-12));
                prop_assert!(makespan_ns <= outcome.makespan_ns * (1.0 + 1e-12), "{makespan_ns} {outcome:?}");
            }
        }
    }
}

#[test]
fn nothing_takes_no_time() {
    let tiers = vec![tier("fast", Some(1), true, 1, 0)];
    for tiers in [vec![], tiers] {
        let problem = Problem::new(ProblemParts { tiers, ..ProblemParts::default() }).unwrap();
        // Positive zero, not negative zero.
        assert_eq!(makespan_bound_ns(&problem).to_bits(), 0.0_f64.to_bits());
        assert_eq!((score_bound(&problem), static_score_bound(&problem)), (1.0, 1.0));
    }
}

#[test]
fn bytes_that_links_cannot_carry_cost_time() {
    // Two tensors of 100 bytes are written, then read; the first tier has room for one. A byte takes 4 ns on a link,
    // kernels take 100 ns.
    let mut parts = ProblemParts {
        tiers: vec![tier("fast", Some(100), true, 1_000_000_000, 0), tier("disk", None, false, 1_000_000_000, 0)],
        links: [(0, 1), (1, 0)].map(|(from, to)| link(from, to, 250_000_000)).to_vec(),
        tensors: ["a", "b"].map(|key| tensor(key, 100, Tag::Activation)).to_vec(),
        kernels: vec![kernel(100, &[], &[0]), kernel(100, &[], &[1]), kernel(100, &[0], &[]), kernel(100, &[1], &[])],
        ..ProblemParts::default()
    };
    // When the second kernel begins, the first tensor has been leaving for 400 ns, of which a kernel hides 100. It
    // returns for as long, of which the later kernels may hide 300.
    assert_eq!(makespan_bound_ns(&Problem::new(parts.clone()).unwrap()), 400.0 + 300.0 + 100.0);
    // Recomputing it takes less time.
    parts.tensors[0].recompute = Some(ProblemRecompute { time_ns: 40, inputs: vec![] });
    parts.tensors[1].recompute = Some(ProblemRecompute { time_ns: 30, inputs: vec![] });
    assert!(makespan_bound_ns(&Problem::new(parts.clone()).unwrap()) < 430.0);
    // A kernel does not find enough room for its tensors.
    parts.tiers[0].capacity = Some(99);
    assert_eq!(makespan_bound_ns(&Problem::new(parts).unwrap()), f64::INFINITY);
}
