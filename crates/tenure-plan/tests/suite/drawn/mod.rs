//! Small random problems, and their possible placements and plans.
#![allow(unreachable_pub, reason = "it is for the other files")]

use proptest::prelude::*;
use tenure_core::Tag;
use tenure_plan::plan::{PlanAction, PlanStep};
use tenure_plan::planner::{Decisions, Decoder, Objective, Treatment};
use tenure_plan::problem::{
    ProblemAccess, ProblemKernel, ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor, ProblemTier,
};
use tenure_plan::{FixedPlacement, Plan, Problem};

pub fn tier(name: &str, capacity: Option<u64>, is_reachable: bool, bandwidth: u64, latency_ns: u64) -> ProblemTier {
    let read_bandwidth = bandwidth;
    let write_bandwidth = bandwidth.div_ceil(2);
    ProblemTier {
        name: name.into(),
        capacity,
        is_reachable,
        read_bandwidth,
        write_bandwidth,
        latency_ns,
        loaded: vec![],
    }
}

/// Returns a tensor that is neither compressed nor recomputed.
pub fn tensor(key: &str, bytes: u64, tag: Tag) -> ProblemTensor {
    ProblemTensor { key: key.into(), bytes, tag, compression: None, recompute: None }
}

/// Returns a link of `bandwidth` bytes per second, which it shares with no other.
pub fn link(from: usize, to: usize, bandwidth: u64) -> ProblemLink {
    ProblemLink { from, to, bandwidth, shared_with: None }
}

/// Returns a kernel that accesses 100 bytes of each tensor.
pub fn kernel(time_ns: u64, reads: &[usize], writes: &[usize]) -> ProblemKernel {
    let all = |list: &[usize]| list.iter().map(|tensor| ProblemAccess { tensor: *tensor, bytes: 100 }).collect();
    ProblemKernel { name: "k".into(), time_ns, reads: all(reads), writes: all(writes) }
}

prop_compose! {
    /// Generates a few tensors and kernels, a fast tier of some bytes, another that kernels may reach or not, and
    /// perhaps links.
    pub fn any_parts(most_tensors: usize)(
        sizes in prop::collection::vec((0_u64..100, 0..4, prop::option::of(1_u64..400), prop::option::of(1.5..4.0)), 2..=most_tensors),
        kernels in prop::collection::vec((1_u64..300, prop::collection::vec((0_usize..64, 1_u64..3), 1..4), 0_usize..64), 1..9),
        capacity in 0_u64..300,
        (reach, links, shared) in (0..4, 0_u64..3, any::<bool>()),
        bandwidth in 1_u64..4,
    ) -> ProblemParts {
        let count = sizes.len();
        let tensor = |number: usize| {
            let (bytes, kind, again, compression) = sizes[number];
            ProblemTensor {
                key: number.to_string(),
                bytes,
                tag: if kind == 0 { Tag::Weight } else { Tag::Activation },
                compression,
                recompute: again.filter(|_| kind > 1).map(|time_ns| ProblemRecompute { time_ns, inputs: (0..number.min(1)).collect() }),
            }
        };
        let access = |tensor: usize, times: u64| ProblemAccess { tensor: tensor % count, bytes: sizes[tensor % count].0 * times };
        let kernel = |(time_ns, reads, write): &(u64, Vec<(usize, u64)>, usize)| ProblemKernel {
            name: "k".into(),
            time_ns: *time_ns,
            reads: reads.iter().map(|(tensor, times)| access(*tensor, *times)).collect(),
            writes: vec![access(*write, 1)],
        };
        let link = |from: usize, to: usize, shared_with| ProblemLink { from, to, bandwidth: links * 1_000_000_000, shared_with };
        let both = vec![link(0, 1, None), link(1, 0, shared.then_some(0))];
        ProblemParts {
            name: "any".into(),
            tiers: vec![
                tier("fast", Some(capacity), true, 4_000_000_000, 1),
                tier("slow", None, reach > 0, bandwidth * 500_000_000, 20),
            ],
            links: if links > 0 { both } else { vec![] },
            tensors: (0..count).map(tensor).collect(),
            kernels: kernels.iter().map(kernel).collect(),
            ..ProblemParts::default()
        }
    }
}

/// Returns every placement that fits.
pub fn placements(problem: &Problem, capacity: u64) -> Vec<FixedPlacement> {
    let count = problem.tensors().len();
    (0..1_usize << count)
        .filter_map(|set| {
            let chosen: Vec<usize> = (0..count).filter(|tensor| set >> tensor & 1 == 1).collect();
            let placement = FixedPlacement::first_fit(problem, chosen.iter().copied(), capacity);
            let fits = chosen.iter().all(|tensor| placement.is_fast(*tensor) || problem.lifetime(*tensor).is_none());
            fits.then_some(placement)
        })
        .collect()
}

/// Random choices: for each tensor a priority, a treatment and a place; and moves of a tensor, at a kernel, to the fast
/// tier or away.
#[derive(Clone, Debug)]
pub struct Choices {
    tensors: Vec<(f64, usize, usize)>,
    moves: Vec<(usize, usize)>,
}

prop_compose! {
    /// Generates 40 choices, each for `most_tensors` tensors.
    pub fn any_choices(most_tensors: usize)(
        all in prop::collection::vec(
            (
                prop::collection::vec((0.0..1.0, 0_usize..4, 0_usize..2), most_tensors),
                prop::collection::vec((0_usize..64, 0_usize..64), 0..8),
            ),
            40,
        ),
    ) -> Vec<Choices> {
        all.into_iter().map(|(tensors, moves)| Choices { tensors, moves }).collect()
    }
}

/// Returns the plans that follow from choices: the decoder's plans, and plans of the raw moves, which no planner would
/// make.
pub fn plans(problem: &Problem, choices: &[Choices]) -> Vec<Plan> {
    let count = problem.tensors().len();
    let kernels = problem.kernels().len();
    let decoder = Decoder::new(problem, Objective::Makespan);
    choices
        .iter()
        .flat_map(|choices| {
            let chosen = &choices.tensors[..count];
            let decoded = decoder.decode(&Decisions {
                priorities: chosen.iter().map(|(priority, ..)| *priority).collect(),
                treatments: chosen.iter().map(|(_, treatment, _)| Treatment::ALL[*treatment]).collect(),
            });
            let places: Vec<usize> = chosen.iter().map(|(.., place)| *place).collect();
            let mut moves = choices.moves.clone();
            moves.sort_by_key(|(_, kernel)| kernel % kernels);
            let mut at = places.clone();
            let steps = moves.into_iter().map(|(tensor, kernel)| {
                let at = &mut at[tensor % count];
                *at = 1 - *at;
                PlanStep { tensor: tensor % count, kernel: kernel % kernels, action: PlanAction::Move { to: *at } }
            });
            let steps = steps.collect();
            [decoded, Plan { places, steps }]
        })
        .collect()
}
