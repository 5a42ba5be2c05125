//! Conversions between the tensors of messages and the tensors of networks; several requests become one batch.

use bytes::Bytes;
use tenure_tensor::{DType, Tensor, TensorError};

use super::ModelError;
use crate::protocol::{self, Datatype};
use crate::repository::{Dimension, TensorSpec};

/// Returns the dtype of tensors that hold elements of a protocol's datatype, or `None` if there is none.
pub fn dtype_of(datatype: Datatype) -> Option<DType> {
    Some(match datatype {
        Datatype::Bool => DType::Bool,
        Datatype::Uint8 => DType::U8,
        Datatype::Int8 => DType::I8,
        Datatype::Int16 => DType::I16,
        Datatype::Int32 => DType::I32,
        Datatype::Int64 => DType::I64,
        Datatype::Fp16 => DType::F16,
        Datatype::Bf16 => DType::BF16,
        Datatype::Fp32 => DType::F32,
        Datatype::Fp64 => DType::F64,
        Datatype::Uint16 => DType::U16,
        Datatype::Uint32 => DType::U32,
        Datatype::Uint64 => DType::U64,
        Datatype::Bytes => return None,
    })
}

/// A tensor as bytes, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTensor {
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
    /// The bytes, in consecutive parts.
    pub(crate) parts: Vec<Bytes>,
}

impl RawTensor {
    pub(super) fn of(tensor: &Tensor) -> Result<Self, TensorError> {
        let parts = vec![Bytes::from(tensor.to_bytes()?)];
        Ok(Self { dtype: tensor.dtype(), sizes: tensor.sizes().to_vec(), parts })
    }

    pub(super) fn to_tensor(&self) -> Result<Tensor, TensorError> {
        Tensor::from_bytes(&self.bytes(), &self.sizes, self.dtype)
    }

    /// Returns all bytes together, copied if they are in several parts.
    fn bytes(&self) -> Bytes {
        match &self.parts[..] {
            [only] => only.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// Concatenates the tensors of several requests along their first dimension. There must be at least one.
pub(super) fn join(parts: &[&protocol::Tensor]) -> Result<RawTensor, ModelError> {
    let first = parts[0];
    let datatype = parts[0].datatype();
    let dtype = dtype_of(datatype).ok_or_else(|| ModelError::Datatype { name: first.name().into(), datatype })?;
    let mut sizes = first.shape().to_vec();
    if parts.len() > 1 {
        sizes[0] = parts.iter().map(|part| part.shape()[0]).sum();
    }
    Ok(RawTensor { dtype, sizes, parts: parts.iter().map(|part| part.bytes().clone()).collect() })
}

/// Splits an output into the rows of each request, or gives all of it to the only request. Checks that the output is
/// as the configuration says.
pub(super) fn split(output: &RawTensor, spec: &TensorSpec, rows: &[u32]) -> Result<Vec<protocol::Tensor>, ModelError> {
    let RawTensor { dtype: found, sizes, .. } = output;
    let total: u32 = rows.iter().sum();
    let has_all_rows = rows.len() < 2 || sizes.first().is_some_and(|first| *first == total as usize);
    let has_expected_shape = sizes.len() == spec.shape.len()
        && sizes.iter().zip(&spec.shape).all(|(size, dimension)| match dimension {
            Dimension::Free => true,
            Dimension::Fixed(expected) => *size as u64 == *expected,
        });
    if !has_all_rows || !has_expected_shape || dtype_of(spec.datatype) != Some(*found) {
        let shape: Vec<String> = spec.shape.iter().map(Dimension::to_string).collect();
        return Err(ModelError::Output {
            found: format!("{found:?} of {sizes:?} to {total} rows"),
            expected: format!("{} of [{}]", spec.datatype, shape.join(", ")),
        });
    }
    let bytes = output.bytes();
    let row_bytes = bytes.len() / total as usize;
    let mut begin = 0;
    rows.iter()
        .map(|count| {
            let mut shape = sizes.clone();
            let mut end = bytes.len();
            if rows.len() > 1 {
                shape[0] = *count as usize;
                end = begin + row_bytes * shape[0];
            }
            let part = bytes.slice(begin..end);
            begin = end;
            Ok(protocol::Tensor::new(spec.name.clone(), spec.datatype, shape, part)?)
        })
        .collect()
}
