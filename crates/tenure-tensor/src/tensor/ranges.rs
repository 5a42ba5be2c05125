//! Tensors of ranges: arange, linspace, logspace, and the identity matrix.

use super::Tensor;
use crate::cpu::copy::{RangeKernel, RangeRule};
use crate::operation::operations;
use crate::{DType, Device, Kernel, Result, Scalar, TensorError, cpu, cuda};

static RANGES: Kernel<RangeKernel> = Kernel::new("arange", &[cpu::copy::RANGES, cuda::copy::RANGES]);

operations! {
    static OPERATIONS;
    Function for all {
        /// Returns `steps` evenly spaced numbers from `start` to `end`, both included.
        ///
        /// # Errors
        /// `bool`; no memory.
        linspace(start: Float, end: Float, steps: Size, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;

        /// Returns `base` to the power of `steps` evenly spaced numbers from `start` to `end`, both included.
        ///
        /// # Errors
        /// `bool`; no memory.
        logspace(start: Float, end: Float, steps: Size, base: Float = 10.0, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;

        /// Returns an `n` × `m` matrix with ones on the main diagonal, and zeros elsewhere.
        ///
        /// # Errors
        /// No memory.
        eye(n: Size, m: Size, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;
    }
    Function for front_ends {
        /// Returns the numbers from `start` up to but without `end`, `step` apart: [`Tensor::arange`]. Without a dtype,
        /// integers give `int64`, and other numbers `float32`.
        ///
        /// # Errors
        /// The step is 0, or leads away from the end; `bool`; numbers that are not finite; no memory.
        arange(
            start: Scalar, end: Scalar, step: Scalar = Scalar::Int(1), dtype: Option<DType> = None, device: Device = Device::CPU
        ) -> Tensor = |start, end, step, dtype, device| numbers([start, end, step], dtype, device);

        /// Returns the integers from 0, or the numbers of an interval of 1, up to but without `end`.
        ///
        /// # Errors
        /// A negative end; `bool`; a number that is not finite; no memory.
        #[name(arange)]
        arange_to(end: Scalar, dtype: Option<DType> = None, device: Device = Device::CPU) -> Tensor = |end, dtype, device| {
            numbers([Scalar::Int(0), end, Scalar::Int(1)], dtype, device)
        };

        /// Returns the identity matrix of `n` rows and columns.
        ///
        /// # Errors
        /// No memory.
        #[name(eye)]
        eye_square(n: Size, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor = |n, dtype, device| {
            Tensor::eye(n, n, dtype, device)
        };
    }
}

fn numbers([start, end, step]: [Scalar; 3], dtype: Option<DType>, device: Device) -> Result<Tensor> {
    let is_whole = [start, end, step].iter().all(|number| !matches!(number, Scalar::Float(_)));
    Tensor::arange(start, end, step, dtype.unwrap_or(if is_whole { DType::I64 } else { DType::F32 }), device)
}

fn linspace(start: f64, end: f64, count: usize, dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::range("linspace", count, dtype, device, RangeRule::Between(start, end))
}

fn logspace(start: f64, end: f64, count: usize, base: f64, dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::range("logspace", count, dtype, device, RangeRule::Powers(base, start, end))
}

fn eye(rows: usize, columns: usize, dtype: DType, device: Device) -> Result<Tensor> {
    let matrix = Tensor::zeros(&[rows, columns], dtype, device)?;
    matrix.diagonal(0, 0, 1)?.fill_raw("eye", Scalar::Int(1))?;
    Ok(matrix)
}

impl Tensor {
    /// Returns the numbers from `start` up to but without `end`, `step` apart.
    ///
    /// # Errors
    /// The step is 0, or leads away from the end; `bool`; numbers that are not finite; no memory.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: Device,
    ) -> Result<Self> {
        let start = start.into();
        let end = end.into();
        let step = step.into();
        let numbers = [start, end, step].map(Scalar::to_f64);
        let (leads_away, count) = if [start, end, step].iter().all(|number| number.is_integer()) && step.to_bool() {
            let distance = end.to_i128() - start.to_i128();
            let step = step.to_i128();
            (distance.signum() == -step.signum(), ((distance.abs() + step.abs() - 1) / step.abs()) as f64)
        } else {
            let distance = numbers[1] - numbers[0];
            let step = numbers[2];
            (distance != 0.0 && (distance > 0.0) != (step > 0.0), (distance / step).ceil())
        };
        let reason = match numbers[2] {
            _ if numbers.iter().any(|number| !number.is_finite()) => Some("all three must be finite"),
            0.0 => Some("a step must not be 0"),
            step if leads_away && step < 0.0 => Some("a step to a larger number must be positive"),
            _ if leads_away => Some("a step to a smaller number must be negative"),
            _ if !count.is_finite() => Some("they are too many"),
            _ => None,
        };
        if let Some(reason) = reason {
            let reason = format!("steps of {step} do not lead from {start} to {end}: {reason}");
            return Err(TensorError::argument("arange", reason));
        }
        start.check_large("arange", dtype)?;
        let rule = match (start, step) {
            // These wrap.
            (Scalar::Unsigned(_), Scalar::Int(step)) if dtype == DType::U64 => {
                RangeRule::Integers(start.to_i64(), step)
            }
            (Scalar::Int(start), Scalar::Int(step)) => RangeRule::Integers(start, step),
            _ => RangeRule::Floats(start.to_f64(), step.to_f64()),
        };
        Self::range("arange", count as usize, dtype, device, rule)
    }

    fn range(op: &'static str, count: usize, dtype: DType, device: Device, rule: RangeRule) -> Result<Self> {
        if dtype == DType::Bool {
            let expected = "numbers are needed".to_owned();
            return Err(TensorError::DType { op, found: dtype, expected });
        }
        let tensor = Self::empty(&[count], dtype, device)?;
        RANGES.find(device.kind(), dtype)?(op, &tensor, rule)?;
        Ok(tensor)
    }
}
