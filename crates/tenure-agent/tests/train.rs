//! Tests of training.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;

use tenure_agent::Policy;
use tenure_agent::train::{Stage, TrainOptions, TrainProgress, train};

const SHORT: TrainOptions = TrainOptions { problems: 4, price_steps: 20, leaning_steps: 4, seed: 3 };

fn bytes(policy: &Policy) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    policy.write(&path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn the_curve_shows_what_is_learned() {
    let mut told = Vec::new();
    let trained = train(&SHORT, &mut |point: &TrainProgress| {
        told.push(*point);
        ControlFlow::Continue(())
    });
    let trained = trained.unwrap();
    assert_eq!(trained.curve, told);
    for (stage, steps) in [(Stage::Prices, SHORT.price_steps), (Stage::Leanings, SHORT.leaning_steps)] {
        let points: Vec<&TrainProgress> = told.iter().filter(|point| point.stage == stage).collect();
        let first = points[0];
        let last = points[points.len() - 1];
        assert_eq!((first.step, last.step, last.steps), (0, steps, steps));
        assert!(last.validation > first.validation, "{stage:?}: {} to {}", first.validation, last.validation);
    }
    // The same options give the same policy, to the bit.
    let again = train(&SHORT, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(bytes(&again.policy), bytes(&trained.policy));
}

#[test]
fn it_ends_when_it_is_told_to() {
    let mut points = 0;
    let trained = train(&SHORT, &mut |_| {
        points += 1;
        if points == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(trained.unwrap().curve.len(), 3);
}
