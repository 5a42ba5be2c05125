//! Tensors as text.

use std::fmt;

use super::Tensor;

impl fmt::Debug for Tensor {
    /// On one line, without the elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, device) = (self.dtype(), self.device());
        write!(f, "Tensor({dtype} {:?}, strides {:?}, {device})", self.sizes(), self.strides())
    }
}
