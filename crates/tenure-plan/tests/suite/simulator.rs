//! Tests of the simulator with plans whose times were computed by hand.

use crate::drawn::{kernel, tensor};
use tenure_core::Tag;
use tenure_plan::plan::{PlanAction, PlanStep};
use tenure_plan::problem::{ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor, ProblemTier};
use tenure_plan::simulator::{Cause, Outcome, Stall};
use tenure_plan::{Plan, PlanError, Problem, simulate};

/// Bytes per second at 1 ns a byte. A byte takes 1 ns in the fast tier, 2 to read and 5 to write in the slow one, and 4
/// on a link.
const GIGA: u64 = 1_000_000_000;

fn tier(name: &str, capacity: Option<u64>, read: u64, write: u64) -> ProblemTier {
    ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: read,
        write_bandwidth: write,
        latency_ns: 0,
        loaded: vec![],
    }
}

fn link(from: usize, to: usize, shared_with: Option<usize>) -> ProblemLink {
    ProblemLink { from, to, bandwidth: GIGA / 4, shared_with }
}

/// Makes two layers forward, two backward: `a` and `b` are saved for backward, `c` and `d` are gradients.
fn parts() -> ProblemParts {
    let [a, b, c, d, weight] = [0, 1, 2, 3, 4];
    ProblemParts {
        name: "layers".into(),
        source: String::new(),
        tiers: vec![tier("fast", None, GIGA, GIGA), tier("slow", None, GIGA / 2, GIGA / 5)],
        links: vec![link(0, 1, None), link(1, 0, None)],
        tensors: vec![
            tensor("a", 100, Tag::Activation),
            ProblemTensor {
                recompute: Some(ProblemRecompute { time_ns: 300, inputs: vec![a] }),
                ..tensor("b", 100, Tag::Activation)
            },
            tensor("c", 100, Tag::Gradient),
            tensor("d", 100, Tag::Gradient),
            tensor("weight", 50, Tag::Weight),
        ],
        kernels: vec![
            kernel(1000, &[weight], &[a]),
            kernel(1000, &[a, weight], &[b]),
            kernel(1000, &[b, weight], &[c]),
            kernel(1000, &[a, c, weight], &[d]),
        ],
        backward: None,
    }
}

fn play(parts: &ProblemParts, places: [usize; 5], steps: &[(usize, usize, PlanAction)]) -> Result<Outcome, PlanError> {
    let steps =
        steps.iter().map(|(tensor, kernel, action)| PlanStep { tensor: *tensor, kernel: *kernel, action: *action });
    simulate(&Problem::new(parts.clone()).unwrap(), &Plan { places: places.to_vec(), steps: steps.collect() })
}

const TO_SLOW: PlanAction = PlanAction::Move { to: 1 };
const TO_FAST: PlanAction = PlanAction::Move { to: 0 };

#[test]
fn all_in_the_fast_tier_takes_the_kernels_times() {
    let outcome = play(&parts(), [0; 5], &[]).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.busy_ns), (4000.0, 4000.0));
    // Weight, a, b and c; then weight, a, c and d.
    assert_eq!((outcome.peak_bytes, outcome.moved_bytes, outcome.stalls), (vec![350, 0], vec![0, 0], vec![]));
}

#[test]
fn the_slow_tier_takes_longer_for_each_byte() {
    // `b` is written (400 ns more) and read (100 more).
    let outcome = play(&parts(), [0, 1, 0, 0, 0], &[]).unwrap();
    assert_eq!((outcome.makespan_ns, &outcome.peak_bytes[..]), (4500.0, &[350, 100][..]));
    // Two of the kernels' twelve accesses of 100 bytes.
    assert_eq!((&outcome.accessed_bytes[..], outcome.score()), (&[1000, 200][..], 1000.0 / 1200.0));
    // Latency counts once for each access.
    let mut parts = parts();
    parts.tiers[1].latency_ns = 30;
    assert_eq!(play(&parts, [0, 1, 0, 0, 0], &[]).unwrap().makespan_ns, 4560.0);
    // A tier that is faster than the first gains nothing.
    parts.tiers[1] = tier("slow", None, 10 * GIGA, 10 * GIGA);
    assert_eq!(play(&parts, [1; 5], &[]).unwrap().makespan_ns, 4000.0);
}

