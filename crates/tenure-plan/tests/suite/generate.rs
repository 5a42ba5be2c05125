//! Tests of synthetic problems.

use std::ops::ControlFlow;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::Tag;
use tenure_plan::planner::{Evolutionary, FlashNeuron, Objective, PlannerOptions, Scheduled};
use tenure_plan::problem::generate::{Family, Uncertain};
use tenure_plan::{Planner, Problem, Rule, simulate};

fn any_family() -> impl Strategy<Value = Family> {
    prop::sample::select(Family::ALL.to_vec())
}

#[test]
fn a_seed_is_the_same_program_everywhere() {
    let figures = Family::ALL.map(|family| {
        let problem = Problem::new(family.program(1)).unwrap();
        (problem.tensors().len(), problem.kernels().len(), problem.peak_bytes())
    });
    assert_eq!(
        figures,
        [(63, 52, 35_869_008), (694, 570, 2_367_537_152), (65, 66, 177_086_112), (290, 370, 815_418_032)]
    );
}

#[test]
fn programs_differ_in_what_matters() {
    let problems: Vec<Problem> = (0..40).map(|seed| Family::ALL[seed % 4].fixed(seed as u64).unwrap()).collect();
    let has = |tag: Tag| problems.iter().filter(|it| it.tensors().iter().any(|tensor| tensor.tag == tag)).count();
    assert!([Tag::Weight, Tag::Input].into_iter().all(|tag| has(tag) == problems.len()));
    assert!([Tag::Gradient, Tag::OptimizerState].into_iter().all(|tag| (1..problems.len()).contains(&has(tag))));
    let shares = problems.iter().map(|it| it.tiers()[0].capacity.unwrap() as f64 / it.peak_bytes() as f64);
    let (least, most) = shares.fold((1.0_f64, 0.0_f64), |(least, most), share| (least.min(share), most.max(share)));
    assert!(least < 0.2 && most > 0.6, "{least} to {most}");
    // The best rule differs between problems.
    let best = |it: &Problem| {
        let score = |rule: &Rule| rule.place(it, it.tiers()[0].capacity.unwrap()).score(it);
        Rule::ALL.into_iter().max_by(|left, right| score(left).total_cmp(&score(right))).unwrap()
    };
    assert!(problems.iter().any(|it| best(it) == Rule::Density) && problems.iter().any(|it| best(it) != Rule::Density));
}

/// The second tier overflows, and the tensors in the third return by the time they are needed.
#[test]
fn three_tiers_are_used_by_every_planner() {
    let options =
        PlannerOptions { objective: Objective::Makespan, time_limit: Duration::MAX, evaluations: Some(8), seed: 1 };
    for planner in [&FlashNeuron as &dyn Planner, &Scheduled, &Evolutionary::default()] {
        let played = (0..12).map(|seed| {
            let problem = Family::ALL[seed % 4].tiered(seed as u64).unwrap();
            let planned = planner.plan(&problem, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            simulate(&problem, &planned.plan).unwrap()
        });
        let used = played.filter(|outcome| outcome.peak_bytes[1] > 0 && outcome.peak_bytes[2] > 0).count();
        assert!(used >= 8, "{}: {used} of 12", planner.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_truth_differs_in_costs_only(family in any_family(), seed in any::<u64>()) {
        let Uncertain { told, truth } = family.contended(seed).unwrap();
        prop_assert_eq!(&told, &family.contended(seed).unwrap().told);
        let told = told.into_parts();
        let truth = truth.into_parts();
        prop_assert_ne!(&told, &truth);
        let mut known = truth.clone();
        for (kernel, as_told) in known.kernels.iter_mut().zip(&told.kernels) {
            prop_assert!((0.4..2.1).contains(&((kernel.time_ns + 1) as f64 / (as_told.time_ns + 1) as f64)));
            kernel.time_ns = as_told.time_ns;
        }
        for (tensor, as_told) in known.tensors.iter_mut().zip(&told.tensors) {
            if let (Some(again), Some(as_told)) = (&mut tensor.recompute, &as_told.recompute) {
                again.time_ns = as_told.time_ns;
            }
        }
        for (tier, as_told) in known.tiers.iter_mut().zip(&told.tiers) {
            prop_assert_eq!(tier.capacity, as_told.capacity);
            *tier = as_told.clone();
        }
        for (link, as_told) in known.links.iter_mut().zip(&told.links) {
            link.bandwidth = as_told.bandwidth;
        }
        prop_assert_eq!(known, told);
    }

    #[test]
    fn placements_can_be_played_and_cost_time(family in any_family(), seed in any::<u64>()) {
        let Uncertain { told, truth } = family.contended(seed).unwrap();
        let plan = Rule::Density.place(&told, told.tiers()[0].capacity.unwrap()).plan();
        let ideal: u64 = truth.kernels().iter().map(|kernel| kernel.time_ns).sum();
        prop_assert!(simulate(&truth, &plan).unwrap().makespan_ns > ideal as f64);
    }
}
