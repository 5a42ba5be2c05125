//! Tensors of numbers that follow a rule.

use super::Tensor;
use crate::element::with_element;
use crate::{Access, DType, Device, Element, Result, Scalar, TensorError};

impl Tensor {
    /// Numbers from `start` to below `end`, `step` apart.
    ///
    /// # Errors
    /// A step of 0, or away from the end; `bool`; numbers that are not finite; no memory.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: Device,
    ) -> Result<Self> {
        let (start, end, step) = (start.into(), end.into(), step.into());
        let numbers = [start, end, step].map(Scalar::to_f64);
        let (leads_away, count) = match (start, end, step) {
            (Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)) if step != 0 => {
                let (distance, step) = (i128::from(end) - i128::from(start), i128::from(step));
                (distance.signum() == -step.signum(), ((distance.abs() + step.abs() - 1) / step.abs()) as f64)
            }
            _ => {
                let (distance, step) = (numbers[1] - numbers[0], numbers[2]);
                (distance != 0.0 && (distance > 0.0) != (step > 0.0), (distance / step).ceil())
            }
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
        Self::series("arange", count as usize, dtype, device, move |i| match (start, step) {
            (Scalar::Int(start), Scalar::Int(step)) => Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64))),
            _ => Scalar::Float(start.to_f64() + step.to_f64() * i as f64),
        })
    }

    /// `count` numbers from `start` to `end`, both included, as far apart.
    ///
    /// # Errors
    /// `bool`; no memory.
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType, device: Device) -> Result<Self> {
        Self::series("linspace", count, dtype, device, move |i| Scalar::Float(between(start, end, i, count)))
    }

    /// `base` to the power of `count` numbers from `start` to `end`, both included, as far apart.
    ///
    /// # Errors
    /// `bool`; no memory.
    pub fn logspace(start: f64, end: f64, count: usize, base: f64, dtype: DType, device: Device) -> Result<Self> {
        let number = move |i| Scalar::Float(base.powf(between(start, end, i, count)));
        Self::series("logspace", count, dtype, device, number)
    }

    /// A matrix with ones on the main diagonal, and zeros elsewhere.
    ///
    /// # Errors
    /// No memory.
    pub fn eye(rows: usize, columns: usize, dtype: DType, device: Device) -> Result<Self> {
        let matrix = Self::zeros(&[rows, columns], dtype, device)?;
        matrix.diagonal(0, 0, 1)?.fill_raw("eye", Scalar::Int(1))?;
        Ok(matrix)
    }

    /// `count` numbers, each as its index says.
    fn series(
        op: &'static str,
        count: usize,
        dtype: DType,
        device: Device,
        number: impl Fn(usize) -> Scalar,
    ) -> Result<Self> {
        if dtype == DType::Bool {
            let expected = "numbers are needed".to_owned();
            return Err(TensorError::DType { op, found: dtype, expected });
        }
        let tensor = Self::empty(&[count], dtype, device)?;
        let mut access = Access::new(op, &[&tensor], &[])?;
        with_element!(dtype, T => {
            access.slice_mut::<T>(0)?.iter_mut().enumerate().for_each(|(i, to)| *to = T::from_scalar(number(i)));
        });
        drop(access);
        Ok(tensor)
    }
}

/// Number `i` of `count` from `start` to `end`, exact at both.
fn between(start: f64, end: f64, i: usize, count: usize) -> f64 {
    let step = (end - start) / (count.max(2) - 1) as f64;
    if i < count / 2 || count == 1 { start + step * i as f64 } else { end - step * (count - 1 - i) as f64 }
}
