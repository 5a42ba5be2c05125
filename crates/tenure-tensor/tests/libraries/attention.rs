//! Tests of attention and its gradients.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Attention, DType, Device, Tensor};

use crate::common::{cuda, simulated};
use crate::{assert_near, numbers, tolerance, wide};

/// Batch, heads, heads of keys, queries, keys, width, width of values.
const SIZES: [[usize; 7]; 8] = [
    [2, 4, 4, 64, 64, 64, 64],
    [2, 4, 2, 100, 100, 64, 64],
    [1, 2, 1, 70, 200, 128, 128],
    [1, 2, 2, 33, 50, 40, 40],
    [2, 3, 3, 1, 77, 64, 64],
    [1, 2, 2, 130, 65, 20, 36],
    [1, 1, 1, 40, 40, 256, 256],
    [1, 1, 1, 5, 3, 7, 9],
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Causal,
    Seen,
    Added,
}

/// Returns the means, and the gradients of queries, keys and values.
fn all(inputs: [&Tensor; 3], how: &Attention<'_>) -> Vec<Tensor> {
    let leaves = inputs.map(|input| input.detach().requires_grad_(true).unwrap());
    let out = leaves[0].attention(&leaves[1], &leaves[2], how).unwrap();
    let grad = numbers(out.sizes(), DType::BF16, 9).to_dtype(out.dtype()).unwrap().to_device(out.device()).unwrap();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let grads = autograd::grad(&[&out], &leaves, &[Some(&grad)], BackwardOptions::default()).unwrap();
    [out].into_iter().chain(grads.into_iter().flatten()).collect()
}

fn check(dtype: DType, sizes: [usize; 7], kind: Kind, is_interleaved: bool) {
    let [batch, heads, kv_heads, queries, keys, width, value_width] = sizes;
    // A layer makes (batch, length, heads, width), of which heads come before lengths here.
    let numbers = |heads: usize, length: usize, width: usize, seed| {
        if is_interleaved {
            return numbers(&[batch, length, heads, width], dtype, seed).transpose(1, 2).unwrap();
        }
        numbers(&[batch, heads, length, width], dtype, seed)
    };
    let inputs =
        [numbers(heads, queries, width, 1), numbers(kv_heads, keys, width, 2), numbers(kv_heads, keys, value_width, 3)];
    let mask = match kind {
        Kind::Plain | Kind::Causal => None,
        Kind::Seen => Some(crate::numbers(&[queries, keys], DType::F32, 4).gt(-0.5).unwrap()),
        Kind::Added => Some(crate::numbers(&[batch, 1, 1, keys], dtype, 4)),
    };
    let wide_mask = mask.as_ref().map(|mask| if mask.dtype() == DType::Bool { mask.clone() } else { wide(mask) });
    let is_causal = matches!(kind, Kind::Causal);
    let how = Attention { mask: wide_mask.as_ref(), is_causal, ..Default::default() };
    let [q, k, v] = inputs.clone().map(|input| wide(&input));
    let expected = all([&q, &k, &v], &how);
    let mask = mask.map(|mask| mask.to_device(cuda()).unwrap());
    let how = Attention { mask: mask.as_ref(), is_causal, ..Default::default() };
    let [q, k, v] = inputs.map(|input| input.to_device(cuda()).unwrap());
    let found = all([&q, &k, &v], &how);
    let names = ["means", "gradient of queries", "gradient of keys", "gradient of values"];
    for (name, (found, expected)) in names.iter().zip(found.iter().zip(&expected)) {
        let what = format!("{dtype} {sizes:?} {kind:?}, interleaved {is_interleaved}: {name}");
        // With 16-bit floats, weights and their gradients are rounded too before they are multiplied.
        assert_near(&what, found, expected, 4.0 * tolerance(dtype));
    }
}

#[test]
fn attention_and_its_gradients() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // A simulated device computes on the CPU, so a few sizes are enough.
        let sizes = if simulated().is_none() { &SIZES[..] } else { &SIZES[4..] };
        for &sizes in sizes {
            for kind in [Kind::Plain, Kind::Causal, Kind::Seen, Kind::Added] {
                check(dtype, sizes, kind, false);
            }
            check(dtype, sizes, Kind::Causal, true);
        }
    }
}

#[test]
fn gradients_are_the_same_bits_every_time() {
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[2, 4, 256, 64], DType::BF16, seed).to_device(cuda()).unwrap());
    let how = Attention { is_causal: true, ..Default::default() };
    let run = || -> Vec<Vec<f64>> {
        let tensors = all([&q, &k, &v], &how);
        tensors.iter().map(|tensor| wide(&tensor.to_device(Device::CPU).unwrap()).to_vec().unwrap()).collect()
    };
    let first = run();
    (0..3).for_each(|_| assert!(run() == first));
}
