//! Tests of tensors as text.

use std::collections::BTreeMap;

use half::{bf16, f16};
use tenure_tensor::{DType, Device, Element, Tensor};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn of<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

fn scalar<T: Element>(value: T) -> Tensor {
    Tensor::from_slice(&[value], &[]).unwrap()
}

fn zeros(sizes: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(sizes, dtype, Device::CPU).unwrap()
}

/// Returns the first integers, times a factor.
fn count(sizes: &[usize], factor: f32) -> Tensor {
    let numbers: Vec<f32> = (0..sizes.iter().product::<usize>()).map(|i| i as f32 * factor).collect();
    Tensor::from_slice(&numbers, sizes).unwrap()
}

fn integers(sizes: &[usize]) -> Tensor {
    count(sizes, 1.0).to_dtype(DType::I64).unwrap()
}

fn double(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F64).unwrap()
}

/// Returns the cases of `goldens/format.py`.
fn cases() -> BTreeMap<&'static str, Tensor> {
    BTreeMap::from([
        ("whole", of(&[1.0_f32, 2.0, 3.0])),
        ("fraction", of(&[1.5_f32, -2.0, 1.0 / 3.0])),
        ("zero", of(&[0.0_f32, -0.0])),
        ("ties", of(&[1.03125_f32, 1.00005, 2.5, -0.00015])),
        ("wide_range", of(&[1.0_f32, 1e-5, 300.0])),
        ("large", of(&[1e8_f32, 1.0])),
        ("larger", of(&[1.5e10_f32, 1e9])),
        ("small", of(&[1e-8_f32])),
        ("huge", of(&[1e300_f64, 1.25e-300])),
        ("not_finite", of(&[1.5, INF, -INF, NAN])),
        ("not_finite_whole", of(&[1.0, INF, NAN])),
        ("nothing_finite", of(&[-INF, NAN])),
        ("scientific_not_finite", of(&[1e9, INF])),
        ("scalar", scalar(3.25_f32)),
        ("scalar_whole", scalar(3.0_f32)),
        ("scalar_integer", scalar(-5_i64)),
        ("scalar_true", scalar(true)),
        ("scalar_nan", scalar(NAN)),
        ("integers", Tensor::from_slice(&[1_i64, -20, 300, 4], &[2, 2]).unwrap()),
        ("int8", of(&[1_i8, -128])),
        ("bool", of(&[true, false])),
        ("half", of(&[1.5, 2.0, 65504.0].map(f16::from_f32))),
        ("bfloat16", of(&[1.0 / 3.0, 2.0].map(bf16::from_f32))),
        ("empty", zeros(&[0], DType::F32)),
        ("empty_matrix", zeros(&[2, 0], DType::F32)),
        ("empty_integers", zeros(&[0, 3], DType::I64)),
        ("three_dimensions", count(&[2, 2, 3], 0.25)),
        ("four_dimensions", integers(&[2, 1, 2, 2])),
        ("long_row", count(&[30], 1.25)),
        ("long_integers", integers(&[999])),
        ("cut", integers(&[2000])),
        ("cut_matrix", count(&[100, 100], 0.125)),
        ("cut_rows", integers(&[400, 3])),
        ("cut_columns", integers(&[2, 600])),
        ("cut_blocks", integers(&[8, 8, 4, 4])),
        ("transposed", integers(&[2, 3]).t().unwrap()),
        ("leaf", Tensor::ones(&[2], DType::F32, Device::CPU).unwrap().requires_grad_(true).unwrap()),
        ("line_full", double(&count(&[9], 0.125))),
        ("line_over", double(&count(&[8], 0.125).add(10.0).unwrap())),
    ])
}

#[test]
fn tensors_are_printed_as_pytorch_does() {
    let text = include_str!("../goldens/format.txt");
    let expected: BTreeMap<&str, &str> =
        text.split("=== ").skip(1).map(|case| case.trim_end().split_once('\n').unwrap()).collect();
    let cases = cases();
    assert_eq!(cases.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, tensor) in cases {
        assert_eq!(tensor.to_string(), expected[name], "{name}");
    }
}

#[test]
fn a_computed_tensor_names_its_operation() {
    let leaf = of(&[1.0_f32, 2.0]).requires_grad_(true).unwrap();
    assert_eq!(leaf.mul(2).unwrap().to_string(), "tensor([2., 4.], grad_fn=<mul>)");
}

#[test]
fn debug_is_one_line() {
    let turned = zeros(&[2, 3], DType::BF16).t().unwrap();
    assert_eq!(format!("{turned:?}"), "Tensor(bfloat16 [3, 2], strides [1, 3], cpu)");
}
