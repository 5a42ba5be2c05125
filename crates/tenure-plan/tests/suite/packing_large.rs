//! Tests of packing large problems: no packing is higher than that of greedy orders, however few places are tried.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use tenure_plan::packing::{Buffer, Order, PackingOptions, PackingOutcome, PackingProblem};

/// A kind of program, which makes the lifetimes and sizes of a problem.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A training step: weights always live, activations live from forward to backward, and both have scratch space.
    Training,
    /// Few large buffers and many small ones.
    PowerLaw,
    /// Many short lifetimes, and some as long as the program.
    Mixed,
    /// Phases, which few buffers outlive.
    Phases,
}

const KINDS: [Kind; 4] = [Kind::Training, Kind::PowerLaw, Kind::Mixed, Kind::Phases];

/// Draws a problem of `count` buffers.
fn drawn(kind: Kind, count: u64, seed: u64) -> PackingProblem {
    let mut random = Random::seed_from_u64(seed);
    let times = 2 * count + 2;
    let buffers = (0..count).map(|index| {
        let any = random.random_range(0..times - 1);
        let sizes: [u64; 6] = [512, 4096, 10_240, 65_536, 1 << 20, 3 << 20];
        let common = sizes[random.random_range(0..sizes.len())];
        let short = random.random_range(1..=8);
        let chance = random.random_range(0.0..1.0);
        let power = (512.0 * f64::powf(1.0 - chance, -1.5)) as u64;
        let (start, length, size) = match kind {
            Kind::Training if index % 16 == 0 => (0, times, common),
            Kind::Training if index % 2 == 0 => (index, times - 2 * index, common),
            Kind::Training => (any, short, common),
            Kind::PowerLaw => (any, 1 + (times as f64 * chance.powi(8)) as u64, power),
            Kind::Mixed if index % 8 == 0 => (any, random.random_range(1..times), common),
            Kind::Mixed => (any, short, power),
            Kind::Phases => {
                let phase = times / 10 + 1;
                let rest = phase - any % phase;
                (any, if index % 64 == 0 { phase } else { random.random_range(1..=rest) }, common)
            }
        };
        let end = (start + length).min(times);
        Buffer { id: index.to_string(), start, end, size_bytes: size, alignment: 1, offset: None }
    });
    PackingProblem::new(buffers.collect()).unwrap()
}

/// Places the buffers of a problem, the largest first, those of equal size in the order of `key`, each into the smallest
/// hole: without any of the library's code. Returns the height.
fn largest_first<K: Ord>(problem: &PackingProblem, key: impl Fn(&Buffer) -> K) -> u64 {
    let mut buffers: Vec<&Buffer> = problem.buffers().iter().collect();
    buffers.sort_by_key(|buffer| (u64::MAX - buffer.size_bytes, key(buffer)));
    let mut placed: Vec<(Range<u64>, &Buffer)> = Vec::new();
    for buffer in buffers {
        let mut top = 0;
        let mut best: Option<(u64, u64)> = None;
        for (bytes, other) in &placed {
            if other.start < buffer.end && buffer.start < other.end {
                let hole = bytes.start.saturating_sub(top);
                if hole >= buffer.size_bytes && best.is_none_or(|(smallest, _)| hole < smallest) {
                    best = Some((hole, top));
                }
                top = top.max(bytes.end);
            }
        }
        let offset = best.map_or(top, |(_, offset)| offset);
        let at = placed.partition_point(|(bytes, _)| bytes.start < offset);
        placed.insert(at, (offset..offset + buffer.size_bytes, buffer));
    }
    placed.iter().map(|(bytes, _)| bytes.end).max().unwrap_or(0)
}

fn pack(problem: &PackingProblem, nodes: u64) -> PackingOutcome {
    let options = PackingOptions { node_limit: Some(nodes), ..PackingOptions::default() };
    let outcome = problem.pack(&options, |_| ControlFlow::Continue(()));
    check(problem, outcome.packing.offsets(), outcome.packing.height_bytes());
    assert!(outcome.nodes <= nodes);
    outcome
}

/// Checks that no two buffers overlap, in time near that of sorting them.
fn check(problem: &PackingProblem, offsets: &[u64], height: u64) {
    let mut events = Vec::new();
    for (buffer, &offset) in problem.buffers().iter().zip(offsets) {
        let bytes = offset..offset + buffer.size_bytes;
        assert!(bytes.end <= height);
        events.push((buffer.end, false, bytes.start, bytes.end));
        events.push((buffer.start, true, bytes.start, bytes.end));
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, is_start, start, end) in events {
        if is_start {
            assert!(live.range(..end).next_back().is_none_or(|(_, &below)| below <= start));
            live.insert(start, end);
        } else {
            live.remove(&start);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_packing_is_higher_than_that_of_the_largest_first(
        kind in prop::sample::select(&KINDS[..]), count in 1..600u64, seed: u64, nodes in 1..2000u64,
    ) {
        let problem = drawn(kind, count, seed);
        let height = pack(&problem, nodes).packing.height_bytes();
        prop_assert!(height <= largest_first(&problem, |buffer| buffer.start));
        prop_assert!(height <= largest_first(&problem, |buffer| (u64::MAX - (buffer.end - buffer.start), buffer.start)));
        prop_assert!(height <= largest_first(&problem, |_| ()));
    }

    #[test]
    fn best_fit_places_buffers_as_if_it_looked_at_each_that_is_placed(
        kind in prop::sample::select(&KINDS[..]), count in 1..600u64, seed: u64,
    ) {
        let problem = drawn(kind, count, seed);
        let packing = problem.best_fit(Order::Size);
        check(&problem, packing.offsets(), packing.height_bytes());
        let expected = largest_first(&problem, |buffer| (u64::MAX - (buffer.end - buffer.start), buffer.start));
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
        assert!(height <= largest_first(&problem, |buffer| buffer.start), "{kind:?}");
        assert!(height <= largest_first(&problem, |_| ()), "{kind:?}");
        assert!(height <= problem.best_fit(Order::Size).height_bytes(), "{kind:?}");
    }
}

#[test]
fn the_observer_ends_the_first_order() {
    let problem = drawn(Kind::Mixed, 2000, 7);
    let outcome = problem.pack(&PackingOptions::default(), |_| ControlFlow::Break(()));
    assert_eq!(outcome.packing, problem.best_fit(Order::Start));
}
