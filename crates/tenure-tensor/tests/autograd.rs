//! Graphs, and the ways back through them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tenure_tensor::autograd::{self, Options};
use tenure_tensor::{DType, Device, Tensor};

fn leaf(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap().requires_grad_(true).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec().unwrap()
}

#[test]
fn gradients_add_up_over_all_uses() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.mul(&x).unwrap().add(&x.mul(3.0).unwrap()).unwrap().sum_all().unwrap();
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [5.0, 7.0]);
}

#[test]
fn what_was_broadcast_is_summed_up() {
    let (x, row) = (leaf(&[1.0, 2.0, 3.0]), leaf(&[10.0]));
    x.mul(&row).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(values(&row.grad().unwrap()), [6.0]);
}

#[test]
fn gradients_have_gradients() {
    let x = leaf(&[3.0]);
    let cube = x.mul(&x).unwrap().mul(&x).unwrap();
    let options = Options { create_graph: true, ..Options::default() };
    let first = autograd::grad(&[&cube], &[&x], &[], options).unwrap().remove(0).unwrap();
    let second = autograd::grad(&[&first], &[&x], &[], options).unwrap().remove(0).unwrap();
    let third = autograd::grad(&[&second], &[&x], &[], Options::default()).unwrap().remove(0).unwrap();
    assert_eq!([values(&first), values(&second), values(&third)], [[27.0], [18.0], [6.0]]);
    assert!(x.grad().is_none());
}

#[test]
fn a_graph_deeper_than_the_stack_is_gone_through_and_dropped() {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..50_000 {
        y = y.mul(1.0).unwrap();
    }
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0]);
}

#[test]
fn backward_twice_says_what_to_do() {
    let x = leaf(&[1.0]);
    let y = x.mul(&x).unwrap();
    y.backward().unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("mul") && error.contains("retain_graph"), "{error}");
}

#[test]
fn threads_do_not_change_a_bit() {
    let big = Tensor::full(&[300, 500], 1.5, DType::F32, Device::CPU).unwrap();
    assert_eq!(big.mul(2).unwrap().to_vec::<f32>().unwrap(), vec![3.0; 150_000]);
}
