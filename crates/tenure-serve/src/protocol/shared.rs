//! Tensors whose elements are in shared memory instead of a message.

use bytes::Bytes;

use super::error::TensorError;
use super::{Datatype, ProtocolError, Tensor};

/// A part of a region of shared memory that the client registered by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The region's name.
    pub region: String,
    /// The offset of the part in the region, in bytes.
    pub offset: u64,
    /// The size of the part in bytes.
    pub byte_size: u64,
}

/// A tensor whose elements are in shared memory, where the client may change them at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTensor {
    /// The tensor's name in the model.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its size in each dimension.
    pub shape: Vec<usize>,
    /// The span that has its elements.
    pub span: Span,
}

impl SharedTensor {
    /// Builds the tensor from bytes that were read from its [`span`](Self::span).
    ///
    /// # Errors
    /// The number of bytes does not match the shape, or they are not elements of the type.
    pub fn with_bytes(self, bytes: impl Into<Bytes>) -> Result<Tensor, ProtocolError> {
        Tensor::new(self.name, self.datatype, self.shape, bytes)
    }
}

impl Span {
    /// Returns the span that a tensor's parameters describe, or `None` if they name no region.
    pub(crate) fn of(
        region: Option<String>,
        offset: Option<u64>,
        byte_size: Option<u64>,
    ) -> Result<Option<Self>, TensorError> {
        let Some(region) = region else { return Ok(None) };
        let byte_size = byte_size.ok_or(TensorError::NoByteSize)?;
        Ok(Some(Self { region, offset: offset.unwrap_or(0), byte_size }))
    }

    /// Returns the offset if it is to be sent: 0 is left out.
    pub(super) fn sent_offset(&self) -> Option<u64> {
        Some(self.offset).filter(|offset| *offset > 0)
    }
}
