//! Tests of planners: the simulator plays the plans that they find.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::drawn::{kernel, link, tensor};
use proptest::prelude::*;
use tenure_core::Tag;
use tenure_plan::planner::{
    Decisions, Decoder, Evolutionary, FlashNeuron, Objective, Planned, PlannerError, PlannerOptions, Scheduled,
    Treatment,
};
use tenure_plan::problem::{
    ProblemAccess, ProblemKernel, ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor, ProblemTier,
};
use tenure_plan::{Plan, PlanError, Planner, Problem, Rule, simulate};

const OPTIONS: PlannerOptions = PlannerOptions {
    objective: Objective::Makespan,
    // The number of evaluations ends a search, not the clock.
    time_limit: Duration::from_secs(24 * 60 * 60),
    evaluations: Some(400),
    seed: 1,
};

fn plan(planner: &dyn Planner, problem: &Problem, options: &PlannerOptions) -> Result<Planned, PlannerError> {
    planner.plan(problem, options, &mut |_| ControlFlow::Continue(()))
}

fn tier(name: &str, is_reachable: bool) -> ProblemTier {
    ProblemTier {
        name: name.into(),
        capacity: None,
        is_reachable,
        read_bandwidth: 1_000_000_000,
        write_bandwidth: 1_000_000_000,
        latency_ns: 0,
        loaded: vec![],
    }
}

/// Generates up to a dozen tensors and thirty kernels, two or three tiers, and links that two may share. The first tier
/// holds the largest working set plus the last number in bytes; the last tier is unlimited.
fn problem() -> impl Strategy<Value = Problem> {
    let tag = prop_oneof![3 => Just(Tag::Activation), 1 => Just(Tag::Weight), 1 => Just(Tag::OptimizerState)];
    let again = prop_oneof![Just(None), (0..400_u64).prop_map(Some)];
    let compression = prop_oneof![Just(None), Just(Some(2.0)), Just(Some(3.5))];
    let bytes = prop_oneof![1 => Just(0), 5 => 0..200_u64];
    let time_ns = prop_oneof![1 => Just(0), 5 => 0..1000_u64];
    let tensors = prop::collection::vec((bytes, tag, again, compression), 1..12);
    let kernels = prop::collection::vec((time_ns, prop::collection::vec(0..12_usize, 1..4)), 1..30);
    let links = (1..20_u64, 1..20_u64, any::<bool>());
    let between = prop::option::of((0..300_u64, any::<bool>(), links.clone()));
    (tensors, kernels, links, any::<bool>(), between, 0..500_u64).prop_map(
        |(tensors, kernels, (out, back, shared), reach, between, spare)| {
            let count = tensors.len();
            let tensors: Vec<ProblemTensor> = tensors
                .into_iter()
                .enumerate()
                .map(|(number, (bytes, tag, again, compression))| {
                    // It is recomputed from the tensor before it, which may have been dropped.
                    let recompute = again.filter(|_| number > 0 && tag == Tag::Activation);
                    let recompute = recompute.map(|time_ns| ProblemRecompute { time_ns, inputs: vec![number - 1] });
                    ProblemTensor { key: number.to_string(), bytes, tag, compression, recompute }
                })
                .collect();
            let kernels: Vec<ProblemKernel> = kernels
                .into_iter()
                .map(|(time_ns, uses)| {
                    let access =
                        |tensor: usize| ProblemAccess { tensor: tensor % count, bytes: tensors[tensor % count].bytes };
                    let (writes, reads) = uses.split_at(1);
                    let all = |uses: &[usize]| uses.iter().map(|tensor| access(*tensor)).collect();
                    ProblemKernel { name: "k".into(), time_ns, reads: all(reads), writes: all(writes) }
                })
                .collect();
            let slow = ProblemTier { read_bandwidth: 300_000_000, write_bandwidth: 100_000_000, ..tier("slow", reach) };
            let link = |from, to, bandwidth: u64, shared_with| ProblemLink {
                from,
                to,
                bandwidth: bandwidth * 100_000_000,
                shared_with,
            };
            let last = 1 + usize::from(between.is_some());
            let mut tiers = vec![tier("fast", true), slow];
            let mut links = vec![link(0, last, out, None), link(last, 0, back, shared.then_some(0))];
            if let Some((capacity, reach, (out, back, shared))) = between {
                tiers.insert(1, ProblemTier { capacity: Some(capacity), ..tier("between", reach) });
                links.extend([link(0, 1, out, None), link(1, 0, back, shared.then_some(2))]);
            }
            let parts = ProblemParts {
                name: "any".into(),
                tiers,
                links,
                backward: Some(kernels.len() / 2),
                tensors,
                kernels,
                ..ProblemParts::default()
            };
            let most = working_set(&Problem::new(parts.clone()).unwrap());
            Problem::new(parts).unwrap().with_fast_bytes(most + spare)
        },
    )
}

