//! Tests of packing large problems: no packing is higher than that of greedy orders, however few places are tried.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::time::Duration;

use proptest::prelude::*;
use tenure_plan::packing::{Order, PackingOptions, PackingOutcome, PackingProblem};

use super::packings::{KINDS, Kind, check, drawn, largest_first, lowest_largest_first};

fn pack(problem: &PackingProblem, nodes: u64) -> PackingOutcome {
    let options = PackingOptions { node_limit: Some(nodes), ..PackingOptions::default() };
    let outcome = problem.pack(&options, |_| ControlFlow::Continue(()));
    check(problem, outcome.packing.offsets(), outcome.packing.height_bytes());
    assert!(outcome.nodes <= nodes);
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_packing_is_higher_than_that_of_the_largest_first(
        kind in prop::sample::select(&KINDS[..]), count in 1..600u64, seed: u64, nodes in 1..2000u64,
    ) {
        let problem = drawn(kind, count, seed);
        prop_assert!(pack(&problem, nodes).packing.height_bytes() <= lowest_largest_first(&problem));
    }

    #[test]
    fn best_fit_places_buffers_as_if_it_looked_at_each_that_is_placed(
        kind in prop::sample::select(&KINDS[..]), count in 1..600u64, seed: u64,
    ) {
        let problem = drawn(kind, count, seed);
        let packing = problem.best_fit(Order::Size);
        check(&problem, packing.offsets(), packing.height_bytes());
        let expected = largest_first(&problem, |buffer| (Reverse(buffer.end - buffer.start), buffer.start));
        prop_assert_eq!(packing.height_bytes(), expected);
    }
}

#[test]
fn twenty_thousand_buffers_are_packed_by_greedy_orders_and_improved() {
    let problem = drawn(Kind::Training, 20_000, 0);
    // As many places as two packings have.
    let outcome = pack(&problem, 40_000);
    assert!(outcome.is_optimal() || outcome.nodes == 40_000, "{outcome:?}");
    assert!(outcome.packing.height_bytes() as f64 <= 1.01 * problem.lower_bound_bytes() as f64);
    assert!(outcome.packing.height_bytes() <= problem.best_fit(Order::Size).height_bytes());
}

#[test]
fn no_time_limit_ends_best_fit_of_the_largest_first() {
    for kind in KINDS {
        let problem = drawn(kind, 2000, 7);
        let options = PackingOptions { time_limit: Some(Duration::ZERO), ..PackingOptions::default() };
        let height = problem.pack(&options, |_| ControlFlow::Continue(())).packing.height_bytes();
        assert!(height <= lowest_largest_first(&problem), "{kind:?}");
        assert!(height <= problem.best_fit(Order::Size).height_bytes(), "{kind:?}");
    }
}

#[test]
fn the_observer_ends_the_first_order() {
    let problem = drawn(Kind::Mixed, 2000, 7);
    let outcome = problem.pack(&PackingOptions::default(), |_| ControlFlow::Break(()));
    assert_eq!(outcome.packing, problem.best_fit(Order::Start));
}
