//! Checkpoints run their function again, as far as needed, and detect differences.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_tensor::Tensor;
use tenure_tensor::autograd::{self, BackwardOptions};

use super::{grad, leaf, values};

/// Computes x⁴ in a checkpoint that counts its runs.
fn counted(x: &Tensor, runs: &Arc<AtomicUsize>) -> Tensor {
    let runs = Arc::clone(runs);
    autograd::checkpoint(&[x], move |x| {
        runs.fetch_add(1, Ordering::Relaxed);
        let square = x[0].mul(&x[0])?;
        Ok(vec![square.mul(&square)?])
    })
    .unwrap()
    .remove(0)
}

#[test]
fn a_function_runs_again_once() {
    let x = leaf(&[2.0]);
    let runs = Arc::default();
    counted(&x, &runs).backward().unwrap();
    assert_eq!((grad(&x), runs.load(Ordering::Relaxed)), (vec![32.0], 2));
}

#[test]
fn an_output_that_is_used_twice_or_asked_for_by_grad_is_right() {
    let x = leaf(&[2.0]);
    let runs = Arc::default();
    let y = counted(&x, &runs);
    let sum = y.mul(&y).unwrap().add(&y).unwrap();
    let retain = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    for _ in 0..2 {
        let found = autograd::grad(&[&sum], &[&x], &[], retain).unwrap().remove(0).unwrap();
        assert_eq!(values(&found), [2.0 * 16.0 * 32.0 + 32.0]);
    }
    let create = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = autograd::grad(&[&y], &[&x], &[], create).unwrap().remove(0).unwrap();
    first.backward().unwrap();
    assert_eq!(grad(&x), [48.0]);
}

#[test]
fn inside_no_grad_it_is_the_function_alone() {
    let x = leaf(&[2.0]);
    let runs = Arc::default();
    assert!(!autograd::no_grad(|| counted(&x, &runs)).requires_grad());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[test]
fn it_stops_as_soon_as_all_is_there() {
    let x = leaf(&[2.0]);
    let finished = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&finished);
    let y = autograd::checkpoint(&[&x], move |x| {
        let y = x[0].mul(&x[0])?;
        count.fetch_add(1, Ordering::Relaxed);
        Ok(vec![y])
    });
    y.unwrap().remove(0).backward().unwrap();
    assert_eq!((grad(&x), finished.load(Ordering::Relaxed)), (vec![4.0], 1));
}

#[test]
fn a_function_knows_that_it_runs_again() {
    let x = leaf(&[2.0]);
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let y = autograd::checkpoint(&[&x], move |x| {
        count.fetch_add(1 + usize::from(autograd::is_recomputing()) * 10, Ordering::Relaxed);
        Ok(vec![x[0].mul(&x[0])?])
    });
    y.unwrap().remove(0).backward().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 12);
    assert!(!autograd::is_recomputing());
}

#[test]
fn inputs_that_were_modified_are_found() {
    let x = leaf(&[2.0]);
    let input = x.mul(1.0).unwrap();
    let y = autograd::checkpoint(&[&input], |x| Ok(vec![x[0].mul(&x[0])?])).unwrap().remove(0);
    input.detach().zero_().unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("checkpoint: a tensor that its gradient needs was modified in place"), "{error}");
}

#[test]
fn a_function_that_does_something_else_is_told() {
    let x = leaf(&[2.0]);
    let first = AtomicBool::new(true);
    let y = autograd::checkpoint(&[&x], move |x| {
        if first.swap(false, Ordering::Relaxed) { Ok(vec![x[0].mul(&x[0])?]) } else { Ok(vec![x[0].clone()]) }
    });
    let error = y.unwrap().remove(0).backward().unwrap_err().to_string();
    assert!(error.contains("it must do the same every time"), "{error}");
}
