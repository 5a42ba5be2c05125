//! Elements as Rust's values.

use super::Tensor;
use crate::{Access, Element, Result, Scalar, TensorError};

impl Tensor {
    /// All elements, the last dimension fastest.
    ///
    /// # Errors
    /// Another dtype: convert first with [`to_dtype`](Self::to_dtype).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let dense = crate::autograd::no_grad(|| self.contiguous())?;
        let access = Access::new("to_vec", &[], &[&dense])?;
        Ok(access.slice::<T>(0)?.to_vec())
    }

    /// The only element.
    ///
    /// # Errors
    /// There are more, or none; another dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec::<T>()?[..] {
            [element] => Ok(element),
            _ => {
                let reason = format!("one element is needed, got sizes {:?}", self.sizes());
                Err(TensorError::shape("item", reason))
            }
        }
    }

    /// The only element, whatever its dtype.
    ///
    /// # Errors
    /// There are more, or none.
    pub fn item_scalar(&self) -> Result<Scalar> {
        crate::element::with_element!(self.dtype(), T => self.item::<T>().map(Element::to_scalar))
    }
}
