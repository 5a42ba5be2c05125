//! Tensors, their dtypes and devices, and generators of random numbers.

use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

use crate::ffi::{self, Handle, RawAccess, RawGenerator};
use crate::function::check;
use crate::{Error, Result};

/// A tensor. A clone is another handle of the same tensor.
#[repr(transparent)]
pub struct Tensor(NonNull<Handle>);

// SAFETY: by the header, any thread may use a handle.
unsafe impl Send for Tensor {}
// SAFETY: by the header, several threads may use a handle at the same time.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Owns a handle.
    ///
    /// # Safety
    /// The handle is null, or one that nothing else owns.
    pub(crate) unsafe fn adopt(handle: *mut Handle) -> Result<Self> {
        NonNull::new(handle).map(Self).ok_or_else(|| Error::new("a tensor is needed, and this is none"))
    }

    /// Gives up the handle.
    pub(crate) fn into_handle(self) -> *mut Handle {
        let handle = self.0.as_ptr();
        std::mem::forget(self);
        handle
    }

    pub(crate) fn handle(&self) -> *const Handle {
        self.0.as_ptr()
    }

    /// Makes a tensor of elements, whose last dimension is dense.
    ///
    /// # Errors
    /// The elements do not fill the sizes, or there is no memory.
    pub fn from_slice<T: Element>(elements: &[T], sizes: &[i64], device: Device) -> Result<Self> {
        let count = sizes.iter().try_fold(1_i64, |product, size| product.checked_mul(*size));
        if count != i64::try_from(elements.len()).ok() || sizes.iter().any(|size| *size < 0) {
            let count = elements.len();
            return Err(Error::new(format!("{count} elements do not fill the sizes {sizes:?}")));
        }
        let data = elements.as_ptr().cast();
        let dtype = T::DTYPE as c_int;
        // SAFETY: so many elements and sizes, and a place for a handle.
        made(|place| unsafe {
            ffi::tenure_tensor_from(data, sizes.as_ptr(), sizes.len(), dtype, device.number(), place)
        })
    }

    /// Returns a copy of the elements, with the last dimension dense.
    ///
    /// # Errors
    /// The elements are of another dtype, or cannot be read.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_elements::<T>()?;
        let count = self.numel();
        let mut elements: Vec<T> = Vec::with_capacity(count);
        // SAFETY: there is room for all elements, which are of this type, and are there after the call.
        unsafe {
            let data = elements.as_mut_ptr().cast();
            check(ffi::tenure_tensor_read(self.handle(), data, count * size_of::<T>()))?;
            elements.set_len(count);
        }
        Ok(elements)
    }

    pub(crate) fn check_elements<T: Element>(&self) -> Result<()> {
        let dtype = self.dtype();
        if dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::new(format!("the elements are of {dtype:?}, and not of {:?}: convert them first", T::DTYPE)))
    }

    /// Returns the number of elements along each dimension.
    pub fn sizes(&self) -> &[i64] {
        // SAFETY: a handle. Its sizes live until it is freed or changed.
        unsafe { elements(ffi::tenure_tensor_sizes(self.handle()), self.dim()) }
    }

    /// Returns the number of elements from one index of each dimension to the next.
    pub fn strides(&self) -> &[i64] {
        // SAFETY: as for sizes().
        unsafe { elements(ffi::tenure_tensor_strides(self.handle()), self.dim()) }
    }

    /// Returns the number of elements along a dimension, which counts from the end if it is negative.
    ///
    /// # Errors
    /// The dimension does not exist.
    pub fn size(&self, dim: i64) -> Result<i64> {
        let index = if dim < 0 { dim + self.dim() as i64 } else { dim };
        let size = usize::try_from(index).ok().and_then(|index| self.sizes().get(index));
        size.copied().ok_or_else(|| {
            let rank = self.dim();
            Error::new(format!("dimension {dim} is out of range for a tensor of {rank} dimensions"))
        })
    }

    /// Returns the number of dimensions.
    pub fn dim(&self) -> usize {
        // SAFETY: a handle.
        unsafe { ffi::tenure_tensor_rank(self.handle()) }
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        // SAFETY: a handle.
        unsafe { ffi::tenure_tensor_numel(self.handle()) }
    }

    /// Returns the type of the elements.
    ///
    /// # Panics
    /// If the program's Tenure has dtypes that this crate does not know.
    pub fn dtype(&self) -> DType {
        // SAFETY: a handle.
        let number = unsafe { ffi::tenure_tensor_dtype(self.handle()) };
        DType::of(number).unwrap_or_else(|| panic!("the dtype {number} is not known: build the extension again"))
    }

    /// Returns the device of the elements.
    pub fn device(&self) -> Device {
        // SAFETY: a handle.
        Device(unsafe { ffi::tenure_tensor_device(self.handle()) })
    }

    /// Returns whether the elements lie one after another, the last dimension dense.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: a handle.
        unsafe { ffi::tenure_tensor_is_contiguous(self.handle()) }
    }

    /// Returns whether the tensor takes part in the computation of gradients.
    pub fn requires_grad(&self) -> bool {
        // SAFETY: a handle.
        unsafe { ffi::tenure_tensor_requires_grad(self.handle()) }
    }

    /// Says whether the tensor gets a gradient.
    ///
    /// # Errors
    /// The elements are no floats, or the tensor is a result.
    pub fn set_requires_grad(&mut self, requires_grad: bool) -> Result<()> {
        // SAFETY: a handle that no other thread uses.
        check(unsafe { ffi::tenure_tensor_set_requires_grad(self.0.as_ptr(), requires_grad) })
    }

    /// Returns the gradient, or `None` if there is none yet.
    ///
    /// # Errors
    /// The gradient cannot be had.
    pub fn grad(&self) -> Result<Option<Self>> {
        let mut grad = ptr::null_mut();
        // SAFETY: a handle, and a place for another.
        check(unsafe { ffi::tenure_tensor_grad(self.handle(), &raw mut grad) })?;
        Ok(NonNull::new(grad).map(Self))
    }

    /// Computes the gradients of the tensors that this one depends on.
    ///
    /// # Errors
    /// The tensor has several elements, or no gradients.
    pub fn backward(&self) -> Result<()> {
        // SAFETY: a handle.
        check(unsafe { ffi::tenure_tensor_backward(self.handle()) })
    }

    /// Returns a tensor on the same elements that is not connected with gradients.
    ///
    /// # Errors
    /// The call fails.
    pub fn detach(&self) -> Result<Self> {
        // SAFETY: a handle, and a place for another.
        made(|place| unsafe { ffi::tenure_tensor_detach(self.handle(), place) })
    }
}

