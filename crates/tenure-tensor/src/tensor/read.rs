//! Access to elements as Rust's values.

use super::Tensor;
use crate::{Access, Device, Element, Result, Scalar, TensorError, observe};

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
        let dense = crate::autograd::no_grad(|| self.to_device(Device::CPU)?.contiguous())?;
        let access = Access::new(op, &[], &[&dense])?;
        Ok(access.slice::<T>(0)?.to_vec())
    }
}
