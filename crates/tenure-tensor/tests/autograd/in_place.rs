//! Tests of which tensors may be written to in place. Values and gradients are tested in `../goldens/in_place.rs`.

use tenure_tensor::{DType, Device, Tensor, autograd};

use super::{grad, leaf, values};

#[test]
fn a_leaf_is_written_to_inside_no_grad_only() {
    let x = leaf(&[1.0, 2.0]);
    for error in [x.add_(1.0), x.narrow(0, 0, 1).unwrap().zero_()] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a leaf that requires a gradient, float64 [2], cannot be modified in place"), "{error}");
        assert!(error.contains("no_grad"), "{error}");
    }
    assert_eq!((values(&x), x.version()), (vec![1.0, 2.0], 0));
    let part = x.narrow(0, 0, 1).unwrap();
    autograd::no_grad(|| x.mul_(10.0)).unwrap();
    assert_eq!((values(&x), x.version(), part.version()), (vec![10.0, 20.0], 1, 1));
    // The view shows the present values of the leaf.
    part.mul(&part).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [20.0, 0.0]);
}

/// The output of a product is no view of another tensor.
#[test]
fn a_part_of_a_product_is_written_to() {
    let x = Tensor::ones(&[2, 3, 4], DType::F64, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let weight = leaf(&[1.0; 20]).view(&[5, 4]).unwrap();
    let bias = leaf(&[0.5; 5]);
    let outputs = [
        x.linear(&weight, Some(&bias)).unwrap(),
        x.linear(&weight, None).unwrap(),
        x.matmul(&weight.transpose(0, 1).unwrap()).unwrap(),
    ];
    for output in outputs {
        output.narrow(0, 0, 1).unwrap().mul_(2.0).unwrap();
        let found =
            autograd::grad(&[&output.sum_all().unwrap()], &[&x], &[], autograd::BackwardOptions::default()).unwrap();
        assert_eq!(values(found[0].as_ref().unwrap()), [[10.0; 12], [5.0; 12]].concat());
    }
}

#[test]
fn a_write_to_a_leaf_between_forward_and_backward_is_found() {
    let x = leaf(&[1.0]);
    let y = x.mul(&x).unwrap();
    autograd::no_grad(|| x.sub_(0.5)).unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("is at version 1, expected 0"), "{error}");
}

#[test]
fn a_write_through_a_detached_tensor_is_found() {
    let x = leaf(&[1.0]);
    let a = x.mul(2.0).unwrap();
    let y = a.mul(&a).unwrap();
    a.detach().zero_().unwrap();
    y.backward().unwrap_err();
}

#[test]
fn an_overwritten_tensor_is_saved_as_it_was() {
    let x = leaf(&[3.0]);
    let w = leaf(&[5.0]);
    let a = x.mul(2.0).unwrap();
    a.mul_(&w).unwrap();
    a.backward().unwrap();
    assert_eq!((grad(&x), grad(&w)), (vec![10.0], vec![6.0]));
}

#[test]
fn elements_that_share_memory_are_not_written_to() {
    let x = Tensor::from_slice(&[1.0], &[1]).unwrap();
    let error = x.expand(&[3]).unwrap().add_(1.0).unwrap_err().to_string();
    assert!(error.contains("more than one element") && error.contains("contiguous()"), "{error}");
    let square = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let error = square.add_(&square.transpose(0, 1).unwrap()).unwrap_err().to_string();
    assert!(error.contains("overlaps"), "{error}");
    assert_eq!((values(&x), x.version(), square.version()), (vec![1.0], 0, 0));
}

#[test]
fn sizes_and_dtypes_must_fit_the_tensor() {
    let row = Tensor::zeros(&[3], DType::I64, Device::CPU).unwrap();
    let error = row.add_(&Tensor::zeros(&[2, 3], DType::I64, Device::CPU).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "add_: sizes [2, 3] do not broadcast to [3], which is written");
    let error = row.mul_(0.5).unwrap_err().to_string();
    assert!(error.contains("mul_") && error.contains("float32") && error.contains("int64"), "{error}");
    row.div_(2).unwrap_err();
    row.copy_(&Tensor::full(&[1], 2.7, DType::F32, Device::CPU).unwrap()).unwrap();
    assert_eq!(row.to_vec::<i64>().unwrap(), [2; 3]);
}

#[test]
fn a_wider_operand_is_computed_with_in_its_own_dtype() {
    let half = Tensor::full(&[1], 1.0, DType::BF16, Device::CPU).unwrap();
    half.add_(&Tensor::full(&[1], 0.01, DType::F32, Device::CPU).unwrap()).unwrap();
    assert_eq!(half.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.007_812_5]);
}

#[test]
fn a_view_made_inside_no_grad_is_not_written_to_outside() {
    let x = leaf(&[1.0, 2.0]);
    let w = leaf(&[3.0]);
    let base = x.mul(2.0).unwrap();
    let part = autograd::no_grad(|| base.narrow(0, 0, 1)).unwrap();
    let error = part.mul_(&w).unwrap_err().to_string();
    assert!(error.contains("inside no_grad()"), "{error}");
}

#[test]
fn a_tensor_becomes_part_of_a_graph_by_a_write() {
    let table = Tensor::zeros(&[2, 2], DType::F64, Device::CPU).unwrap();
    let first = table.select(0, 0).unwrap();
    let second = table.select(0, 1).unwrap();
    assert!(table.is_leaf() && !table.requires_grad());
    let x = leaf(&[1.0, 2.0]);
    first.copy_(&x).unwrap();
    assert_eq!(table.grad_fn().unwrap().name(), "copy_slices");
    assert_eq!(first.grad_fn().unwrap().name(), "copy_");
    assert!(second.requires_grad() && !second.is_leaf());
    table.mul(&table).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [2.0, 4.0]);
}

#[test]
fn a_long_chain_of_writes_is_gone_through_and_dropped() {
    let x = leaf(&[1.0, 1.0]);
    let y = x.mul(1.0).unwrap();
    let part = y.narrow(0, 0, 1).unwrap();
    for _ in 0..5_000 {
        part.mul_(1.0).unwrap();
    }
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [1.0, 1.0]);
}

#[test]
fn a_view_made_in_no_grad_is_not_written_to_outside_where_its_base_has_a_gradient() {
    let x = Tensor::from_slice(&[1.0_f64, 2.0, 3.0], &[3]).unwrap().requires_grad_(true).unwrap();
    let base = x.mul(2.0).unwrap();
    let view = autograd::no_grad(|| base.narrow(0, 0, 1)).unwrap();
    let error = view.mul_(5.0).unwrap_err().to_string();
    assert!(error.contains("make the view outside"), "{error}");
    assert_eq!(base.to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
}
