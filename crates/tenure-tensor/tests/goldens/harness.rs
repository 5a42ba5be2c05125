//! Comparison of operations with PyTorch's results: see `tests/goldens/README.md`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::SafeTensors;
use serde::Deserialize;
use tenure_device::sim::SimDriver;
use tenure_tensor::autograd::{self, BackwardOptions, Gradcheck};
use tenure_tensor::{DType, Device, Layout, Result, Tensor, precision, tuning};

use crate::common::{self, in_use};

/// The name of a case, and the same function as in the script.
pub(crate) type Case = (&'static str, Function);

/// The cases of a family.
pub(crate) struct Cases {
    pub(crate) family: &'static str,
    pub(crate) cases: &'static [Case],
    /// The name of the constant that lists the cases, and the text of its file.
    pub(crate) list: &'static str,
    pub(crate) source: &'static str,
}

pub(crate) type Function = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// Compares every sample of a family with the result of its closure.
///
/// # Panics
/// A sample differs, a case of the file has no closure, or a closure has no case.
pub(crate) fn check(name: &str, cases: &[Case], device: Device) {
    check_family(&Family::open_on(name, device), name, cases);
}

/// Compares as [`check`] does on a CUDA device, with kernels that count in 64 bits. On the simulated device, where they
/// are only compiled, each case runs in one dtype, single precision if it has that: kernels of all dtypes count the
/// same way.
pub(crate) fn check_in_64_bits(name: &str, cases: &[Case]) {
    let mut family = Family::open_on(name, cuda());
    if common::simulated().is_some() {
        let single = family.samples.iter().filter(|sample| sample.dtype == "f32");
        let dtypes = family.samples.iter().chain(single).map(|sample| (sample.case.clone(), sample.dtype.clone()));
        let dtypes: BTreeMap<String, String> = dtypes.collect();
        family.samples.retain(|sample| dtypes[&sample.case] == sample.dtype);
    }
    tuning::count_in_64_bits(true);
    check_family(&family, name, cases);
    tuning::count_in_64_bits(false);
}

fn check_family(family: &Family, name: &str, cases: &[Case]) {
    let device = family.device;
    let _in_use = (!device.is_cpu()).then(in_use);
    let written: BTreeSet<&str> = family.samples.iter().map(|sample| &sample.case[..]).collect();
    let known: BTreeSet<&str> = cases.iter().map(|(name, _)| *name).collect();
    assert_eq!(written, known, "the cases of {name}.py are not those that main.rs names");
    let mut failures = Vec::new();
    for sample in &family.samples {
        let function = cases.iter().find(|(name, _)| *name == sample.case).unwrap().1;
        let named = |reason| format!("{} ({}, {}): {reason}", sample.case, sample.variant, sample.dtype);
        failures.extend(family.compare(sample, function).err().map(named));
        // For other layouts, differences would add nothing to the comparison with PyTorch.
        let is_checked = !["transposed", "sliced", "expanded"].contains(&&sample.variant[..]);
        if sample.gradcheck && is_checked && device.is_cpu() {
            failures.extend(family.check_gradients(sample, function).err().map(named));
        }
    }
    let shown = failures[..failures.len().min(20)].join("\n");
    assert!(failures.is_empty(), "{} of {} samples fail:\n{shown}", failures.len(), family.samples.len());
}

thread_local! {
    static DEVICE: Cell<Device> = const { Cell::new(Device::CPU) };
}

/// Returns the device on which cases without inputs create their tensors.
pub(crate) fn device() -> Device {
    DEVICE.get()
}

/// A case in one dtype and layout.
#[derive(Deserialize)]
pub(crate) struct Sample {
    pub(crate) case: String,
    pub(crate) variant: String,
    pub(crate) dtype: String,
    pub(crate) gradcheck: bool,
    pub(crate) second: bool,
    pub(crate) inputs: Vec<Input>,
    outputs: Vec<Place>,
    upstream: Vec<Option<Place>>,
    grads: Vec<Option<Place>>,
    /// The true values of outputs and gradients for which PyTorch's are too far off.
    truth: Vec<Option<Place>>,
}

/// A tensor with PyTorch's layout, on a storage of `elements`.
#[derive(Deserialize)]
pub(crate) struct Input {
    dtype: String,
    at: usize,
    elements: usize,
    pub(crate) sizes: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    grad: bool,
}

/// A contiguous tensor.
#[derive(Deserialize)]
struct Place {
    dtype: String,
    at: usize,
    sizes: Vec<usize>,
}

impl Sample {
    /// Returns whether an output has a gradient.
    pub(crate) fn is_differentiable(&self) -> bool {
        self.upstream.iter().any(Option::is_some)
    }
}

/// The content of a golden file.
pub(crate) struct Family {
    pub(crate) samples: Vec<Sample>,
    /// All elements of a dtype, by the dtype's name.
    elements: BTreeMap<String, Vec<u8>>,
    /// The device of the inputs.
    device: Device,
}

/// Returns a CUDA device that is as exact as PyTorch on the CPU.
pub(crate) fn cuda() -> Device {
    precision::allow_tf32_in_convolutions(false);
    common::cuda()
}

impl Family {
    /// Opens a family with inputs on a device.
    pub(crate) fn open_on(name: &str, device: Device) -> Self {
        DEVICE.set(device);
        Self { device, ..Self::open(name) }
    }

    pub(crate) fn open(name: &str) -> Self {
        // The folder is given on a machine without the sources.
        let folder = std::env::var_os("TENURE_GOLDENS")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens"), PathBuf::from);
        let path = folder.join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let samples = serde_json::from_str(&header.metadata().as_ref().unwrap()["samples"]).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let elements = tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
        Self { samples, elements, device: Device::CPU }
    }

    /// Runs forward and backward, and compares both with PyTorch's.
    fn compare(&self, sample: &Sample, function: Function) -> Result<(), String> {
        let inputs: Vec<Tensor> = sample.inputs.iter().map(|input| self.input(input, None)).collect();
        let outputs = function(&inputs).map_err(text)?;
        if outputs.len() != sample.outputs.len() {
            return Err(format!("{} outputs, expected {}", outputs.len(), sample.outputs.len()));
        }
        for (index, (output, expected)) in outputs.iter().zip(&sample.outputs).enumerate() {
            self.compare_one(&format!("output {index}"), output, expected, sample.truth[index].as_ref())?;
        }
        let mut upstream = Vec::new();
        let mut roots = Vec::new();
        for (output, (index, grad)) in outputs.iter().zip(sample.upstream.iter().enumerate()) {
            if output.requires_grad() != grad.is_some() {
                return Err(format!("output {index} requires a gradient, or does not, unlike PyTorch's"));
            }
            if let Some(grad) = grad {
                roots.push(output);
                upstream.push(self.tensor(grad).to_device(self.device).unwrap());
            }
        }
        let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
        let leaves: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        if roots.is_empty() || leaves.is_empty() {
            return Ok(());
        }
        // Differentiable gradients come first, since other formulas may compute them; they keep the graph.
        for (kind, create_graph) in [("differentiable gradient", true), ("gradient", false)] {
            let options = BackwardOptions { create_graph, allow_unused: true, ..BackwardOptions::default() };
            let found = autograd::grad(&roots, &leaves, &upstream, options).map_err(text)?;
            let indices = (0..inputs.len()).filter(|index| inputs[*index].requires_grad());
            for (index, grad) in indices.zip(found) {
                let what = format!("the {kind} of input {index}");
                match (grad, &sample.grads[index]) {
                    (None, None) => {}
                    (Some(grad), Some(expected)) => {
                        let truth = sample.truth[outputs.len() + index].as_ref();
                        self.compare_one(&what, &grad, expected, truth)?;
                    }
                    (Some(_), None) => return Err(format!("{what} is there, but PyTorch has none")),
                    (None, Some(_)) => return Err(format!("{what} is missing")),
                }
            }
        }
        Ok(())
    }

    /// Returns how often the host waits for the device, forward and backward.
    pub(crate) fn waits(&self, sample: &Sample, function: Function, driver: &SimDriver) -> Result<u64> {
        let inputs: Vec<Tensor> = sample.inputs.iter().map(|input| self.input(input, None)).collect();
        let upstream: Vec<Tensor> = sample.upstream.iter().flatten().map(|grad| self.tensor(grad)).collect();
        let upstream: Vec<Tensor> = upstream.iter().map(|grad| grad.to_device(self.device).unwrap()).collect();
        let before = driver.counters().host_syncs;
        let outputs = function(&inputs)?;
        let roots: Vec<&Tensor> = outputs.iter().filter(|output| output.requires_grad()).collect();
        let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
        let leaves: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        if !roots.is_empty() && !leaves.is_empty() {
            autograd::grad(
                &roots,
                &leaves,
                &upstream,
                BackwardOptions { allow_unused: true, ..BackwardOptions::default() },
            )?;
        }
        Ok(driver.counters().host_syncs - before)
    }

    /// Checks that a tensor is near PyTorch's, or near the truth if PyTorch's is not.
    fn compare_one(&self, what: &str, found: &Tensor, theirs: &Place, truth: Option<&Place>) -> Result<(), String> {
        let by_theirs = near(what, found, &self.tensor(theirs));
        match truth {
            Some(truth) if by_theirs.is_err() => near(what, found, &self.tensor(truth)),
            _ => by_theirs,
        }
    }

    /// Checks gradients against differences, in `f64`.
    fn check_gradients(&self, sample: &Sample, function: Function) -> Result<(), String> {
        let inputs: Vec<Tensor> = sample.inputs.iter().map(|input| self.input(input, Some(DType::F64))).collect();
        autograd::gradcheck(function, &inputs, Gradcheck::default()).map_err(text)?;
        if sample.second {
            autograd::gradgradcheck(function, &inputs, Gradcheck::default()).map_err(text)?;
        }
        Ok(())
    }

    /// Returns an input, with floats converted to `floating` if that is given.
    fn input(&self, input: &Input, floating: Option<DType>) -> Tensor {
        let mut base = self.elements(&input.dtype, input.at, &[input.elements]);
        if let Some(dtype) = floating.filter(|_| base.dtype().is_floating()) {
            base = base.to_dtype(dtype).unwrap();
        }
        base = base.to_device(self.device).unwrap();
        let layout = Layout::strided(&input.sizes, &input.strides, input.offset).unwrap();
        let tensor = Tensor::from_storage(base.storage().clone(), layout, base.dtype()).unwrap();
        tensor.requires_grad_(input.grad).unwrap()
    }

    /// Returns the inputs of a sample with the sizes `size(input, dimension, original size)`. Their values are
    /// repeated; floats are varied, so that no two are equal.
    pub(crate) fn grown(&self, sample: &Sample, size: impl Fn(usize, usize, usize) -> usize) -> Vec<Tensor> {
        sample
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| {
                let sizes: Vec<usize> =
                    input.sizes.iter().enumerate().map(|(dim, has)| size(index, dim, *has)).collect();
                let dtype = dtype(&input.dtype);
                let values = numbers(&self.input(input, None));
                let count: usize = sizes.iter().product();
                let factor =
                    |at: usize| if dtype.is_floating() { 1.0 - (at as f64 * 0.618_034).fract() / 64.0 } else { 1.0 };
                let values: Vec<f64> = (0..count).map(|at| values[at % values.len()] * factor(at)).collect();
                let tensor = Tensor::from_slice(&values, &sizes).unwrap().to_dtype(dtype).unwrap();
                tensor.requires_grad_(input.grad).unwrap()
            })
            .collect()
    }

    fn tensor(&self, place: &Place) -> Tensor {
        self.elements(&place.dtype, place.at, &place.sizes)
    }

    /// Reads contiguous elements, from element `at` of a dtype on.
    fn elements(&self, dtype: &str, at: usize, sizes: &[usize]) -> Tensor {
        macro_rules! read {
            ($type:ty, $from:expr) => {{
                const SIZE: usize = size_of::<$type>();
                let count: usize = sizes.iter().product();
                // A family without elements of the dtype has no tensor of it.
                let all = self.elements.get(dtype).map_or(&[][..], |elements| elements);
                let (chunks, _) = all[at * SIZE..(at + count) * SIZE].as_chunks::<SIZE>();
                let elements: Vec<$type> = chunks.iter().map(|bytes| $from(*bytes)).collect();
                Tensor::from_slice(&elements, sizes).unwrap()
            }};
        }
        match self::dtype(dtype) {
            DType::F64 => read!(f64, f64::from_le_bytes),
            DType::F32 => read!(f32, f32::from_le_bytes),
            DType::F16 => read!(f16, f16::from_le_bytes),
            DType::BF16 => read!(bf16, bf16::from_le_bytes),
            DType::I64 => read!(i64, i64::from_le_bytes),
            DType::I32 => read!(i32, i32::from_le_bytes),
            DType::I16 => read!(i16, i16::from_le_bytes),
            DType::I8 => read!(i8, i8::from_le_bytes),
            DType::U8 => read!(u8, u8::from_le_bytes),
            DType::Bool => read!(bool, |[byte]: [u8; 1]| byte != 0),
            dtype => panic!("no script writes {dtype}"),
        }
    }
}