impl Clone for Tensor {
    /// # Panics
    /// If there is no memory for a handle.
    fn clone(&self) -> Self {
        // SAFETY: a handle, and a place for another.
        match made(|place| unsafe { ffi::tenure_tensor_share(self.handle(), place) }) {
            Ok(tensor) => tensor,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: a handle, which this owns.
        unsafe { ffi::tenure_tensor_free(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a tensor of {:?} and sizes {:?}", self.dtype(), self.sizes())
    }
}

/// Returns the tensor whose handle a call writes to a place.
fn made(call: impl FnOnce(*mut *mut Handle) -> c_int) -> Result<Tensor> {
    let mut handle = ptr::null_mut();
    check(call(&raw mut handle))?;
    // SAFETY: the call has made the handle for its caller.
    unsafe { Tensor::adopt(handle) }
}

/// Returns the handles of tensors, which stay the owners.
pub(crate) fn handles(tensors: &[&Tensor]) -> Vec<*const Handle> {
    tensors.iter().map(|tensor| tensor.handle()).collect()
}

/// Returns a list of C.
///
/// # Safety
/// `count` elements are at `first` as long as the result lives.
pub(crate) unsafe fn elements<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the function's contract.
    unsafe { slice::from_raw_parts(first, count) }
}

macro_rules! dtypes {
    ($($name:ident = $number:literal,)*) => {
        /// The type of a tensor's elements.
        #[allow(missing_docs, reason = "the names say it")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum DType {
            $($name = $number,)*
        }

        impl DType {
            pub(crate) fn of(number: c_int) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    Bool = 0,
    Uint8 = 1,
    Int8 = 2,
    Int16 = 3,
    Int32 = 4,
    Int64 = 5,
    Float16 = 6,
    Bfloat16 = 7,
    Float32 = 8,
    Float64 = 9,
}

/// A type of Rust that elements have.
///
/// # Safety
/// Elements of the dtype are values of the type.
pub unsafe trait Element: Copy {
    /// The dtype.
    const DTYPE: DType;
}

macro_rules! element {
    ($($type:ty: $dtype:ident,)*) => {$(
        // SAFETY: the dtype is named after the type.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

element! {
    bool: Bool, u8: Uint8, i8: Int8, i16: Int16, i32: Int32, i64: Int64, f32: Float32, f64: Float64,
}

/// The CPU or a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(pub(crate) c_int);

impl Device {
    /// The CPU.
    pub const CPU: Self = Self(-1);

    /// Returns the CUDA device of a number.
    pub fn cuda(number: u16) -> Self {
        Self(number.into())
    }

    pub(crate) fn number(self) -> c_int {
        self.0
    }
}

/// A generator of random numbers.
pub struct Generator(NonNull<RawGenerator>);

// SAFETY: by the header, any thread may use a handle.
unsafe impl Send for Generator {}
// SAFETY: by the header, several threads may use a handle at the same time.
unsafe impl Sync for Generator {}

impl Generator {
    /// Makes a generator.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(seed: u64) -> Result<Self> {
        // SAFETY: a call of C.
        let made = unsafe { ffi::tenure_generator_new(seed) };
        NonNull::new(made).map(Self).ok_or_else(|| Error::new("out of memory for a generator"))
    }

    pub(crate) fn handle(&self) -> *const RawGenerator {
        self.0.as_ptr()
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // SAFETY: a generator, which this owns.
        unsafe { ffi::tenure_generator_free(self.0.as_ptr()) }
    }
}

/// Access to the elements of tensors: while it lives, no other thread writes to those that are read, and none reads or
/// writes those that are written. Until it ends, its own thread begins no other access and calls no operation: these
/// fail.
pub struct Access(NonNull<RawAccess>);

impl Access {
    /// Begins an access.
    ///
    /// # Errors
    /// The tensors are on several devices, or a thread's other access lives.
    pub fn new(written: &[&Tensor], read: &[&Tensor]) -> Result<Self> {
        let written = handles(written);
        let read = handles(read);
        let mut access = ptr::null_mut();
        // SAFETY: so many handles, and a place for the access.
        check(unsafe {
            ffi::tenure_access_begin(written.as_ptr(), written.len(), read.as_ptr(), read.len(), &raw mut access)
        })?;
        NonNull::new(access).map(Self).ok_or_else(|| Error::new("the access is null"))
    }

    /// Returns the address of a tensor's first element. Others are at the tensor's strides. The address is valid until
    /// the access ends, for writes only if the tensor is one of those that are written.
    ///
    /// # Errors
    /// The elements are of another dtype, or the tensor is none of the access.
    pub fn data<T: Element>(&self, tensor: &Tensor) -> Result<*mut T> {
        tensor.check_elements::<T>()?;
        let mut data = ptr::null_mut();
        // SAFETY: an access, a handle, and a place for the address.
        check(unsafe { ffi::tenure_access_data(self.0.as_ptr(), tensor.handle(), &raw mut data) })?;
        Ok(data.cast())
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        // SAFETY: an access that this thread has begun: it cannot be sent to another.
        unsafe { ffi::tenure_access_end(self.0.as_ptr()) }
    }
}
