//! Tensors in ONNX's format.

use tenure_tensor::{DType, Scalar, Tensor};

use crate::Result;
use crate::proto::TensorProto;

/// Returns ONNX's number of a type of elements.
pub(crate) fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
    }
}

/// Returns the bytes of a number.
pub(crate) fn number(number: Scalar, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(number.to_bool())],
        DType::U8 => vec![number.to_i64() as u8],
        DType::I8 => (number.to_i64() as i8).to_le_bytes().to_vec(),
        DType::I16 => (number.to_i64() as i16).to_le_bytes().to_vec(),
        DType::I32 => (number.to_i64() as i32).to_le_bytes().to_vec(),
        DType::U16 => (number.to_i64() as u16).to_le_bytes().to_vec(),
        DType::U32 => (number.to_i64() as u32).to_le_bytes().to_vec(),
        // The bits of a large unsigned number are those of the integer that it wraps to.
        DType::I64 | DType::U64 => number.to_i64().to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(number.to_f64()).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(number.to_f64()).to_le_bytes().to_vec(),
        DType::F32 => (number.to_f64() as f32).to_le_bytes().to_vec(),
        DType::F64 => number.to_f64().to_le_bytes().to_vec(),
    }
}

/// Returns a tensor's message, with its elements if `with_elements`.
pub(crate) fn tensor(name: &str, tensor: &Tensor, with_elements: bool) -> Result<TensorProto> {
    Ok(TensorProto {
        dims: tensor.sizes().iter().map(|size| *size as i64).collect(),
        data_type: data_type(tensor.dtype()),
        name: name.to_owned(),
        raw_data: if with_elements { Some(tensor.to_bytes()?) } else { None },
        ..TensorProto::default()
    })
}
