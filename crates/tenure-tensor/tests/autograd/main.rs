//! Tests of autograd: graphs, hooks, writes in place, checkpoints.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod autocast;
mod autocast_lists;
mod checkpoint;
mod gradcheck;
mod graph;
mod hooks;
mod in_place;
mod programs;

use tenure_tensor::Tensor;

/// Returns a vector that requires a gradient.
fn leaf(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap().requires_grad_(true).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec().unwrap()
}

/// Returns the gradient that has been added up.
fn grad(tensor: &Tensor) -> Vec<f64> {
    values(&tensor.grad().unwrap())
}