/// Returns the most bytes that a kernel needs at once. A tensor that always exists and is used by the last kernel is
/// still in the first tier when the first kernel begins, and the other way round.
fn working_set(problem: &Problem) -> u64 {
    let used = |kernel: &ProblemKernel| {
        let accesses = kernel.reads.iter().chain(&kernel.writes);
        accesses.map(|access| access.tensor).collect::<BTreeSet<usize>>()
    };
    let mut sets: Vec<BTreeSet<usize>> = problem.kernels().iter().map(used).collect();
    let ends: BTreeSet<usize> = sets[0].union(&sets[sets.len() - 1]).copied().collect();
    let last = sets.len() - 1;
    for tensor in ends.into_iter().filter(|tensor| problem.tensors()[*tensor].is_always_there()) {
        sets[0].insert(tensor);
        sets[last].insert(tensor);
    }
    sets.into_iter().map(|set| set.into_iter().map(|tensor| problem.tensors()[tensor].bytes).sum()).max().unwrap_or(0)
}

fn decisions(tensors: usize) -> impl Strategy<Value = Decisions> {
    let treatment = prop::sample::select(Treatment::ALL.to_vec());
    (prop::collection::vec(0.0..1.0, tensors), prop::collection::vec(treatment, tensors))
        .prop_map(|(priorities, treatments)| Decisions { priorities, treatments })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    /// A decoded plan can be played for any decisions.
    #[test]
    fn a_decoded_plan_can_be_played(
        (problem, decisions) in problem().prop_flat_map(|problem| {
            let tensors = problem.tensors().len();
            (Just(problem), decisions(tensors))
        }),
    ) {
        for objective in [Objective::Makespan, Objective::Score] {
            let plan = Decoder::new(&problem, objective).decode(&decisions);
            let is_static = objective == Objective::Score;
            prop_assert!(!is_static || plan.steps.is_empty());
            match simulate(&problem, &plan) {
                Ok(outcome) => {
                    let mut peaks = outcome.peak_bytes.iter().zip(problem.tiers());
                    prop_assert!(peaks.all(|(peak, tier)| tier.capacity.is_none_or(|capacity| *peak <= capacity)));
                }
                // If tensors cannot move, all must fit.
                Err(PlanError::NoRoom { .. }) if is_static && !problem.tiers().last().unwrap().is_reachable => {}
                Err(error) => prop_assert!(false, "{objective:?}: {error}: {plan:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn ours_is_never_worse_than_flashneuron_and_rules(problem in problem()) {
        for objective in [Objective::Makespan, Objective::Score] {
            let options = PlannerOptions { objective, ..OPTIONS };
            let cost = |planned: &Planned| objective.cost(&simulate(&problem, &planned.plan).unwrap());
            let scheduled = plan(&Scheduled, &problem, &options);
            prop_assert!(scheduled.is_ok() || objective == Objective::Score, "{scheduled:?}");
            let mut others: Vec<Box<dyn Planner>> = vec![Box::new(FlashNeuron)];
            others.extend(Rule::ALL.map(|rule| Box::new(rule) as Box<dyn Planner>));
            for other in others {
                // If tensors cannot move, the other tiers need room that kernels reach.
                if let Ok(planned) = plan(&*other, &problem, &options) {
                    prop_assert!(objective == Objective::Makespan || planned.plan.steps.is_empty());
                    prop_assert!(cost(scheduled.as_ref().unwrap()) <= cost(&planned), "{}", other.name());
                }
            }
        }
    }

    /// The other tiers have room of their own.
    #[test]
    fn a_plan_is_found_wherever_the_last_tier_has_room(problem in problem()) {
        for planner in [&Scheduled as &dyn Planner, &Evolutionary::default(), &FlashNeuron] {
            let options = PlannerOptions { evaluations: Some(60), ..OPTIONS };
            prop_assert!(plan(planner, &problem, &options).is_ok(), "{}", planner.name());
        }
        if problem.tiers().last().unwrap().is_reachable {
            prop_assert!(Rule::ALL.iter().all(|rule| plan(rule, &problem, &OPTIONS).is_ok()));
        }
    }

    #[test]
    fn the_same_seed_finds_the_same_plan(problem in problem(), seed in any::<u64>()) {
        let options = PlannerOptions { seed, evaluations: Some(100), ..OPTIONS };
        for planner in [&Scheduled as &dyn Planner, &Evolutionary::default()] {
            let [first, second] = [(); 2].map(|()| plan(planner, &problem, &options).unwrap());
            prop_assert_eq!((first.plan, first.evaluations), (second.plan, second.evaluations));
            prop_assert!(first.evaluations <= 100);
        }
    }

    /// Tries every placement of a few tensors.
    #[test]
    fn no_placement_surpasses_the_bound_of_prices(problem in problem()) {
        let [_, slow] = problem.tiers() else { return Ok(()) };
        prop_assume!(slow.is_reachable && problem.tensors().len() <= 8);
        let options = PlannerOptions { objective: Objective::Score, ..OPTIONS };
        let planned = plan(&Scheduled, &problem, &options).unwrap();
        let score = simulate(&problem, &planned.plan).unwrap().score();
        let places = |choice: u32| (0..problem.tensors().len()).map(|tensor| choice as usize >> tensor & 1).collect();
        let scores = (0..1_u32 << problem.tensors().len()).filter_map(|choice| {
            let plan = Plan { places: places(choice), steps: vec![] };
            simulate(&problem, &plan).ok().map(|outcome| outcome.score())
        });
        let best = scores.fold(0.0, f64::max);
        prop_assert!(score <= best + 1e-9 && best <= planned.bound.unwrap() + 1e-9, "{score} {best} {:?}", planned.bound);
    }
}

/// Makes two layers: `x` is written by the first kernel and read by the last, `y` by the kernels between.
fn layers(fast_bytes: u64) -> Problem {
    let parts = ProblemParts {
        name: "layers".into(),
        tiers: vec![tier("fast", true), tier("disk", false)],
        links: vec![link(0, 1, 200_000_000), link(1, 0, 200_000_000)],
        tensors: ["x", "y"].map(|key| tensor(key, 100, Tag::Activation)).to_vec(),
        kernels: vec![
            kernel(1000, &[], &[0]),
            kernel(1000, &[], &[]),
            kernel(1000, &[], &[1]),
            kernel(1000, &[1], &[]),
            kernel(1000, &[0], &[]),
        ],
        ..ProblemParts::default()
    };
    Problem::new(parts).unwrap().with_fast_bytes(fast_bytes)
}

#[test]
fn a_tensor_that_does_not_fit_moves_while_others_compute() {
    let scheduled = plan(&Scheduled, &layers(100), &OPTIONS).unwrap();
    // It leaves (500 ns) during the second kernel. It returns after `y` has left, before the last kernel: half of a
    // kernel's time late.
    assert_eq!(simulate(&layers(100), &scheduled.plan).unwrap().makespan_ns, 5500.0);
    let roomy = plan(&Scheduled, &layers(200), &OPTIONS).unwrap();
    assert_eq!(simulate(&layers(200), &roomy.plan).unwrap().makespan_ns, 5000.0);
    assert_eq!(roomy.evaluations, 1, "nothing can be better than no wait");
}

/// Layers of a thousand bytes, each saved. The first two of every three are cheap to recompute from the layer before,
/// and the link is slow.
#[test]
fn chains_are_computed_again_as_a_whole() {
    const LAYERS: usize = 30;
    let tensors: Vec<ProblemTensor> = (0..LAYERS)
        .map(|number| {
            let recompute = (number % 3 > 0).then(|| ProblemRecompute { time_ns: 10, inputs: vec![number - 1] });
            ProblemTensor { key: number.to_string(), bytes: 1000, tag: Tag::Activation, compression: None, recompute }
        })
        .collect();
    let access = |tensor| ProblemAccess { tensor, bytes: 1000 };
    let forward = (0..LAYERS).map(|number| (vec![], vec![access(number)]));
    let backward = (0..LAYERS).rev().map(|number| (vec![access(number)], vec![]));
    let kernels = forward
        .chain(backward)
        .map(|(reads, writes)| ProblemKernel { name: "layer".into(), time_ns: 100, reads, writes })
        .collect();
    let tiers = vec![ProblemTier { capacity: Some(13_000), ..tier("fast", true) }, tier("slow", false)];
    let link = |from, to| ProblemLink { from, to, bandwidth: 100_000_000, shared_with: None };
    let links = vec![link(0, 1), link(1, 0)];
    let (name, source) = (String::new(), String::new());
    let parts = ProblemParts { name, source, tiers, links, tensors, kernels, backward: Some(LAYERS) };
    let problem = Problem::new(parts).unwrap();
    let planned = plan(&Scheduled, &problem, &OPTIONS).unwrap();
    let outcome = simulate(&problem, &planned.plan).unwrap();
    // Twenty layers are recomputed. No kernel waits for the link, on which one layer takes as long as a hundred layers
    // compute.
    assert!(outcome.makespan_ns <= 6000.0 + 200.0, "{}", outcome.makespan_ns);
}

/// Each step takes host time, which problems do not model.
#[test]
fn a_plan_has_no_steps_that_it_can_do_without() {
    const LAYERS: usize = 120;
    let bytes = |number: usize| [100, 400, 1600][number % 3];
    let tensor = |number: usize| {
        let recompute = (number % 2 == 1).then(|| ProblemRecompute { time_ns: 30, inputs: vec![] });
        ProblemTensor {
            key: number.to_string(),
            bytes: bytes(number),
            tag: Tag::Activation,
            compression: None,
            recompute,
        }
    };
    let access = |number| vec![ProblemAccess { tensor: number, bytes: bytes(number) }];
    let forward = (0..LAYERS).map(|number| (vec![], access(number)));
    let backward = (0..LAYERS).rev().map(|number| (access(number), vec![]));
    let link = |from, to| ProblemLink { from, to, bandwidth: 300_000_000, shared_with: None };
    let parts = ProblemParts {
        tiers: vec![ProblemTier { capacity: Some(40_000), ..tier("fast", true) }, tier("host", false)],
        links: vec![link(0, 1), link(1, 0)],
        tensors: (0..LAYERS).map(tensor).collect(),
        kernels: forward
            .chain(backward)
            .map(|(reads, writes)| ProblemKernel { name: "layer".into(), time_ns: 1000, reads, writes })
            .collect(),
        backward: Some(LAYERS),
        ..ProblemParts::default()
    };
    let problem = Problem::new(parts).unwrap();
    let options = PlannerOptions { evaluations: Some(2000), ..OPTIONS };
    let planned = plan(&Scheduled, &problem, &options).unwrap().plan;
    let makespan_ns = |plan: &Plan| simulate(&problem, plan).map_or(f64::INFINITY, |outcome| outcome.makespan_ns);
    let least = makespan_ns(&planned);
    let tensors = planned.steps.iter().map(|step| step.tensor).collect::<BTreeSet<_>>();
    // 44,000 bytes have to go.
    assert!((28..LAYERS).contains(&tensors.len()), "{tensors:?}");
    for tensor in tensors {
        let mut without = planned.clone();
        without.steps.retain(|step| step.tensor != tensor);
        assert!(makespan_ns(&without) > least, "{tensor}: {planned:?}");
    }
}

#[test]
fn too_little_memory_is_an_error_that_says_where() {
    for planner in [&Scheduled as &dyn Planner, &Evolutionary::default(), &FlashNeuron] {
        let error = plan(planner, &layers(99), &OPTIONS).unwrap_err();
        assert_eq!(error, PlannerError::Plan(PlanError::NoRoom { tier: 0, kernel: 0 }));
    }
    let bare = Problem::new(ProblemParts { tiers: vec![], links: vec![], ..layers(100).into_parts() }).unwrap();
    let error = plan(&Scheduled, &bare, &OPTIONS).unwrap_err();
    assert_eq!(error, PlannerError::Plan(PlanError::NoTiers));
}

#[test]
fn a_search_ends_when_it_is_told_to() {
    let no_time = PlannerOptions { time_limit: Duration::ZERO, ..OPTIONS };
    assert_eq!(plan(&Evolutionary::default(), &layers(100), &no_time).unwrap().evaluations, 1);
    let mut seen = 0;
    let planned = Evolutionary::default().plan(&layers(100), &OPTIONS, &mut |progress| {
        seen = progress.evaluations;
        if seen == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((planned.unwrap().evaluations, seen), (7, 7));
}