#[test]
fn moves_go_on_beside_kernels() {
    // `a` is copied while kernel 1 reads it, leaves when that ends, and is back (400 ns each) before kernel 3 begins.
    let outcome = play(&parts(), [0; 5], &[(0, 1, TO_SLOW), (0, 2, TO_FAST)]).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.stalls.len()), (4000.0, 0));
    assert_eq!(outcome.moved_bytes, [100, 100]);
    // The move back is requested too late: `a` is read from where it is, which takes 100 ns more.
    let outcome = play(&parts(), [0; 5], &[(0, 1, TO_SLOW), (0, 3, TO_FAST)]).unwrap();
    assert_eq!(outcome.makespan_ns, 4100.0);
    // Kernel 1 writes `b`, so that it is copied from 2000 on; kernel 2 reads it, so that it keeps the link until 3000.
    let outcome = play(&parts(), [0; 5], &[(1, 1, TO_SLOW), (0, 1, TO_SLOW)]).unwrap();
    assert_eq!((outcome.moved_bytes, outcome.makespan_ns), (vec![200, 0], 4000.0));
}

#[test]
fn a_kernel_waits_for_what_it_does_not_reach() {
    let mut parts = parts();
    parts.tiers[1].is_reachable = false;
    parts.links[1].bandwidth = GIGA / 16;
    // It leaves at 2000, when kernel 1 ends, and returns from 2000 to 3600, while kernel 3 would begin at 3000.
    let outcome = play(&parts, [0; 5], &[(0, 1, TO_SLOW), (0, 2, TO_FAST)]).unwrap();
    assert_eq!(outcome.stalls, [Stall { kernel: 3, ns: 600.0, cause: Cause::Tensor(0) }]);
    assert_eq!((outcome.makespan_ns, outcome.busy_ns), (4600.0, 4000.0));
    assert_eq!(
        play(&parts, [0; 5], &[(0, 1, TO_SLOW), (0, 3, TO_FAST)]),
        Err(PlanError::NeverReached { tensor: 0, kernel: 3 })
    );
    assert_eq!(play(&parts, [0, 1, 0, 0, 0], &[]), Err(PlanError::Unreachable { tensor: 1, tier: 1 }));
}

#[test]
fn tensors_out_of_reach_of_kernels_are_compressed() {
    let mut parts = parts();
    parts.tiers[1].is_reachable = false;
    parts.tensors[0].compression = Some(2.5);
    // It leaves at 2000, when kernel 1 ends, and returns: 40 bytes each way, 160 ns.
    let there_and_back = [(0, 1, TO_SLOW), (0, 2, TO_FAST)];
    let outcome = play(&parts, [0; 5], &there_and_back).unwrap();
    assert_eq!((outcome.moved_bytes, outcome.peak_bytes[1], outcome.stalls.len()), (vec![40, 40], 40, 0));
    parts.tiers[1].is_reachable = true;
    assert_eq!(play(&parts, [0; 5], &there_and_back).unwrap().moved_bytes, [100, 100]);
}

#[test]
fn a_kernel_waits_for_room() {
    let mut parts = parts();
    parts.tiers[0].capacity = Some(250);
    parts.links[0].bandwidth = GIGA / 16;
    // `c` does not fit beside the weight, `a` and `b`, until `a` has left: from 1000 to 2600.
    let outcome = play(&parts, [0; 5], &[(0, 1, TO_SLOW)]).unwrap();
    assert_eq!(outcome.stalls, [Stall { kernel: 2, ns: 600.0, cause: Cause::Room(0) }]);
    // The gradient `d` has room after `b` has ended; `a` is read from the slow tier.
    assert_eq!((outcome.makespan_ns, outcome.peak_bytes), (4700.0, vec![250, 100]));
    assert_eq!(play(&parts, [0; 5], &[]), Err(PlanError::NoRoom { tier: 0, kernel: 2 }));
    parts.tiers[0].capacity = Some(49);
    assert_eq!(play(&parts, [1, 1, 1, 1, 0], &[]), Err(PlanError::NoRoom { tier: 0, kernel: 0 }));
}

#[test]
fn a_link_takes_one_after_the_other_and_two_share_what_they_have() {
    let mut parts = parts();
    parts.tiers[1].is_reachable = false;
    // `a` leaves from 2000 to 2400, and returns from 2400 to 2800; meanwhile `b` is copied, but its lifetime ends
    // before it leaves.
    let outcome = play(&parts, [0; 5], &[(0, 2, TO_SLOW), (1, 2, TO_SLOW), (0, 2, TO_FAST)]).unwrap();
    assert_eq!((outcome.makespan_ns, &outcome.moved_bytes[..]), (4000.0, &[200, 100][..]));
    parts.links[1].shared_with = Some(0);
    parts.kernels[2].time_ns = 500;
    // From 2400 to 2500, when kernel 2 and the lifetime of `b` end, `a` returns at half the rate: 12.5 bytes. The other
    // bytes take 350 ns.
    let outcome = play(&parts, [0; 5], &[(0, 2, TO_SLOW), (1, 2, TO_SLOW), (0, 2, TO_FAST)]).unwrap();
    assert_eq!(outcome.stalls, [Stall { kernel: 3, ns: 350.0, cause: Cause::Tensor(0) }]);
}

