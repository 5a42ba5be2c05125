//! Tests of how many kernels operations launch, counted on a simulated device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../src/cuda/runs.rs"]
mod runs;

use std::sync::Arc;

use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver, SimKernel};
use tenure_tensor::autograd::{self, BackwardOptions, no_grad};
use tenure_tensor::ops::BatchNormParameters;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor};

const CUDA: Device = Device::cuda(0);

#[test]
fn a_batch_norm_is_three_kernels_there_and_three_back() {
    let driver = Arc::new(SimDriver::new(SimConfig::default()));
    memory::install(driver.clone(), MemoryConfig::default()).unwrap();
    let count = |work: &dyn Fn() -> Result<()>| {
        let stream = memory::device(0).unwrap().streams().current_id();
        let number = || driver.launch(SimKernel::new("mark", stream)).unwrap().number;
        let before = number();
        work().unwrap();
        number() - before - 1
    };
    let generator = Generator::new(0);
    let random = |sizes: &[usize]| {
        let tensor = Tensor::randn(sizes, DType::F32, Device::CPU, &generator).unwrap();
        tensor.to_dtype(DType::BF16).unwrap().to_device(CUDA).unwrap()
    };
    let x = random(&[2, 8, 3, 3]);
    let grad = random(&[2, 8, 3, 3]);
    let carried = random(&[2, 8, 3, 3]);
    let [weight, bias] = [0, 1].map(|_| random(&[8]).requires_grad_(true).unwrap());
    let mean = random(&[8]);
    let variance = Tensor::ones(&[8], DType::BF16, CUDA).unwrap();
    let x = x.requires_grad_(true).unwrap();
    let norm = |training| BatchNormParameters {
        running: Some((&mean, &variance)),
        weight: Some(&weight),
        bias: Some(&bias),
        training,
        momentum: 0.1,
        eps: 1e-5,
    };

    for relu in [false, true] {
        let forward = || {
            if relu {
                return x.batch_norm_relu(None, &norm(true));
            }
            x.batch_norm(Some((&mean, &variance)), Some(&weight), Some(&bias), true, 0.1, 1e-5)
        };
        assert_eq!(count(&|| forward().map(drop)), 3);
        let out = forward().unwrap();
        [&x, &weight, &bias].iter().for_each(|leaf| drop(leaf.set_grad(None).unwrap()));
        assert_eq!(count(&|| autograd::backward(&[&out], &[Some(&grad)], BackwardOptions::default())), 3);
    }
    assert_eq!(count(&|| x.batch_norm_relu(Some(&carried), &norm(true)).map(drop)), 3);
    assert_eq!(count(&|| no_grad(|| x.batch_norm_relu(Some(&carried), &norm(false))).map(drop)), 1);
}

fn runs(sizes: &[usize], strides: &[usize], width: usize) -> Vec<(u64, u64)> {
    runs::runs(sizes, strides, width).into_iter().map(|run| (run.start, run.end)).collect()
}

#[test]
fn runs_are_what_a_layout_covers() {
    assert_eq!(runs(&[2, 3], &[12, 4], 4), [(0, 24)]);
    assert_eq!(runs(&[2, 3], &[4, 8], 4), [(0, 24)]);
    assert_eq!(runs(&[2, 2], &[16, 4], 4), [(0, 8), (16, 24)]);
    assert_eq!(runs(&[5, 2], &[0, 8], 4), [(0, 4), (8, 12)]);
    assert_eq!(runs(&[], &[], 8), [(0, 8)]);
    assert!(runs(&[3, 0], &[4, 4], 4).is_empty());
}
