//! Autocast: the dtypes that operations choose, and the gradients that come back from them.

use tenure_tensor::autocast::{self, Autocast};
use tenure_tensor::autograd;
use tenure_tensor::ops::LossReduction;
use tenure_tensor::{Conv, DType, Device, Tensor};

fn matrix() -> Tensor {
    Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap().requires_grad_(true).unwrap()
}

#[test]
fn products_are_lower_and_gradients_of_the_parameters_own_dtype() {
    let x = matrix();
    let weight = matrix();
    let bias = Tensor::zeros(&[2], DType::F32, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let y = {
        let _autocast = Autocast::enter(DType::BF16);
        let y = x.linear(&weight, Some(&bias)).unwrap();
        assert_eq!(y.dtype(), DType::BF16);
        assert_eq!(x.bmm_of_one(&weight).dtype(), DType::BF16);
        let images = x.view(&[1, 1, 2, 2]).unwrap();
        assert_eq!(images.conv(&images, None, &Conv::default()).unwrap().dtype(), DType::BF16);
        y
    };
    assert_eq!(x.matmul(&weight).unwrap().dtype(), DType::F32);
    y.sum_all().unwrap().backward().unwrap();
    for tensor in [&x, &weight, &bias] {
        assert_eq!(tensor.grad().unwrap().dtype(), DType::F32);
    }
    assert_eq!(weight.grad().unwrap().to_vec::<f32>().unwrap(), [4.0, 6.0, 4.0, 6.0]);
}

trait Bmm {
    fn bmm_of_one(&self, other: &Tensor) -> Tensor;
}

impl Bmm for Tensor {
    fn bmm_of_one(&self, other: &Tensor) -> Tensor {
        self.view(&[1, 2, 2]).unwrap().bmm(&other.view(&[1, 2, 2]).unwrap()).unwrap()
    }
}

#[test]
fn operands_of_two_dtypes_meet_in_the_lower() {
    let x = matrix();
    let half = x.to_dtype(DType::BF16).unwrap();
    assert!(x.matmul(&half).is_err());
    let _autocast = Autocast::enter(DType::BF16);
    assert_eq!(x.matmul(&half).unwrap().dtype(), DType::BF16);
    let double = x.to_dtype(DType::F64).unwrap();
    assert_eq!(double.matmul(&double).unwrap().dtype(), DType::F64);
}

#[test]
fn a_parameter_is_converted_once_until_it_changes() {
    let weight = matrix();
    let place = || autocast::lower(&weight).unwrap().storage().generation();
    let outer = Autocast::enter(DType::BF16);
    let first = place();
    {
        let _inner = Autocast::enter(DType::BF16);
        assert_eq!(place(), first);
    }
    assert_eq!(place(), first);
    let inside = autograd::no_grad(|| autocast::lower(&weight).unwrap());
    assert!(!inside.requires_grad() && autocast::lower(&weight).unwrap().requires_grad());
    autograd::no_grad(|| weight.mul_(2.0)).unwrap();
    assert_ne!(place(), first);
    assert_eq!(autocast::lower(&weight).unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()[0], 2.0);
    drop(outer);
    assert_eq!(place(), weight.storage().generation());
}

#[test]
fn gradients_of_all_uses_of_a_parameter_meet() {
    let x = matrix().detach();
    let weight = matrix();
    let _autocast = Autocast::enter(DType::BF16);
    let y = x.matmul(&weight).unwrap().add(&x.matmul(&weight).unwrap()).unwrap();
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(weight.grad().unwrap().to_vec::<f32>().unwrap(), [8.0, 8.0, 12.0, 12.0]);
}

#[test]
fn scopes_nest_and_none_turns_it_off() {
    let _outer = Autocast::enter(DType::F16);
    {
        let _inner = Autocast::enter(None);
        assert_eq!(matrix().matmul(&matrix()).unwrap().dtype(), DType::F32);
    }
    assert_eq!(autocast::dtype(), Some(DType::F16));
    assert_eq!(matrix().matmul(&matrix()).unwrap().dtype(), DType::F16);
}

#[test]
fn precise_operations_are_raised_and_those_on_many_tensors_are_as_wide_as_the_widest() {
    let x = matrix();
    let half = x.to_dtype(DType::BF16).unwrap();
    assert_eq!(autocast::raise(&half).unwrap().dtype(), DType::BF16);
    assert_eq!(half.exp().unwrap().dtype(), DType::BF16);
    let _autocast = Autocast::enter(DType::BF16);
    assert_eq!(autocast::raise(&half).unwrap().dtype(), DType::F32);
    let functions = [half.exp(), half.pow(2), half.softmax(0), half.softplus(1.0, 20.0)];
    let others =
        [half.layer_norm(&[2], None, None, 1e-5), half.mse_loss(&x, LossReduction::Mean), half.sum(&[0], false)];
    for raised in functions.into_iter().chain(others) {
        assert_eq!(raised.unwrap().dtype(), DType::F32);
    }
    assert_eq!(half.tanh().unwrap().dtype(), DType::BF16);
    let widest = autocast::widest([&half, &x]).unwrap();
    assert!(widest.iter().all(|tensor| tensor.dtype() == DType::F32));
    assert_eq!(autocast::widest([&half, &half]).unwrap()[0].dtype(), DType::BF16);
}

#[test]
fn a_checkpoint_autocasts_the_same_again() {
    let gradient = |is_checkpoint: bool| {
        let x = matrix();
        let weight = matrix();
        let inner = weight.clone();
        let function = move |x: &[Tensor]| {
            let hidden = x[0].matmul(&inner)?;
            Ok(vec![hidden.mul(&hidden)?.matmul(&inner)?])
        };
        let y = {
            let _autocast = Autocast::enter(DType::BF16);
            if is_checkpoint { autograd::checkpoint(&[&x], function) } else { function(&[x]) }
        };
        y.unwrap().remove(0).to_dtype(DType::F32).unwrap().sum_all().unwrap().backward().unwrap();
        weight.grad().unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(true), gradient(false));
}

#[test]
fn a_batch_norm_takes_what_a_convolution_gives() {
    let images = matrix().view(&[1, 1, 2, 2]).unwrap();
    let ones = Tensor::ones(&[1], DType::F32, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let weight = ones.view(&[1, 1, 1, 1]).unwrap();
    let normed = {
        let _autocast = Autocast::enter(DType::BF16);
        let out = images.conv(&weight, None, &Conv::default()).unwrap();
        out.batch_norm(None, Some(&ones), Some(&ones), true, 0.1, 1e-5).unwrap()
    };
    assert_eq!(normed.dtype(), DType::BF16);
    normed.sum_all().unwrap().backward().unwrap();
    assert_eq!(ones.grad().unwrap().dtype(), DType::F32);
}

#[test]
fn guards_that_go_out_of_order_leave_the_others() {
    let first = Autocast::enter(DType::BF16);
    let second = Autocast::enter(DType::F16);
    drop(first);
    assert_eq!(autocast::dtype(), Some(DType::F16));
    let third = Autocast::enter(None);
    drop(second);
    assert_eq!(autocast::dtype(), None);
    let fourth = Autocast::enter(DType::BF16);
    drop(third);
    assert_eq!(autocast::dtype(), Some(DType::BF16));
    drop(fourth);
    assert_eq!(autocast::dtype(), None);
}
