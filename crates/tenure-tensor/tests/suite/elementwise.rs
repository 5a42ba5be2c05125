//! Tests of elementwise operations over any sizes and strides, against a plain loop.

use half::bf16;
use proptest::prelude::*;
use tenure_tensor::{DType, Device, MemoryFormat, Tensor, TensorError, threads};

use crate::views::views;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_operands_of_any_layout_and_dtype((_, views) in views(2)) {
        let a = views[0].tensor(|i| i as f32);
        let b = views[1].tensor(|i| (i % 200) as i16);
        let sum = a.add(&b).unwrap();
        let sizes = sum.sizes().to_vec();
        let expected: Vec<f32> = (0..sum.numel())
            .map(|at| views[0].place(at, &sizes) as f32 + (views[1].place(at, &sizes) % 200) as f32)
            .collect();
        prop_assert_eq!(sum.to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn a_choice_of_any_layouts((_, views) in views(3)) {
        let condition = views[0].tensor(|i| i % 3 == 0);
        let a = views[1].tensor(|i| i as i64);
        let b = views[2].tensor(|i| -(i as i64));
        let chosen = condition.where_(&a, &b).unwrap();
        let sizes = chosen.sizes().to_vec();
        let place = |view: usize, at| views[view].place(at, &sizes) as i64;
        let expected: Vec<i64> =
            (0..chosen.numel()).map(|at| if place(0, at) % 3 == 0 { place(1, at) } else { -place(2, at) }).collect();
        prop_assert_eq!(chosen.to_vec::<i64>().unwrap(), expected);
    }

    #[test]
    fn a_copy_of_any_layout((_, views) in views(1)) {
        let source = views[0].tensor(|i| i as i16);
        let expected: Vec<i16> =
            (0..source.numel()).map(|at| views[0].place(at, &views[0].sizes) as i16).collect();
        prop_assert_eq!(&source.to_vec::<i16>().unwrap(), &expected);
        prop_assert_eq!(&source.copy().unwrap().to_vec::<i16>().unwrap(), &expected);
        let wide: Vec<f64> = expected.iter().map(|value| f64::from(*value)).collect();
        prop_assert_eq!(source.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), wide);
        let narrow: Vec<bf16> = expected.iter().map(|value| bf16::from_f32(f32::from(*value))).collect();
        prop_assert_eq!(source.to_dtype(DType::BF16).unwrap().to_vec::<bf16>().unwrap(), narrow);
    }
}

#[test]
fn large_matrices_are_transposed() {
    for (rows, columns) in [(1000, 77), (33, 2048), (500, 500)] {
        let matrix: Vec<i32> = (0..rows * columns).map(|i| i as i32).collect();
        let transposed = Tensor::from_slice(&matrix, &[rows, columns]).unwrap().transpose(0, 1).unwrap();
        let expected: Vec<i32> = (0..rows * columns).map(|at| (at % rows * columns + at / rows) as i32).collect();
        assert_eq!(transposed.contiguous().unwrap().to_vec::<i32>().unwrap(), expected);
    }
}

