//! Comparisons of our modules with PyTorch's, with the values that `goldens/models.py` gives them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod configs;
#[path = "../../../tenure-tensor/tests/common/mod.rs"]
pub(crate) mod cuda;

use std::cell::Cell;
use std::fs;

use serde_json::Value;
use tenure_nn::{Module, Parameter, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Element, Tensor, autograd};

/// Makes tests of cases: on the CPU, and on a CUDA device, simulated or real.
macro_rules! on_devices {
    ($($case:ident)*) => {
        mod on_cpu {
            $(#[test]
            fn $case() {
                super::$case();
            })*
        }

        mod on_cuda {
            $(#[test]
            fn $case() {
                crate::common::on_cuda(super::$case);
            })*
        }
    };
}
pub(crate) use on_devices;

thread_local! {
    static DEVICE: Cell<Device> = const { Cell::new(Device::CPU) };
}

/// Returns the device of the running case.
pub(crate) fn device() -> Device {
    DEVICE.get()
}

/// Runs a case on a CUDA device.
pub(crate) fn on_cuda(case: impl FnOnce()) {
    let _in_use = cuda::in_use();
    DEVICE.set(cuda::cuda());
    case();
    DEVICE.set(Device::CPU);
}

/// Makes a scope on the case's device.
pub(crate) fn scope() -> Scope {
    Scope::new(&Generator::new(0)).with_device(device())
}

/// Calls `make` with a scope for a model in double precision.
pub(crate) fn with_scope<R>(make: impl FnOnce(&Scope) -> R) -> R {
    make(&scope().with_dtype(DType::F64))
}

/// Makes a tensor on the case's device.
pub(crate) fn tensor<T: Element>(elements: &[T], sizes: &[usize]) -> Tensor {
    Tensor::from_slice(elements, sizes).unwrap().to_device(device()).unwrap()
}

/// Returns a part of a file of goldens.
pub(crate) fn golden(file: &str, name: &str) -> Value {
    let path = format!("{}/tests/goldens/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let goldens: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    goldens[name].clone()
}

/// Fills a model with the values of `models.py`.
pub(crate) fn fill(model: &dyn Module) {
    for (k, (name, tensor)) in model.state().into_iter().enumerate() {
        if !tensor.dtype().is_floating() {
            continue;
        }
        let count = tensor.numel();
        let rank = tensor.rank();
        let fan_in = if rank > 1 { (count / tensor.sizes()[0]).max(1) } else { 25 };
        let is_scale = rank == 1 && (name.ends_with("weight") || name.ends_with("running_var"));
        let base = if is_scale { 1.0 } else { 0.0 };
        let values: Vec<f64> =
            (0..count).map(|i| (1.0 + 0.7 * k as f64 + 1.3 * i as f64).sin() / (fan_in as f64).sqrt() + base).collect();
        let values = self::tensor(&values, tensor.sizes());
        autograd::no_grad(|| tensor.copy_(&values)).unwrap();
    }
}

/// Makes inputs with the values of `models.py`.
pub(crate) fn images(sizes: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..sizes.iter().product()).map(|i: usize| (i as f64 * 0.9).sin()).collect();
    tensor(&values, sizes)
}

/// Compares numbers, with a tolerance relative to the largest.
pub(crate) fn assert_close(what: &str, found: &[f64], expected: &Value, tolerance: f64) {
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= tolerance * largest, "{what}: {found}, expected {expected}");
    }
}

/// Compares a model's names, output and gradients with PyTorch's.
pub(crate) fn check(
    golden: &Value,
    model: &dyn Module,
    tolerance: f64,
    forward: impl Fn() -> tenure_tensor::Result<Tensor>,
) {
    let names: Vec<String> = serde_json::from_value(golden["names"].clone()).unwrap();
    assert_eq!(model.state().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    fill(model);
    let output = forward().unwrap();
    assert_close("output", &output.to_vec::<f64>().unwrap(), &golden["output"], tolerance);
    let weights: Vec<f64> = (0..output.numel()).map(|i| (i as f64).cos()).collect();
    let weights = tensor(&weights, output.sizes());
    if !output.requires_grad() {
        return;
    }
    output.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
    compare_gradients(&model.parameters(), &golden["norms"], tolerance);
}

/// Compares the norms of gradients.
pub(crate) fn compare_gradients(parameters: &[Parameter], norms: &Value, tolerance: f64) {
    let norms = norms.as_object().unwrap();
    let largest = norms.values().map(|norm| norm.as_f64().unwrap()).fold(0.0, f64::max);
    for parameter in parameters {
        let grad =
            parameter.grad().map_or(0.0, |grad| grad.mul(&grad).unwrap().sum_all().unwrap().item::<f64>().unwrap());
        let found = grad.sqrt();
        let expected = norms[parameter.name()].as_f64().unwrap();
        // Gradients that are zero except for rounding are compared with the largest.
        let error = (found - expected).abs();
        assert!(error <= tolerance * (expected + 1e-3 * largest), "{}: {found}, expected {expected}", parameter.name());
    }
}
