//! Tests that attention gives the results of softmax, dropout and products of all weights, without storing the weights.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{cuda, in_use, in_use_alone};
use proptest::prelude::*;
use tenure_core::{AllocatorScope, CpuAllocator, MemoryReporter, MemoryUse, OutOfMemory};
use tenure_device::memory;
use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::cuda::Captured;
use tenure_tensor::random::{DefaultGenerator, Generator};
use tenure_tensor::{Attention, DType, Device, Result, Tensor};

fn fused([q, k, v]: &[Tensor; 3], how: &Attention<'_>) -> Result<Tensor> {
    q.attention(k, v, how)
}

/// Computes attention by operations on all weights at once.
fn composed([q, k, v]: &[Tensor; 3], how: &Attention<'_>) -> Result<Tensor> {
    let group = q.sizes()[1] / k.sizes()[1];
    let width = q.sizes()[3];
    let repeated = |x: &Tensor| -> Result<Tensor> {
        let [batch, heads, keys, width] = [0, 1, 2, 3].map(|dim| x.sizes()[dim] as isize);
        x.unsqueeze(2)?.expand(&[batch, heads, group as isize, keys, width])?.flatten(1, 2)
    };
    let mut scores = q.matmul(&repeated(k)?.transpose(2, 3)?)?.mul(1.0 / (width as f64).sqrt())?;
    let mut seen = Tensor::ones(scores.sizes(), DType::Bool, q.device())?;
    if how.is_causal {
        seen = seen.tril(0)?;
    }
    match how.mask {
        Some(mask) if mask.dtype() == DType::Bool => seen = mask.where_(&seen, false)?,
        Some(mask) => scores = scores.add(mask)?,
        None => {}
    }
    // A query that sees no key has weights of zero.
    let weights = seen.where_(&seen.where_(&scores, -1e30)?.softmax(-1)?, 0.0)?;
    weights.dropout(how.dropout, true)?.matmul(&repeated(v)?)
}

/// The sizes and options of an attention.
#[derive(Clone, Debug)]
struct Asked {
    batch: usize,
    kv_heads: usize,
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
    mask: Option<DType>,
    is_causal: bool,
    dropout: f64,
    seed: u64,
}

impl Asked {
    /// Returns queries, keys and values, with heads within rows, as a projection gives them.
    fn inputs(&self, dtype: DType, device: Device) -> [Tensor; 3] {
        let Self { batch, kv_heads, group, queries, keys, width, value_width, .. } = *self;
        let generator = Generator::new(self.seed);
        [(queries, kv_heads * group, width), (keys, kv_heads, width), (keys, kv_heads, value_width)].map(
            |(rows, heads, width)| {
                let drawn = Tensor::randn(&[batch, rows, heads, width], DType::F32, Device::CPU, &generator).unwrap();
                // Numbers that a 16-bit float can hold.
                let drawn = drawn.to_dtype(DType::BF16).unwrap().to_dtype(dtype).unwrap().to_device(device).unwrap();
                drawn.requires_grad_(true).unwrap().transpose(1, 2).unwrap()
            },
        )
    }

    fn mask(&self, dtype: DType, device: Device) -> Option<Tensor> {
        let drawn = Tensor::randn(&[self.queries, self.keys], DType::F32, Device::CPU, &Generator::new(self.seed + 1));
        let mask = match self.mask? {
            DType::Bool => drawn.unwrap().gt(-0.5).unwrap(),
            _ => drawn.unwrap().to_dtype(DType::BF16).unwrap().to_dtype(dtype).unwrap(),
        };
        Some(mask.to_device(device).unwrap())
    }

