//! Tests of CUDA's libraries against the CPU in `f64`: on a simulated device, unless the environment asks for a real
//! one (`TENURE_TEST_DRIVER=cuda`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod conv;
mod matmul;

use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor};

/// Returns numbers on the CPU: of both signs and near one, or whole numbers for integer dtypes.
fn numbers(sizes: &[usize], dtype: DType, seed: u64) -> Tensor {
    let generator = Generator::new(seed);
    if dtype.is_floating() {
        return Tensor::randn(sizes, DType::F32, Device::CPU, &generator).unwrap().to_dtype(dtype).unwrap();
    }
    let low = if dtype == DType::U8 { 0 } else { -50 };
    Tensor::randint(low, 50, sizes, dtype, Device::CPU, &generator).unwrap()
}

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F64).unwrap()
}

/// Returns the allowed error of a result of a dtype, relative to the largest element, or to 1 if that is larger.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    }
}

/// Compares a tensor of the device with the expected one, in `f64`.
#[track_caller]
fn assert_near(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.sizes(), expected.sizes(), "{what}");
    let found = wide(&found.to_device(Device::CPU).unwrap()).to_vec::<f64>().unwrap();
    let expected = expected.to_vec::<f64>().unwrap();
    let largest = expected.iter().fold(1.0_f64, |largest, value| largest.max(value.abs()));
    let worst = found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
    let worst = worst.fold(0.0_f64, |worst, off| if off.is_nan() { f64::INFINITY } else { worst.max(off) });
    assert!(worst <= tolerance * largest, "{what}: off by {worst:e} of {largest:e}");
}
