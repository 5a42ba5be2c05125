//! Tensors whose elements are in shared memory, not in a message.

use bytes::Bytes;

use super::error::TensorError;
use super::{Datatype, ProtocolError, Tensor};

/// A part of a region of shared memory, which its client has registered by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The region's name.
    pub region: String,
    /// Where the part begins in the region, in bytes.
    pub offset: u64,
    /// Bytes of it.
    pub byte_size: u64,
}

/// A tensor whose elements are in shared memory. They may be others at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTensor {
    /// Its name, by which the model knows it.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its size in each dimension.
    pub shape: Vec<usize>,
    /// Where its elements are.
    pub span: Span,
}

impl SharedTensor {
    /// The tensor with what was read of its [`span`](Self::span).
    ///
    /// # Errors
    /// The bytes are not as many as the shape says, or are no elements of the type.
    pub fn with_bytes(self, bytes: impl Into<Bytes>) -> Result<Tensor, ProtocolError> {
        Tensor::new(self.name, self.datatype, self.shape, bytes)
    }
}

impl Span {
    /// The span that the parameters of a tensor say, if they say one.
    pub(crate) fn of(
        region: Option<String>,
        offset: Option<u64>,
        byte_size: Option<u64>,
    ) -> Result<Option<Self>, TensorError> {
        let Some(region) = region else { return Ok(None) };
        let byte_size = byte_size.ok_or(TensorError::NoByteSize)?;
        Ok(Some(Self { region, offset: offset.unwrap_or(0), byte_size }))
    }

    /// The offset as it is sent: 0 is not.
    pub(super) fn sent_offset(&self) -> Option<u64> {
        Some(self.offset).filter(|offset| *offset > 0)
    }
}