#[test]
fn moves_take_bandwidth_from_kernels() {
    let mut parts = parts();
    // At a quarter of the fast tier's bandwidth, reading takes twice as long.
    parts.tiers[0].loaded = vec![[0.25, 2.0], [1.0, 5.0]];
    // `a` is in transfer for 400 ns: kernel 1 reads 200 bytes in the fast tier, which would take 200 ns more if the
    // transfer lasted all the time.
    let outcome = play(&parts, [0; 5], &[(0, 1, TO_SLOW)]).unwrap();
    let read_from_there = 100.0;
    let share = 400.0 / 1200.0;
    let expected = 4000.0 - 1000.0 + 400.0 + (1.0 - share) * 1000.0 + read_from_there;
    assert!((outcome.makespan_ns - expected).abs() < 1e-6, "{}", outcome.makespan_ns);
}

#[test]
fn a_dropped_tensor_is_computed_again() {
    let drop_and_again = [(1, 1, PlanAction::Drop), (1, 2, PlanAction::Recompute { to: 0 })];
    let outcome = play(&parts(), [0; 5], &drop_and_again).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.busy_ns), (4300.0, 4300.0));
    assert_eq!(play(&parts(), [0; 5], &drop_and_again[..1]), Err(PlanError::Gone { tensor: 1, kernel: 2 }));
    // The inputs of a recomputation must exist.
    let mut steps = vec![(0, 1, PlanAction::Drop)];
    steps.extend(drop_and_again);
    assert_eq!(play(&parts(), [0; 5], &steps), Err(PlanError::Gone { tensor: 0, kernel: 2 }));
    // A tensor that is dropped during its move frees the link, and its room.
    let mut parts = parts();
    parts.tiers[1].capacity = Some(100);
    parts.links[0].bandwidth = GIGA / 16;
    parts.kernels[3].reads.remove(0);
    parts.kernels[3].time_ns = 2000;
    let outcome = play(&parts, [0; 5], &[(1, 2, TO_SLOW), (1, 2, PlanAction::Drop), (2, 2, TO_SLOW)]).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.moved_bytes), (5000.0, vec![100, 0]));
    assert_eq!(outcome.peak_bytes[1], 100);
}

#[test]
fn computing_again_takes_bandwidth_of_the_tiers_that_it_reads_and_writes() {
    // Written in the slow tier, each byte takes 4 ns longer; read there, 1 ns.
    let outcome = play(&parts(), [0; 5], &[(1, 1, PlanAction::Drop), (1, 2, PlanAction::Recompute { to: 1 })]).unwrap();
    assert_eq!(outcome.makespan_ns, 2000.0 + (300.0 + 400.0) + (1000.0 + 100.0) + 1000.0);
    // Only the bytes that kernels read and write count.
    assert_eq!(outcome.accessed_bytes, [700 + 400, 100]);
}

#[test]
fn inputs_stay_until_the_recomputation_is_over() {
    let parts = ProblemParts {
        tiers: vec![
            tier("fast", None, GIGA, GIGA),
            ProblemTier { is_reachable: false, ..tier("disk", None, GIGA, GIGA) },
        ],
        links: vec![
            ProblemLink { bandwidth: GIGA / 16, ..link(0, 1, None) },
            ProblemLink { bandwidth: GIGA / 16, ..link(1, 0, None) },
        ],
        tensors: vec![
            tensor("a", 100, Tag::Activation),
            ProblemTensor {
                recompute: Some(ProblemRecompute { time_ns: 2000, inputs: vec![0] }),
                ..tensor("b", 100, Tag::Activation)
            },
        ],
        kernels: vec![kernel(100, &[], &[0, 1]), kernel(100, &[], &[]), kernel(100, &[1], &[]), kernel(100, &[0], &[])],
        ..ProblemParts::default()
    };
    let steps = [(1, 0, PlanAction::Drop), (1, 2, PlanAction::Recompute { to: 0 }), (0, 1, TO_SLOW), (0, 2, TO_FAST)];
    let steps = steps.map(|(tensor, kernel, action)| PlanStep { tensor, kernel, action });
    let plan = Plan { places: vec![0; 2], steps: steps.to_vec() };
    let outcome = simulate(&Problem::new(parts).unwrap(), &plan).unwrap();
    // `b` is recomputed from 200 to 2200; `a`, which was in transfer from 100 to 1700, leaves then and is back at 3800.
    assert_eq!(outcome.makespan_ns, 3900.0);
    assert_eq!(outcome.stalls, [Stall { kernel: 3, ns: 1500.0, cause: Cause::Tensor(0) }]);
}

