//! Tensors from nothing.

use std::sync::Once;

use tenure_core::{AllocatorRegistry, DType, Device, Layout, Storage};

use tenure_device::host::HostMemory;

use super::Tensor;
use crate::cpu::fill::{FILL, Fill};
use crate::element::with_element;
use crate::ops::pointwise::dense_like;
use crate::{Access, Element, Elementwise, Kernel, Result, Scalar, TensorError};

static HOST: Once = Once::new();
static FILLS: Kernel<Fill> = Kernel::new("fill", &[FILL]);

impl Tensor {
    /// A tensor whose elements are not set. Of `bool` they are false.
    ///
    /// # Errors
    /// Too many elements, or no memory.
    pub fn empty(sizes: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::empty_strided(Layout::contiguous(sizes)?, dtype, device)
    }

    /// The same, of any layout.
    ///
    /// # Errors
    /// Too many elements, or no memory.
    pub fn empty_strided(layout: Layout, dtype: DType, device: Device) -> Result<Self> {
        // Before the first tensor: its memory comes from there.
        HOST.call_once(HostMemory::install);
        let bytes = layout.required_bytes(dtype)?;
        let storage = Storage::new(bytes, AllocatorRegistry::global().allocator(device.kind())?)?;
        let tensor = Self::from_storage(storage, layout, dtype)?;
        if dtype == DType::Bool {
            tensor.fill_raw(Scalar::Bool(false))?;
        }
        Ok(tensor)
    }

    /// A tensor with one value everywhere.
    ///
    /// # Errors
    /// Too many elements, or no memory.
    pub fn full(sizes: &[usize], value: impl Into<Scalar>, dtype: DType, device: Device) -> Result<Self> {
        let tensor = Self::empty(sizes, dtype, device)?;
        tensor.fill_raw(value.into())?;
        Ok(tensor)
    }

    /// Zeros.
    ///
    /// # Errors
    /// Too many elements, or no memory.
    pub fn zeros(sizes: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::full(sizes, 0, dtype, device)
    }

    /// Ones.
    ///
    /// # Errors
    /// Too many elements, or no memory.
    pub fn ones(sizes: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::full(sizes, 1, dtype, device)
    }

    /// A tensor on the CPU of these elements, the last dimension densest.
    ///
    /// # Errors
    /// `sizes` hold another number of elements; no memory.
    pub fn from_slice<T: Element>(elements: &[T], sizes: &[usize]) -> Result<Self> {
        let tensor = Self::empty(sizes, T::DTYPE, Device::CPU)?;
        if tensor.numel() != elements.len() {
            let reason =
                format!("{} elements do not fill sizes {sizes:?}, which hold {}", elements.len(), tensor.numel());
            return Err(TensorError::shape("from_slice", reason));
        }
        Access::new("from_slice", &[&tensor], &[])?.slice_mut::<T>(0)?.copy_from_slice(elements);
        Ok(tensor)
    }

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
        let count = match (start, end, step) {
            (Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)) if step != 0 => {
                let distance = i128::from(end) - i128::from(start);
                let (distance, step) = if step > 0 { (distance, step.into()) } else { (-distance, -i128::from(step)) };
                (distance >= 0).then(|| ((distance + step - 1) / step) as f64)
            }
            _ => Some(((end.to_f64() - start.to_f64()) / step.to_f64()).ceil()).filter(|count| *count >= 0.0),
        };
        let Some(count) = count.filter(|count| count.is_finite()) else {
            let reason = format!("steps of {step:?} do not lead from {start:?} to {end:?}");
            return Err(TensorError::argument("arange", reason));
        };
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
        matrix.diagonal(0, 0, 1)?.fill_raw(Scalar::Int(1))?;
        Ok(matrix)
    }

    /// A tensor of the same sizes, dtype and device, and in the same order in memory, whose elements are not set.
    ///
    /// # Errors
    /// No memory.
    pub fn empty_like(&self) -> Result<Self> {
        Self::empty_strided(dense_like(self.sizes(), Some(self.layout()))?, self.dtype(), self.device())
    }

    /// The same with one value everywhere.
    ///
    /// # Errors
    /// No memory.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Self> {
        let tensor = self.empty_like()?;
        tensor.fill_raw(value.into())?;
        Ok(tensor)
    }

    /// The same of zeros.
    ///
    /// # Errors
    /// No memory.
    pub fn zeros_like(&self) -> Result<Self> {
        self.full_like(0)
    }

    /// The same of ones.
    ///
    /// # Errors
    /// No memory.
    pub fn ones_like(&self) -> Result<Self> {
        self.full_like(1)
    }

    /// A number as a tensor of no dimension on the CPU.
    ///
    /// # Errors
    /// No memory.
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Result<Self> {
        let value = value.into();
        with_element!(dtype, T => Self::from_slice(&[T::from_scalar(value)], &[]))
    }

    /// Writes one value everywhere; nobody is told.
    pub(crate) fn fill_raw(&self, value: Scalar) -> Result<()> {
        let iter = Elementwise::new("fill", &[self], &[])?;
        FILLS.find(self.device().kind(), self.dtype())?(&iter, value)
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