/// Returns the dtype that the scripts call `name`.
pub(crate) fn dtype(name: &str) -> DType {
    match name {
        "f64" => DType::F64,
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i64" => DType::I64,
        "i32" => DType::I32,
        "i16" => DType::I16,
        "i8" => DType::I8,
        "u8" => DType::U8,
        "bool" => DType::Bool,
        _ => panic!("{name} is not a dtype"),
    }
}

/// Returns how far a result may be from the expected one, relative to it.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        // The tolerance allows as many roundings as that of bf16.
        DType::F16 => 2.5e-3,
        DType::BF16 => 1e-2,
        _ => 0.0,
    }
}

/// Checks that every element is within the tolerance, relative to its expected value or to the usual magnitude in the
/// tensor: sums that cancel out are as exact as their terms. Integers must be equal.
fn near(what: &str, found: &Tensor, expected: &Tensor) -> Result<(), String> {
    if (found.sizes(), found.dtype()) != (expected.sizes(), expected.dtype()) {
        let ours = (found.dtype(), found.sizes());
        let theirs = (expected.dtype(), expected.sizes());
        return Err(format!("{what} is {ours:?}, expected {theirs:?}"));
    }
    let tolerance = tolerance(expected.dtype());
    let found = numbers(found);
    let values = numbers(expected);
    let finite: Vec<f64> = values.iter().filter(|value| value.is_finite()).map(|value| value.abs()).collect();
    let usual = (finite.iter().sum::<f64>() / finite.len().max(1) as f64).clamp(0.1, 1.0);
    let mut far = Vec::new();
    for (at, (found, expected)) in found.iter().zip(&values).enumerate() {
        let is_close = (found - expected).abs() <= tolerance * expected.abs().max(usual);
        let is_near = found == expected || (found.is_nan() && expected.is_nan()) || (expected.is_finite() && is_close);
        if !is_near {
            far.push(at);
        }
    }
    let Some(first) = far.first() else { return Ok(()) };
    let mut said = format!("{what} differs in {} of {} elements", far.len(), values.len());
    let position = position(*first, expected.sizes());
    write!(said, ", first at {position:?}: {}, expected {}", found[*first], values[*first]).unwrap();
    Err(said)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.detach().to_device(Device::CPU).unwrap().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Returns the indices of an element.
fn position(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut found: Vec<usize> = sizes.iter().rev().map(|size| (at % size, at /= size).0).collect();
    found.reverse();
    found
}

fn text(error: tenure_tensor::TensorError) -> String {
    error.to_string()
}