#[test]
fn channels_stay_last() {
    let images: Vec<f32> = (0..2 * 40 * 24 * 20).map(|i| i as f32).collect();
    let images = Tensor::from_slice(&images, &[2, 40, 24, 20]).unwrap();
    let last = images.contiguous_in(MemoryFormat::ChannelsLast2d).unwrap();
    assert!(last.layout().is_contiguous_in(MemoryFormat::ChannelsLast2d));
    assert_eq!(last.to_vec::<f32>().unwrap(), images.to_vec::<f32>().unwrap());
    for derived in [last.mul(2).unwrap(), last.copy().unwrap(), last.relu().unwrap(), last.add(&images).unwrap()] {
        assert!(derived.layout().is_contiguous_in(MemoryFormat::ChannelsLast2d));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let x: Vec<f32> = (0..300_000).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let x = Tensor::from_slice(&x, &[300, 1000]).unwrap();
    let compute =
        || x.gelu().unwrap().add(&x.transpose(0, 1).unwrap().contiguous().unwrap().view(&[300, 1000]).unwrap());
    let before = threads::threads();
    let results = [1, 2, 3].map(|count| {
        threads::set_threads(count).unwrap();
        compute().unwrap().to_vec::<f32>().unwrap()
    });
    threads::set_threads(before).unwrap();
    assert!(results[0] == results[1] && results[1] == results[2]);
}

#[test]
fn operators_chain() {
    let a = Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap();
    let b = Tensor::from_slice(&[3.0_f64, 5.0], &[2]).unwrap();
    let chained = (&a * &b + &a - (1.0 / &b).unwrap()).unwrap();
    assert_eq!(chained.to_vec::<f64>().unwrap(), [3.0 + 1.0 - 1.0 / 3.0, 10.0 + 2.0 - 0.2]);
    assert_eq!((-(&b % &a).unwrap()).unwrap().to_vec::<f64>().unwrap(), [-0.0, -1.0]);
    let mask = (a.gt(1.5).unwrap() & !b.gt(9.0).unwrap()).unwrap();
    assert_eq!(mask.to_vec::<bool>().unwrap(), [false, true]);
}

fn said(refused: Result<Tensor, TensorError>) -> String {
    refused.unwrap_err().to_string()
}

#[test]
fn refusals_say_what_to_do() {
    let mask = Tensor::ones(&[2], DType::Bool, Device::CPU).unwrap();
    let three = Tensor::ones(&[3], DType::F32, Device::CPU).unwrap();
    let zero = Tensor::zeros(&[3], DType::I32, Device::CPU).unwrap();
    for (refused, advice) in [
        (mask.sub(&mask), "logical_xor()"),
        (mask.neg(), "logical_not()"),
        (mask.add(&three), "at dimension 1 from the end, 2 and 3 differ"),
        (three.where_(1, 2), "the condition must be bool"),
        (zero.div_floor(&zero), "divided by zero"),
        (zero.pow(-1), "convert to a floating dtype"),
        (zero.add_scaled(&zero, 0.5), "to_dtype()"),
    ] {
        let said = said(refused);
        assert!(said.contains(advice), "{said}");
    }
    assert!(three.to_device(Device::cuda(200)).is_err());
}

#[test]
fn whole_tensors_compare() {
    let a = Tensor::from_slice(&[1.0_f32, 2.0], &[2]).unwrap();
    let b = a.add(1e-6).unwrap();
    assert!(a.allclose(&b, 1e-5, 1e-8).unwrap() && !a.equal(&b).unwrap() && a.equal(&a).unwrap());
    assert!(!a.equal(&a.view(&[2, 1]).unwrap()).unwrap());
    assert!(a.equal(&a.to_dtype(DType::F64).unwrap()).unwrap());
}

#[test]
fn in_place_is_the_same_as_not() {
    type Fresh = fn(&[Tensor]) -> Result<Tensor, TensorError>;
    type InPlace = fn(&[Tensor]) -> Result<(), TensorError>;
    let pairs: [(Fresh, InPlace); 5] = [
        (|x| x[0].add_scaled(&x[1], -0.3), |x| x[0].add_scaled_(&x[1], -0.3)),
        (|x| x[0].addcmul(&x[1], &x[2], 0.5), |x| x[0].addcmul_(&x[1], &x[2], 0.5)),
        (|x| x[0].addcdiv(&x[1], &x[2], 0.5), |x| x[0].addcdiv_(&x[1], &x[2], 0.5)),
        (|x| x[0].lerp(&x[1], &x[2]), |x| x[0].lerp_(&x[1], &x[2])),
        (|x| x[0].lerp(&x[1], 0.25), |x| x[0].lerp_(&x[1], 0.25)),
    ];
    let leaves = || {
        [(3.0, vec![4, 3]), (2.0, vec![3]), (0.5, vec![4, 1])].map(|(first, sizes)| {
            let values: Vec<f64> = (0..sizes.iter().product()).map(|i| first + i as f64).collect();
            Tensor::from_slice(&values, &sizes).unwrap().requires_grad_(true).unwrap()
        })
    };
    let result = |leaves: &[Tensor], result: Tensor| {
        result.sum_all().unwrap().backward().unwrap();
        let grads = leaves.iter().map(|leaf| leaf.grad().map(|grad| grad.to_vec::<f64>().unwrap()));
        (result.to_vec::<f64>().unwrap(), grads.collect::<Vec<_>>())
    };
    for (fresh, in_place) in pairs {
        let one = leaves();
        let two = leaves();
        let expected = result(&one, fresh(&one).unwrap());
        // The target is transposed in memory, so that the write is to a view.
        let target = two[0].transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
        in_place(&[target.clone(), two[1].clone(), two[2].clone()]).unwrap();
        assert_eq!(result(&two, target), expected);
    }
}

#[test]
fn a_remainder_of_zero_has_the_divisors_sign_and_a_nan_has_one_of_its_own() {
    let dividends = Tensor::from_slice(&[6.0_f64, -6.0, 6.0, -6.0, -0.0, 5.0], &[6]).unwrap();
    let divisors = Tensor::from_slice(&[3.0_f64, 3.0, -3.0, -3.0, 2.0, -3.0], &[6]).unwrap();
    let is_negative = [false, false, true, true, false, true];
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let [dividends, divisors] = [&dividends, &divisors].map(|tensor| tensor.to_dtype(dtype).unwrap());
        let remainders = dividends.remainder(&divisors).unwrap();
        assert_eq!(remainders.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]);
        assert_eq!(remainders.signbit().unwrap().to_vec::<bool>().unwrap(), is_negative, "{dtype}");
    }
    let nans = Tensor::from_slice(&[-f32::NAN, f32::NAN, -0.0, -3.0, f32::NEG_INFINITY], &[5]).unwrap();
    assert_eq!(nans.signbit().unwrap().to_vec::<bool>().unwrap(), [true, false, true, true, true]);
}
