//! Access to elements as Rust's values and as raw bytes, for files.

use super::Tensor;
use crate::autograd::no_grad;
use crate::{Access, DType, Device, Element, Result, Scalar, TensorError, observe};

impl Tensor {
    /// Returns all elements, the last dimension fastest.
    ///
    /// # Errors
    /// `T` is of another dtype: convert first with [`to_dtype`](Self::to_dtype).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.elements("to_vec")
    }

    /// Returns the only element.
    ///
    /// # Errors
    /// There are more elements, or none; `T` is of another dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            let reason = format!("one element is needed, got sizes {:?}: to_vec() gives all of them", self.sizes());
            return Err(TensorError::shape("item", reason));
        }
        Ok(self.elements("item")?[0])
    }

    /// Returns the only element, of any dtype.
    ///
    /// # Errors
    /// There are more elements, or none.
    pub fn item_scalar(&self) -> Result<Scalar> {
        crate::element::with_element!(self.dtype(), T => self.item::<T>().map(Element::to_scalar))
    }

    fn elements<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        if observe::is_on() {
            observe::tell_read(self);
        }
        let dense = no_grad(|| self.to_device(Device::CPU)?.contiguous())?;
        let access = Access::new(op, &[], &[&dense])?;
        Ok(access.slice::<T>(0)?.to_vec())
    }

    /// Returns a tensor on the CPU whose elements are these bytes, in the machine's byte order and with the last
    /// dimension dense.
    ///
    /// # Errors
    /// `sizes` need another number of bytes; a byte of `bool` is neither 0 nor 1; no memory.
    pub fn from_bytes(bytes: &[u8], sizes: &[usize], dtype: DType) -> Result<Self> {
        let tensor = Self::empty(sizes, dtype, Device::CPU)?;
        let expected = tensor.numel() * dtype.size();
        if bytes.len() != expected {
            let reason = format!("{} bytes do not fill {dtype} {sizes:?}, which take {expected}", bytes.len());
            return Err(TensorError::shape("from_bytes", reason));
        }
        if dtype == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
            return Err(TensorError::argument("from_bytes", "a byte of bool is 0 or 1, found another"));
        }
        let mut access = Access::new("from_bytes", &[&tensor], &[])?;
        let data = access.write_ptr(0);
        // SAFETY: the fresh tensor is contiguous, so its layout is this many bytes from its first element, and no other
        // thread has it; every value of the bytes is one of the dtype.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, expected) };
        drop(access);
        Ok(tensor)
    }

    /// Returns the bytes of all elements, in the machine's byte order and with the last dimension dense.
    ///
    /// # Errors
    /// No memory; the device cannot be used, or an earlier operation on it failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.with_bytes(<[u8]>::to_vec)
    }

    /// Calls `show` with the bytes that [`to_bytes`](Self::to_bytes) returns. They are copied only if the tensor is not
    /// contiguous, or is on a device. Writers to the tensor wait meanwhile.
    ///
    /// # Errors
    /// The errors of [`to_bytes`](Self::to_bytes).
    pub fn with_bytes<T>(&self, show: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let dense = no_grad(|| self.to_device(Device::CPU)?.contiguous())?;
        let access = Access::new("with_bytes", &[], &[&dense])?;
        let length = dense.numel() * dense.dtype().size();
        if length == 0 {
            return Ok(show(&[]));
        }
        // SAFETY: the tensor is contiguous, so this many initialised bytes follow the first element; the guard keeps
        // writers away.
        Ok(show(unsafe { std::slice::from_raw_parts(access.read_ptr(0), length) }))
    }
}
