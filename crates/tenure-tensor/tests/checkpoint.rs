//! Tests that checkpoints that draw random numbers give the same gradients, bit for bit, and keep less memory.
//!
//! They run in a process of their own: a recomputation sets back the default generator, which other tests draw from.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_tensor::autograd::{self, BackwardOptions, SavedHooks};
use tenure_tensor::random::{Generator, manual_seed};
use tenure_tensor::{AutogradError, DType, Device, Result, Tensor, TensorError};

/// Runs several operations that save something.
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
        Ok::<_, TensorError>(autograd::checkpoint(&[x], move |x| Ok(vec![block(&x[0], &weight)?]))?.remove(0))
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

/// Returns the output, both gradients, and a number drawn afterwards.
fn step(function: Checkpointed) -> [Vec<u32>; 4] {
    let (x, weight) = tensors();
    manual_seed(3);
    let y = function(&x, &weight).unwrap();
    y.sum_all().unwrap().backward().unwrap();
    let drawn = Tensor::rand(&[1], DType::F32, Device::CPU, &Generator::default()).unwrap();
    [y, x.grad().unwrap(), weight.grad().unwrap(), drawn].map(bits)
}

/// Returns the number of bytes that are saved for backward and reach the hooks around.
fn saved_bytes(function: Checkpointed) -> usize {
    let total = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&total);
    let _hooks = SavedHooks::enter(
        move |tensor: &Tensor, _| {
            count.fetch_add(tensor.storage().bytes(), Ordering::Relaxed);
            Ok(tensor.clone())
        },
        |tensor: &Tensor| Ok(tensor.clone()),
    );
    let (x, weight) = tensors();
    function(&x, &weight).unwrap();
    total.load(Ordering::Relaxed)
}

#[test]
fn gradients_are_the_same_bits_and_less_is_kept() {
    let expected = step(plain);
    assert_eq!(step(one_by_one), expected);
    assert_eq!(step(nested), expected);
    let all = saved_bytes(plain);
    let two = saved_bytes(one_by_one);
    let one = saved_bytes(nested);
    assert!(two * 6 < all, "{two} of {all} bytes");
    assert_eq!((two, one), (2 * 64 * 4, 64 * 4), "the inputs of each checkpoint");
}

/// Returns the result of a checkpoint that squares a hidden tensor and multiplies it with a weight, and the two.
fn with_hidden() -> (Tensor, Tensor, Tensor) {
    let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2]).unwrap().requires_grad_(true).unwrap();
    let weight = Tensor::from_slice(&[3.0_f32, 4.0], &[2]).unwrap();
    let captured = weight.clone();
    let y = autograd::checkpoint(&[&x], move |x| Ok(vec![x[0].mul(&captured)?])).unwrap().remove(0);
    (x, weight, y.sum_all().unwrap())
}

#[test]
fn a_write_to_a_tensor_that_a_checkpoint_saves_is_an_error_as_without_the_checkpoint() {
    // Before the first backward pass, and between two.
    for passes in [0, 1] {
        let (x, weight, loss) = with_hidden();
        for _ in 0..passes {
            let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
            let grad = autograd::grad(&[&loss], &[&x], &[None], options).unwrap().remove(0).unwrap();
            assert_eq!(grad.to_vec::<f32>().unwrap(), [3.0, 4.0]);
        }
        autograd::no_grad(|| weight.mul_(2)).unwrap();
        let error = loss.backward().unwrap_err();
        let TensorError::Autograd(AutogradError::Modified { node, writer, .. }) = &error else { panic!("{error}") };
        assert_eq!((node.as_str(), *writer), ("mul", "mul_"), "{error}");
    }
}