    /// Returns the means and the gradients, from newly drawn numbers.
    fn run(
        &self,
        dtype: DType,
        device: Device,
        attend: impl Fn(&[Tensor; 3], &Attention<'_>) -> Result<Tensor>,
    ) -> Vec<Vec<f64>> {
        let _numbers = DefaultGenerator::enter(Generator::new(self.seed + 2));
        let inputs = self.inputs(dtype, device);
        let mask = self.mask(dtype, device);
        let how = Attention { mask: mask.as_ref(), is_causal: self.is_causal, scale: None, dropout: self.dropout };
        let out = attend(&inputs, &how).unwrap();
        let grad = Tensor::randn(out.sizes(), DType::F32, Device::CPU, &Generator::new(self.seed + 3)).unwrap();
        let grad = grad.to_dtype(DType::BF16).unwrap().to_dtype(dtype).unwrap().to_device(device).unwrap();
        let grads = autograd::grad(&[&out], &inputs.each_ref(), &[Some(&grad)], BackwardOptions::default()).unwrap();
        let all = [Some(out)].into_iter().chain(grads);
        all.map(|tensor| numbers(&tensor.unwrap())).collect()
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.detach().to_device(Device::CPU).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn asked() -> impl Strategy<Value = Asked> {
    let sizes = (1..3_usize, 1..3_usize, 1..3_usize, 1..150_usize, 1..210_usize, 1..20_usize, 1..20_usize);
    let mask = prop::sample::select(vec![None, Some(DType::Bool), Some(DType::F32)]);
    let dropout = prop::sample::select(vec![0.0, 0.1, 0.5, 1.0]);
    (sizes, mask, any::<bool>(), dropout, 0..1000_u64).prop_map(|(sizes, mask, is_causal, dropout, seed)| {
        let (batch, kv_heads, group, queries, keys, width, value_width) = sizes;
        Asked { batch, kv_heads, group, queries, keys, width, value_width, mask, is_causal, dropout, seed }
    })
}

const TOLERANCES: [(DType, f64); 4] = [(DType::F64, 1e-9), (DType::F32, 1e-4), (DType::BF16, 2e-2), (DType::F16, 4e-3)];

/// Compares both devices.
fn check(asked: &Asked, tolerances: &[(DType, f64)]) -> std::result::Result<(), TestCaseError> {
    let _in_use = in_use();
    let expected = asked.run(DType::F64, Device::CPU, composed);
    for &(dtype, tolerance) in tolerances {
        for device in [Device::CPU, cuda()] {
            let found = asked.run(dtype, device, fused);
            for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let largest = expected.iter().fold(1.0_f64, |largest, value| largest.max(value.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    let is_near = (found - expected).abs() <= tolerance * largest;
                    prop_assert!(is_near, "{dtype} on {device}, {part}: {found}, expected {expected}");
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// There are more queries and keys than in a block, and the same weights are dropped.
    #[test]
    fn blocks_are_what_all_weights_at_once_are(asked in asked()) {
        check(&asked, &TOLERANCES)?;
    }
}

/// 16-bit floats use matrix units up to a width of 256. Rows are aligned or not.
#[test]
fn wide_heads_of_halves_are_what_all_weights_at_once_are() {
    let [.., bf16, f16] = TOLERANCES;
    let wide = [(64, 64, f16, 131, 68), (80, 35, bf16, 70, 135), (128, 96, bf16, 131, 68), (256, 200, f16, 70, 135)];
    for (width, value_width, tolerance, queries, keys) in wide.into_iter().chain([(264, 8, bf16, 70, 68)]) {
        let mask = (queries < keys).then_some(DType::Bool);
        check(&Asked { batch: 1, queries, keys, width, value_width, mask, ..SOME }, &[tolerance]).unwrap();
    }
}

const SOME: Asked = Asked {
    batch: 2,
    kv_heads: 2,
    group: 2,
    queries: 37,
    keys: 70,
    width: 8,
    value_width: 5,
    mask: Some(DType::Bool),
    is_causal: true,
    dropout: 0.3,
    seed: 11,
};

fn gradients_of_gradients(attend: fn(&[Tensor; 3], &Attention<'_>) -> Result<Tensor>) -> Vec<f64> {
    let _numbers = DefaultGenerator::enter(Generator::new(5));
    let inputs = SOME.inputs(DType::F64, Device::CPU);
    let mask = SOME.mask(DType::F64, Device::CPU);
    let how = Attention { mask: mask.as_ref(), is_causal: true, scale: None, dropout: 0.3 };
    let out = attend(&inputs, &how).unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let grads = autograd::grad(&[&out.mul(&out).unwrap()], &inputs.each_ref(), &[Some(&out)], options).unwrap();
    let sums = grads
        .into_iter()
        .map(|grad| grad.as_ref().unwrap().mul(grad.as_ref().unwrap())?.sum_all())
        .collect::<Result<Vec<_>>>()
        .unwrap();
    let grads = autograd::grad(&sums.iter().collect::<Vec<_>>(), &inputs.each_ref(), &[], BackwardOptions::default());
    grads.unwrap().into_iter().flat_map(|grad| numbers(&grad.unwrap())).collect::<Vec<_>>()
}

#[test]
fn gradients_of_gradients_drop_the_same() {
    for (found, expected) in gradients_of_gradients(fused).iter().zip(gradients_of_gradients(composed)) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
    }
}

fn gradients_of_mask(attend: fn(&[Tensor; 3], &Attention<'_>) -> Result<Tensor>) -> Vec<f64> {
    let _numbers = DefaultGenerator::enter(Generator::new(5));
    let asked = Asked { mask: Some(DType::F64), is_causal: false, ..SOME };
    let mask = asked.mask(DType::F64, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let how = Attention { mask: Some(&mask), dropout: 0.3, ..Attention::default() };
    let out = attend(&asked.inputs(DType::F64, Device::CPU), &how).unwrap();
    let grads = autograd::grad(&[&out], &[&mask], &[Some(&out.detach())], BackwardOptions::default()).unwrap();
    numbers(grads[0].as_ref().unwrap())
}

#[test]
fn a_masks_gradient_drops_the_same() {
    for (found, expected) in gradients_of_mask(fused).iter().zip(gradients_of_mask(composed)) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
    }
}

#[test]
fn recomputation_drops_the_same_weights() {
    assert_eq!(
        SOME.run(DType::F32, Device::CPU, |[q, k, v], how| {
            let mask = how.mask.cloned();
            let dropout = how.dropout;
            Ok(autograd::checkpoint(&[q, k, v], move |x| {
                let how = Attention { mask: mask.as_ref(), is_causal: true, scale: None, dropout };
                Ok(vec![x[0].attention(&x[1], &x[2], &how)?])
            })?
            .remove(0))
        }),
        SOME.run(DType::F32, Device::CPU, fused)
    );
}

#[test]
fn a_replay_drops_what_the_work_would_have_dropped() {
    let _in_use = in_use_alone();
    let _numbers = DefaultGenerator::enter(Generator::new(3));
    let inputs = SOME.inputs(DType::F32, cuda());
    let mask = SOME.mask(DType::F32, cuda());
    for mask in [None, mask.as_ref()] {
        let how = Attention { mask, is_causal: true, scale: None, dropout: 0.3 };
        let work = || -> Result<Vec<Tensor>> {
            let out = fused(&inputs, &how)?;
            let grads =
                autograd::grad(&[&out], &inputs.each_ref(), &[Some(&out.detach())], BackwardOptions::default())?;
            Ok([Some(out.detach())].into_iter().chain(grads).flatten().collect())
        };
        let begin = tenure_tensor::random::default_generator(cuda()).state();
        let expected: Vec<_> = (0..3).map(|_| work().unwrap().iter().map(numbers).collect::<Vec<_>>()).collect();
        assert_ne!(expected[0], expected[1]);
        tenure_tensor::random::default_generator(cuda()).set_state(begin);
        let (mut captured, out) = Captured::new(cuda(), work).unwrap();
        for expected in expected {
            captured.replay().unwrap();
            assert_eq!(out.iter().map(numbers).collect::<Vec<_>>(), expected);
        }
    }
}

/// A reporter that records the peak of allocated bytes.
#[derive(Default)]
struct Peak(AtomicUsize);

impl MemoryReporter for Peak {
    fn memory_use(&self, event: &MemoryUse) {
        self.0.fetch_max(event.total_allocated, Ordering::Relaxed);
    }

    fn out_of_memory(&self, _: &OutOfMemory) {}
}

/// Returns the bytes held for backward, and the peak bytes of forward and backward besides the inputs.
fn bytes(dtype: DType, device: Device, dropout: f64) -> [usize; 2] {
    let long = Asked { batch: 1, group: 1, queries: 512, keys: 512, width: 64, value_width: 64, ..SOME };
    let host = Arc::new(CpuAllocator::new());
    let peak = Arc::new(Peak::default());
    host.set_reporter(Some(peak.clone()));
    let inputs = long.inputs(dtype, device);
    let statistics = || memory::device(0).unwrap().allocator().statistics().all.allocated_bytes;
    let _scope = device.is_cpu().then(|| AllocatorScope::enter(host.clone()));
    let now = || if device.is_cpu() { host.allocated_bytes() } else { statistics().current as usize };
    if !device.is_cpu() {
        memory::device(0).unwrap().allocator().reset_peak_statistics();
    }
    let before = now();
    let out = fused(&inputs, &Attention { is_causal: true, dropout, ..Attention::default() }).unwrap();
    let held = now() - before;
    drop(autograd::grad(&[&out], &inputs.each_ref(), &[Some(&out.detach())], BackwardOptions::default()).unwrap());
    let peak = if device.is_cpu() { peak.0.load(Ordering::Relaxed) } else { statistics().peak as usize };
    [held, peak - before]
}

#[test]
fn no_weights_are_held() {
    let _in_use = in_use_alone();
    cuda();
    for device in [Device::CPU, Device::cuda(0)] {
        for dtype in [DType::F32, DType::BF16] {
            let [without, with] = [0.0, 0.1].map(|dropout| bytes(dtype, device, dropout));
            let is_no_more = with[0] <= without[0] && with[1] <= without[1];
            assert!(is_no_more, "{dtype} on {device}: {with:?} bytes, {without:?} without dropout");
        }
    }
}
