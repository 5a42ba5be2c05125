//! Creation of tensors: empty, filled, or from Rust's memory.

use std::sync::{Arc, Once};

use smallvec::SmallVec;
use tenure_core::{
    Allocator, AllocatorRegistry, AllocatorScope, DType, DataPtr, Device, Layout, MemoryFormat, Overlap, Storage,
};
use tenure_device::host::HostMemory;
use tenure_device::memory;

use super::Tensor;
use crate::cpu::copy::Fill;
use crate::element::with_element;
use crate::operation::operations;
use crate::scopes::entered;
use crate::{Access, Element, Elementwise, Kernel, Result, Scalar, TensorError, cpu, cuda};

static HOST: Once = Once::new();
static FILLS: Kernel<Fill> = Kernel::new("fill", &[cpu::copy::FILL, cuda::copy::FILL]);

/// Returns the allocator of tensors on a device.
fn allocator(device: Device) -> Result<Arc<dyn Allocator>> {
    if let Some(allocator) = AllocatorScope::current(device) {
        return Ok(allocator);
    }
    if device.is_cpu() {
        // Installed before the first tensor, which gets its memory from there.
        HOST.call_once(HostMemory::install);
        return Ok(AllocatorRegistry::global().allocator(device.kind())?);
    }
    memory::allocator(device.index()).map_err(|error| TensorError::memory("empty", error))
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns an uninitialised tensor of the same sizes, dtype, device and memory order.
        ///
        /// # Errors
        /// No memory.
        empty_like(input: Tensor) -> Tensor;

        /// Returns a tensor of the same sizes, dtype and device, filled with `fill_value`.
        ///
        /// # Errors
        /// No memory; a value that does not fit an integer dtype.
        full_like(input: Tensor, fill_value: Scalar) -> Tensor;

        /// Returns a tensor of zeros of the same sizes, dtype and device.
        ///
        /// # Errors
        /// No memory.
        zeros_like(input: Tensor) -> Tensor;

        /// Returns a tensor of ones of the same sizes, dtype and device.
        ///
        /// # Errors
        /// No memory.
        ones_like(input: Tensor) -> Tensor;
    }
    Function for all {
        /// Returns an uninitialised tensor. Elements of `bool` are false.
        ///
        /// As for all allocations, the memory's purpose and key are the thread's [`Purpose`](tenure_core::Purpose), and
        /// its allocator is the thread's [`AllocatorScope`], if there is one.
        ///
        /// # Errors
        /// Too many elements, or no memory.
        empty(size: Sizes, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;

        /// Returns a tensor filled with `fill_value`.
        ///
        /// # Errors
        /// Too many elements, or no memory; a value that does not fit an integer dtype.
        full(size: Sizes, fill_value: Scalar, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;

        /// Returns a tensor of zeros.
        ///
        /// # Errors
        /// Too many elements, or no memory.
        zeros(size: Sizes, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;

        /// Returns a tensor of ones.
        ///
        /// # Errors
        /// Too many elements, or no memory.
        ones(size: Sizes, dtype: DType = DType::F32, device: Device = Device::CPU) -> Tensor;
    }
    Function for front_ends {
        /// Returns an uninitialised tensor of the same sizes and memory order, in another dtype or on another device.
        ///
        /// # Errors
        /// No memory.
        #[name(empty_like)]
        empty_like_as(input: Tensor, dtype: Option<DType> = None, device: Option<Device> = None) -> Tensor;

        /// Returns a tensor of the same sizes in another dtype or on another device, filled with `fill_value`.
        ///
        /// # Errors
        /// No memory; a value that does not fit an integer dtype.
        #[name(full_like)]
        full_like_as(
            input: Tensor,
            fill_value: Scalar,
            dtype: Option<DType> = None,
            device: Option<Device> = None,
        ) -> Tensor;

        /// Returns a tensor of zeros of the same sizes, in another dtype or on another device.
        ///
        /// # Errors
        /// No memory.
        #[name(zeros_like)]
        zeros_like_as(input: Tensor, dtype: Option<DType> = None, device: Option<Device> = None) -> Tensor =
            |input, dtype, device| full_like_as(input, 0.into(), dtype, device);

        /// Returns a tensor of ones of the same sizes, in another dtype or on another device.
        ///
        /// # Errors
        /// No memory.
        #[name(ones_like)]
        ones_like_as(input: Tensor, dtype: Option<DType> = None, device: Option<Device> = None) -> Tensor =
            |input, dtype, device| full_like_as(input, 1.into(), dtype, device);
    }
}

fn empty(sizes: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::empty_strided(Layout::contiguous(sizes)?, dtype, device)
}

fn full(sizes: &[usize], value: Scalar, dtype: DType, device: Device) -> Result<Tensor> {
    let _op = entered("full");
    let tensor = Tensor::empty(sizes, dtype, device)?;
    tensor.fill_raw("full", value)?;
    Ok(tensor)
}

fn zeros(sizes: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::full(sizes, 0, dtype, device)
}

fn ones(sizes: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::full(sizes, 1, dtype, device)
}

fn empty_like(input: &Tensor) -> Result<Tensor> {
    Tensor::empty_strided(dense_like(input.sizes(), Some(input.layout()))?, input.dtype(), input.device())
}

fn empty_like_as(input: &Tensor, dtype: Option<DType>, device: Option<Device>) -> Result<Tensor> {
    let layout = dense_like(input.sizes(), Some(input.layout()))?;
    Tensor::empty_strided(layout, dtype.unwrap_or(input.dtype()), device.unwrap_or(input.device()))
}

fn full_like_as(input: &Tensor, value: Scalar, dtype: Option<DType>, device: Option<Device>) -> Result<Tensor> {
    let _op = entered("full_like");
    let tensor = empty_like_as(input, dtype, device)?;
    tensor.fill_raw("full_like", value)?;
    Ok(tensor)
}

fn full_like(input: &Tensor, value: Scalar) -> Result<Tensor> {
    let _op = entered("full_like");
    let tensor = input.empty_like()?;
    tensor.fill_raw("full_like", value)?;
    Ok(tensor)
}

fn zeros_like(input: &Tensor) -> Result<Tensor> {
    input.full_like(0)
}

fn ones_like(input: &Tensor) -> Result<Tensor> {
    input.full_like(1)
}

impl Tensor {
    /// Returns a tensor of any layout whose elements are not set, as [`empty`](Self::empty).
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

    /// Returns a tensor whose elements may be invalid values of the dtype.
    pub(crate) fn unset(layout: Layout, dtype: DType, device: Device) -> Result<Self> {
        let bytes = layout.required_bytes(dtype)?;
        let storage = Storage::new(bytes, allocator(device)?)?;
        Self::from_storage(storage, layout, dtype)
    }

    /// Returns a tensor on the CPU with these elements, the last dimension dense.
    ///
    /// # Errors
    /// `sizes` need another number of elements; no memory.
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

    /// Returns a tensor on the CPU that takes over the memory of a vector without a copy; the last dimension is dense.
    ///
    /// # Errors
    /// `sizes` need another number of elements.
    pub fn from_vec<T: Element>(mut elements: Vec<T>, sizes: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(sizes)?;
        if layout.numel() != elements.len() {
            let reason =
                format!("{} elements do not fill sizes {sizes:?}, which hold {}", elements.len(), layout.numel());
            return Err(TensorError::shape("from_vec", reason));
        }
        let first = elements.as_mut_ptr().cast();
        let bytes = size_of_val(&elements[..]);
        let data = DataPtr::foreign(first, Device::CPU, move || drop(elements));
        // SAFETY: these are the vector's elements, and the closure owns the vector until it is called.
        let storage = unsafe { Storage::from_data_ptr(data, bytes, None) };
        Self::from_storage(storage, layout, T::DTYPE)
    }

    /// Returns a number as a tensor on the CPU with no dimensions.
    ///
    /// # Errors
    /// An integer of 2⁶³ or more that does not fit the dtype; no memory.
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Result<Self> {
        let value = value.into();
        value.check_large("scalar", dtype)?;
        with_element!(dtype, T => Self::from_slice(&[T::from_scalar(value)], &[]))
    }

    /// Writes one value everywhere, for the operation `op`. It bumps no version and records no gradient.
    pub(crate) fn fill_raw(&self, op: &'static str, value: Scalar) -> Result<()> {
        value.check_fits(op, self.dtype())?;
        let iter = Elementwise::new(op, &[self], &[])?;
        FILLS.find(self.device().kind(), self.dtype())?(&iter, value)
    }
}

/// Returns the dense layout of these sizes whose dimensions have the memory order of `like`'s.
pub(crate) fn dense_like(sizes: &[usize], like: Option<&Layout>) -> Result<Layout> {
    let Some(like) = like.filter(|like| !like.is_contiguous() && like.overlap() == Overlap::No) else {
        return Ok(Layout::contiguous(sizes)?);
    };
    for format in [MemoryFormat::ChannelsLast2d, MemoryFormat::ChannelsLast3d] {
        if like.is_contiguous_in(format) {
            return Ok(Layout::with_format(sizes, format)?);
        }
    }
    let mut order: SmallVec<[usize; 5]> = (0..sizes.len()).collect();
    order.sort_by_key(|dim| std::cmp::Reverse(like.strides()[*dim]));
    let ordered: SmallVec<[usize; 5]> = order.iter().map(|dim| sizes[*dim]).collect();
    let dense = Layout::contiguous(&ordered)?;
    let mut strides: SmallVec<[usize; 5]> = SmallVec::from_elem(0, sizes.len());
    order.iter().zip(dense.strides()).for_each(|(dim, stride)| strides[*dim] = *stride);
    Ok(Layout::strided(sizes, &strides, 0)?)
}
