//! Tensors from nothing.

use std::sync::{Arc, Once};

use tenure_core::{Allocator, AllocatorRegistry, AllocatorScope, DType, DataPtr, Device, Layout, Storage};

use tenure_device::host::HostMemory;
use tenure_device::memory;

use super::Tensor;
use crate::cpu::fill::Fill;
use crate::element::with_element;
use crate::ops::entered;
use crate::ops::pointwise::dense_like;
use crate::{Access, Element, Elementwise, Kernel, Result, Scalar, TensorError, cpu, cuda};

static HOST: Once = Once::new();
static FILLS: Kernel<Fill> = Kernel::new("fill", &[cpu::fill::FILL, cuda::fill::FILL]);

/// Where tensors on a device get their memory.
fn allocator(device: Device) -> Result<Arc<dyn Allocator>> {
    if let Some(allocator) = AllocatorScope::current(device) {
        return Ok(allocator);
    }
    if device.is_cpu() {
        // Before the first tensor: its memory comes from there.
        HOST.call_once(HostMemory::install);
        return Ok(AllocatorRegistry::global().allocator(device.kind())?);
    }
    memory::allocator(device.index()).map_err(|error| TensorError::memory("empty", error))
}

impl Tensor {
    /// A tensor whose elements are not set. Of `bool` they are false.
    ///
    /// What the memory is for, and its key, are the thread's [`Purpose`](tenure_core::Purpose), and where it comes from is
    /// said by its [`AllocatorScope`], as for all that is allocated.
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
        let tensor = Self::unset(layout, dtype, device)?;
        if dtype == DType::Bool {
            tensor.fill_raw("empty", Scalar::Bool(false))?;
        }
        Ok(tensor)
    }

    /// The same, whose elements may be no values of the dtype.
    pub(crate) fn unset(layout: Layout, dtype: DType, device: Device) -> Result<Self> {
        let bytes = layout.required_bytes(dtype)?;
        let storage = Storage::new(bytes, allocator(device)?)?;
        Self::from_storage(storage, layout, dtype)
    }

    /// A tensor with one value everywhere.
    ///
    /// # Errors
    /// Too many elements, or no memory; a value that an integer dtype does not hold.
    pub fn full(sizes: &[usize], value: impl Into<Scalar>, dtype: DType, device: Device) -> Result<Self> {
        let _op = entered("full");
        let tensor = Self::empty(sizes, dtype, device)?;
        tensor.fill_raw("full", value.into())?;
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
        let _op = entered("from_slice");
        let tensor = Self::empty(sizes, T::DTYPE, Device::CPU)?;
        if tensor.numel() != elements.len() {
            let reason =
                format!("{} elements do not fill sizes {sizes:?}, which hold {}", elements.len(), tensor.numel());
            return Err(TensorError::shape("from_slice", reason));
        }
        Access::new("from_slice", &[&tensor], &[])?.slice_mut::<T>(0)?.copy_from_slice(elements);
        Ok(tensor)
    }

    /// A tensor on the CPU on the memory of a vector, which is not copied; the last dimension is densest.
    ///
    /// # Errors
    /// `sizes` hold another number of elements.
    pub fn from_vec<T: Element>(mut elements: Vec<T>, sizes: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(sizes)?;
        if layout.numel() != elements.len() {
            let reason =
                format!("{} elements do not fill sizes {sizes:?}, which hold {}", elements.len(), layout.numel());
            return Err(TensorError::shape("from_vec", reason));
        }
        let (first, bytes) = (elements.as_mut_ptr().cast(), size_of_val(&elements[..]));
        let data = DataPtr::foreign(first, Device::CPU, move || drop(elements));
        // SAFETY: the vector's elements, which the closure keeps where they are until it is called.
        let storage = unsafe { Storage::from_data_ptr(data, bytes, None) };
        Self::from_storage(storage, layout, T::DTYPE)
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
    /// No memory; a value that an integer dtype does not hold.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Self> {
        let _op = entered("full_like");
        let tensor = self.empty_like()?;
        tensor.fill_raw("full_like", value.into())?;
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

    /// Writes one value everywhere, for the operation `op`; nobody is told.
    pub(crate) fn fill_raw(&self, op: &'static str, value: Scalar) -> Result<()> {
        value.check_fits(op, self.dtype())?;
        let iter = Elementwise::new(op, &[self], &[])?;
        FILLS.find(self.device().kind(), self.dtype())?(&iter, value)
    }
}
