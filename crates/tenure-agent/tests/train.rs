//! Tests of training.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;

use tenure_agent::Policy;
use tenure_agent::train::{Stage, TrainEvent, TrainOptions, TrainProgress, train};

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
    let trained = train(&SHORT, &mut |event| {
        if let TrainEvent::Point(point) = event {
            told.push(*point);
        }
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

/// Trains until an event is the last, and returns the curve until then.
fn curve_until(is_last: impl Fn(&TrainEvent<'_>) -> bool) -> Vec<TrainProgress> {
    let mut has_ended = false;
    let trained = train(&SHORT, &mut |event| {
        assert!(!has_ended, "{event:?} came after the last event");
        has_ended = is_last(&event);
        if has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    trained.unwrap().curve
}

#[test]
fn it_ends_when_it_is_told_to() {
    assert!(curve_until(|event| matches!(event, TrainEvent::Problem)).is_empty());
    let points = curve_until(|event| matches!(event, TrainEvent::Step { stage: Stage::Leanings, step: 2 }));
    assert_eq!(points.last().map(|point| (point.stage, point.step)), Some((Stage::Leanings, 1)));
    assert_eq!(curve_until(|event| matches!(event, TrainEvent::Point(point) if point.step == 2)).len(), 3);
}