#[test]
fn a_move_asked_before_a_drop_is_not_done_after_it() {
    let mut parts = parts();
    parts.links[0].bandwidth = GIGA / 16;
    // While `a` is on the link, from 1000 to 2600, `b` waits for it, is dropped, and is recomputed.
    let moves = [(0, 1, TO_SLOW), (1, 1, TO_SLOW)];
    let again = [(1, 1, PlanAction::Drop), (1, 2, PlanAction::Recompute { to: 0 })];
    let outcome = play(&parts, [0; 5], &[&moves[..], &again[..]].concat()).unwrap();
    assert_eq!(outcome.moved_bytes, [100, 0]);
    // Requested again, it moves after it has been recomputed and read, though the request came sooner: at 3300 + 1000.
    let outcome = play(&parts, [0; 5], &[&again[..], &[(1, 0, TO_SLOW)]].concat()).unwrap();
    assert_eq!((outcome.moved_bytes, outcome.peak_bytes), (vec![0, 0], vec![350, 100]));
}

#[test]
fn a_permanent_tensor_ends_where_it_begins() {
    // The weight, of 50 bytes, takes 200 ns each way.
    let weight = |steps: &[(usize, usize, PlanAction)]| play(&parts(), [0; 5], steps);
    let displaced = Err(PlanError::Displaced { tensor: 4, tier: 0 });
    assert_eq!(weight(&[(4, 0, TO_SLOW)]), displaced);
    assert_eq!(weight(&[(4, 0, TO_SLOW), (4, 2, TO_FAST)]).unwrap().moved_bytes, [50, 50]);
    // Requested when the last kernel begins, which reads it in the slow tier (100 ns more), it returns after that
    // kernel.
    let outcome = weight(&[(4, 2, TO_SLOW), (4, 3, TO_FAST)]).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.busy_ns), (4100.0, 4100.0));
    let outcome = weight(&[(4, 3, TO_SLOW), (4, 3, TO_FAST)]).unwrap();
    assert_eq!((outcome.makespan_ns, outcome.busy_ns), (4200.0, 4000.0));
    assert_eq!(outcome.stalls, [Stall { kernel: 4, ns: 200.0, cause: Cause::Tensor(4) }]);
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let refused = |steps: &[(usize, usize, PlanAction)], expected| {
        assert_eq!(play(&parts(), [0; 5], steps).unwrap_err(), expected);
    };
    let again = PlanAction::Recompute { to: 0 };
    refused(&[(5, 0, PlanAction::Drop)], PlanError::Step { tensor: 5, kernel: 0 });
    refused(&[(0, 4, PlanAction::Drop)], PlanError::Step { tensor: 0, kernel: 4 });
    refused(&[(0, 1, PlanAction::Move { to: 2 })], PlanError::Tier { tier: 2, tiers: 2 });
    refused(&[(0, 1, PlanAction::Move { to: 0 })], PlanError::NoLink { tensor: 0, from: 0, to: 0 });
    refused(&[(1, 1, PlanAction::Drop), (1, 2, PlanAction::Drop)], PlanError::Nowhere { tensor: 1, kernel: 2 });
    refused(&[(1, 2, again)], PlanError::StillThere { tensor: 1, kernel: 2 });
    // In the order in which they are listed and played.
    refused(&[(1, 2, PlanAction::Drop), (1, 2, again)], PlanError::StillThere { tensor: 1, kernel: 2 });
    let dropped_twice = [(1, 1, PlanAction::Drop), (1, 3, again), (1, 2, PlanAction::Drop)];
    refused(&dropped_twice, PlanError::Nowhere { tensor: 1, kernel: 2 });
    refused(&[(1, 0, PlanAction::Drop), (1, 1, again)], PlanError::Nowhere { tensor: 1, kernel: 0 });
    refused(&[(0, 1, PlanAction::Drop), (0, 3, again)], PlanError::NoRecompute { tensor: 0 });
    refused(&[(4, 3, PlanAction::Drop)], PlanError::Lost { tensor: 4 });
    let problem = Problem::new(parts()).unwrap();
    let error = simulate(&problem, &Plan::default()).unwrap_err();
    assert_eq!(error, PlanError::Places { found: 0, tensors: 5 });
    let mut bare = parts();
    (bare.tiers, bare.links) = (vec![], vec![]);
    assert_eq!(play(&bare, [0; 5], &[]), Err(PlanError::NoTiers));
}
