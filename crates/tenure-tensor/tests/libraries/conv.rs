//! Tests of convolutions.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Conv, DType, MemoryFormat, Result, Tensor, precision};

use crate::common::cuda;
use crate::{assert_near, numbers, tolerance, wide};

struct Case {
    input: &'static [usize],
    weight: &'static [usize],
    how: Conv<'static>,
}

const CASES: [Case; 9] = [
    Case {
        input: &[2, 6, 20],
        weight: &[8, 6, 3],
        how: Conv { stride: &[1], padding: &[1], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[2, 8, 9, 11],
        weight: &[16, 8, 3, 3],
        how: Conv { stride: &[1], padding: &[1], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[2, 3, 33, 31],
        weight: &[8, 3, 7, 7],
        how: Conv { stride: &[2], padding: &[3], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[4, 64, 8, 8],
        weight: &[32, 64, 1, 1],
        how: Conv { stride: &[1], padding: &[0], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[4, 16, 9, 9],
        weight: &[8, 16, 1, 1],
        how: Conv { stride: &[2], padding: &[0], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[2, 12, 10, 9],
        weight: &[8, 3, 3, 2],
        how: Conv { stride: &[1, 2], padding: &[2, 0], dilation: &[2, 1], groups: 4 },
    },
    Case {
        input: &[2, 8, 12, 12],
        weight: &[8, 1, 3, 3],
        how: Conv { stride: &[1], padding: &[1], dilation: &[1], groups: 8 },
    },
    Case {
        input: &[2, 4, 5, 6, 7],
        weight: &[6, 4, 3, 2, 3],
        how: Conv { stride: &[2, 1, 1], padding: &[1, 0, 1], dilation: &[1], groups: 1 },
    },
    Case {
        input: &[1, 5, 4, 4],
        weight: &[7, 5, 4, 4],
        how: Conv { stride: &[1], padding: &[0], dilation: &[1], groups: 1 },
    },
];

/// Returns the result, and the gradients of input, weight and bias for a gradient of the result.
fn all(function: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>, inputs: &[Tensor; 3], seed: u64) -> Vec<Tensor> {
    let leaves = inputs.clone().map(|input| input.detach().requires_grad_(true).unwrap());
    let out = function(&leaves[0], &leaves[1], &leaves[2]).unwrap();
    // The numbers are the same for all dtypes and devices.
    let grad = numbers(out.sizes(), DType::BF16, seed).to_dtype(out.dtype()).unwrap().to_device(out.device()).unwrap();
    let grads = autograd::grad(&[&out], &[&leaves[0], &leaves[1]], &[Some(&grad)], BackwardOptions::default()).unwrap();
    [out].into_iter().chain(grads.into_iter().flatten()).collect()
}

fn check(
    what: &str,
    inputs: &[Tensor; 3],
    format: Option<MemoryFormat>,
    call: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) {
    let expected = all(&call, &inputs.clone().map(|input| wide(&input)), 9);
    let there = inputs.clone().map(|input| input.to_device(cuda()).unwrap());
    let there = match format {
        Some(format) => {
            let [input, weight, bias] = &there;
            [input.contiguous_in(format).unwrap(), weight.contiguous_in(format).unwrap(), bias.clone()]
        }
        None => there,
    };
    let found = all(&call, &there, 9);
    for (name, (found, expected)) in
        ["result", "input's gradient", "weight's gradient"].iter().zip(found.iter().zip(&expected))
    {
        // There is one more rounding: the bias is added to a rounded result.
        assert_near(&format!("{what}: {name}"), found, expected, 2.0 * tolerance(inputs[0].dtype()));
        if let Some(format) = format {
            assert!(found.layout().is_contiguous_in(format), "{what}: {name} lies another way: {:?}", found.strides());
        }
    }
}

fn every_case(call: impl Fn(&Case, &Tensor, &Tensor, &Tensor) -> Result<Tensor>, is_transposed: bool) {
    precision::allow_tf32_in_convolutions(false);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for case in &CASES {
            let outputs = if is_transposed { case.weight[1] * case.how.groups } else { case.weight[0] };
            let mut input = case.input.to_vec();
            if is_transposed {
                input[1] = case.weight[0];
            }
            let inputs = [numbers(&input, dtype, 1), numbers(case.weight, dtype, 2), numbers(&[outputs], dtype, 3)];
            let last = match input.len() {
                4 => Some(MemoryFormat::ChannelsLast2d),
                5 => Some(MemoryFormat::ChannelsLast3d),
                _ => None,
            };
            for format in if last.is_some() { vec![None, last] } else { vec![None] } {
                let what = format!("{dtype} {input:?} with {:?}, {:?}, {format:?}", case.weight, case.how);
                check(&what, &inputs, format, |input, weight, bias| call(case, input, weight, bias));
            }
        }
    }
}

#[test]
fn convolutions_and_their_gradients() {
    every_case(|case, input, weight, bias| input.conv(weight, Some(bias), &case.how), false);
    every_case(|case, input, weight, _| input.conv(weight, None, &case.how), false);
}

#[test]
fn transposed_convolutions_and_their_gradients() {
    every_case(|case, input, weight, bias| input.conv_transpose(weight, Some(bias), &case.how, &[0]), true);
}

/// Returns numbers on the device, with channels last.
fn there(sizes: &[usize]) -> Tensor {
    let tensor = numbers(sizes, DType::BF16, 1).to_device(cuda()).unwrap();
    tensor.contiguous_in(MemoryFormat::ChannelsLast2d).unwrap()
}

#[test]
fn channels_stay_last() {
    let input = there(&[2, 8, 6, 6]);
    let weight = there(&[16, 8, 3, 3]);
    let out = input.conv(&weight, None, &Conv::default()).unwrap();
    assert!(out.layout().is_contiguous_in(MemoryFormat::ChannelsLast2d));
    // If one operand has its channels last, so has the result.
    let out = input.contiguous().unwrap().conv(&weight, None, &Conv::default()).unwrap();
    assert!(out.layout().is_contiguous_in(MemoryFormat::ChannelsLast2d));
    let out = input.contiguous().unwrap().conv(&weight.contiguous().unwrap(), None, &Conv::default()).unwrap();
    assert!(out.is_contiguous());
}
