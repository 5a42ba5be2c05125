//! Checkpoints give the same gradients, bit for bit, and keep less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_tensor::autograd::{self, Options, SavedHooks};
use tenure_tensor::random::{default_generator, manual_seed};
use tenure_tensor::{DType, Device, Result, Tensor};

use super::{grad, leaf, values};

/// Several operations that save something.
fn block(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let hidden = x.matmul(weight)?;
    let hidden = hidden.mul(&hidden)?.dropout(0.5, true)?;
    hidden.mul(x)?.div(&hidden.mul(&hidden)?.add(1)?)
}

type Checkpointed = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn plain(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    block(&block(x, weight)?, weight)
}

fn one_by_one(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let run = |x: &Tensor| {
        let weight = weight.clone();
        Ok::<_, tenure_tensor::TensorError>(
            autograd::checkpoint(&[x], move |x| Ok(vec![block(&x[0], &weight)?]))?.remove(0),
        )
    };
    run(&run(x)?)
}

fn nested(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let weight = weight.clone();
    Ok(autograd::checkpoint(&[x], move |x| Ok(vec![one_by_one(&x[0], &weight)?]))?.remove(0))
}

fn tensors() -> (Tensor, Tensor) {
    let numbers: Vec<f32> = (0..64).map(|at| (at as f32 * 0.37).sin()).collect();
    let tensor = || Tensor::from_slice(&numbers, &[8, 8]).unwrap().requires_grad_(true).unwrap();
    (tensor(), tensor())
}

fn bits(tensor: Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// The output, both gradients, and a number drawn afterwards.
fn step(function: Checkpointed) -> [Vec<u32>; 4] {
    let (x, weight) = tensors();
    manual_seed(3);
    let y = function(&x, &weight).unwrap();
    y.sum_all().unwrap().backward().unwrap();
    let drawn = Tensor::rand(&[1], DType::F32, Device::CPU, default_generator()).unwrap();
    [y, x.grad().unwrap(), weight.grad().unwrap(), drawn].map(bits)
}

/// Bytes that are saved for backward, and what reaches the hooks around.
fn saved_bytes(function: Checkpointed) -> usize {
    let total = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&total);
    let pack = move |tensor: &Tensor, _| {
        count.fetch_add(tensor.storage().bytes(), Ordering::Relaxed);
        Ok(tensor.clone())
    };
    let _hooks = SavedHooks::enter(pack, |tensor: &Tensor| Ok(tensor.clone()));
    let (x, weight) = tensors();
    function(&x, &weight).unwrap();
    total.load(Ordering::Relaxed)
}

#[test]
fn gradients_are_the_same_bits_and_less_is_kept() {
    // One test: both draw from the generator of the whole process.
    let expected = step(plain);
    assert_eq!(step(one_by_one), expected);
    assert_eq!(step(nested), expected);
    let (all, two, one) = (saved_bytes(plain), saved_bytes(one_by_one), saved_bytes(nested));
    assert!(two * 6 < all, "{two} of {all} bytes");
    assert_eq!((two, one), (2 * 64 * 4, 64 * 4), "the inputs of each checkpoint");
}

/// x⁴ as a checkpoint that counts its runs.
fn counted(x: &Tensor, runs: &Arc<AtomicUsize>) -> Tensor {
    let runs = Arc::clone(runs);
    let function = move |x: &[Tensor]| {
        runs.fetch_add(1, Ordering::Relaxed);
        let square = x[0].mul(&x[0])?;
        Ok(vec![square.mul(&square)?])
    };
    autograd::checkpoint(&[x], function).unwrap().remove(0)
}

#[test]
fn a_function_runs_again_once() {
    let (x, runs) = (leaf(&[2.0]), Arc::default());
    counted(&x, &runs).backward().unwrap();
    assert_eq!((grad(&x), runs.load(Ordering::Relaxed)), (vec![32.0], 2));
}

#[test]
fn an_output_that_is_used_twice_or_asked_for_by_grad_is_right() {
    let (x, runs) = (leaf(&[2.0]), Arc::default());
    let y = counted(&x, &runs);
    let sum = y.mul(&y).unwrap().add(&y).unwrap();
    let retain = Options { retain_graph: true, ..Options::default() };
    for _ in 0..2 {
        let found = autograd::grad(&[&sum], &[&x], &[], retain).unwrap().remove(0).unwrap();
        assert_eq!(values(&found), [2.0 * 16.0 * 32.0 + 32.0]);
    }
    let create = Options { create_graph: true, ..Options::default() };
    let first = autograd::grad(&[&y], &[&x], &[], create).unwrap().remove(0).unwrap();
    first.backward().unwrap();
    assert_eq!(grad(&x), [48.0]);
}

#[test]
fn inside_no_grad_it_is_the_function_alone() {
    let (x, runs) = (leaf(&[2.0]), Arc::default());
    assert!(!autograd::no_grad(|| counted(&x, &runs)).requires_grad());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[test]
fn it_stops_as_soon_as_all_is_there() {
    let (x, finished) = (leaf(&[2.0]), Arc::new(AtomicUsize::new(0)));
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
    let (x, first) = (leaf(&[2.0]), AtomicBool::new(true));
    let y = autograd::checkpoint(&[&x], move |x| {
        if first.swap(false, Ordering::Relaxed) { Ok(vec![x[0].mul(&x[0])?]) } else { Ok(vec![x[0].clone()]) }
    });
    let error = y.unwrap().remove(0).backward().unwrap_err().to_string();
    assert!(error.contains("it must do the same every time"), "{error}");
}
