//! A tensor's elements as the typed contents of a message.

use bytes::Bytes;

use super::messages::InferTensorContents;
use crate::protocol::{Datatype, Tensor, TensorError, push_string};

/// Returns the protocol's name of the field that holds elements of a type, or `None` for half precision.
fn field(datatype: Datatype) -> Option<&'static str> {
    match datatype {
        Datatype::Bool => Some("bool_contents"),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => Some("int_contents"),
        Datatype::Int64 => Some("int64_contents"),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => Some("uint_contents"),
        Datatype::Uint64 => Some("uint64_contents"),
        Datatype::Fp32 => Some("fp32_contents"),
        Datatype::Fp64 => Some("fp64_contents"),
        Datatype::Bytes => Some("bytes_contents"),
        Datatype::Fp16 | Datatype::Bf16 => None,
    }
}

/// Returns whether there are no elements.
pub(super) fn is_empty(contents: &InferTensorContents) -> bool {
    lengths(contents).iter().all(|(_, length)| *length == 0)
}

fn lengths(contents: &InferTensorContents) -> [(&'static str, usize); 8] {
    let InferTensorContents { bools, ints, int64s, uints, uint64s, fp32s, fp64s, strings } = contents;
    [
        ("bool_contents", bools.len()),
        ("int_contents", ints.len()),
        ("int64_contents", int64s.len()),
        ("uint_contents", uints.len()),
        ("uint64_contents", uint64s.len()),
        ("fp32_contents", fp32s.len()),
        ("fp64_contents", fp64s.len()),
        ("bytes_contents", strings.len()),
    ]
}

/// Converts the elements to the bytes of a tensor of a type.
///
/// # Errors
/// The elements have another type.
pub(super) fn read(contents: InferTensorContents, datatype: Datatype) -> Result<Vec<u8>, TensorError> {
    let field = field(datatype).ok_or(TensorError::NotContents(datatype))?;
    if lengths(&contents).iter().any(|(name, length)| *length > 0 && *name != field) {
        return Err(TensorError::OtherContents(datatype, field));
    }
    let InferTensorContents { bools, ints, int64s, uints, uint64s, fp32s, fp64s, strings } = contents;
    match datatype {
        Datatype::Bool => Ok(bools.into_iter().map(u8::from).collect()),
        Datatype::Int8 => narrow(datatype, ints, i8::to_le_bytes),
        Datatype::Int16 => narrow(datatype, ints, i16::to_le_bytes),
        Datatype::Int32 => Ok(bytes(ints, i32::to_le_bytes)),
        Datatype::Int64 => Ok(bytes(int64s, i64::to_le_bytes)),
        Datatype::Uint8 => narrow(datatype, uints, u8::to_le_bytes),
        Datatype::Uint16 => narrow(datatype, uints, u16::to_le_bytes),
        Datatype::Uint32 => Ok(bytes(uints, u32::to_le_bytes)),
        Datatype::Uint64 => Ok(bytes(uint64s, u64::to_le_bytes)),
        Datatype::Fp32 => Ok(bytes(fp32s, f32::to_le_bytes)),
        Datatype::Fp64 => Ok(bytes(fp64s, f64::to_le_bytes)),
        Datatype::Bytes => {
            let mut bytes = Vec::with_capacity(strings.iter().map(|string| string.len() + 4).sum());
            strings.iter().try_for_each(|string| push_string(&mut bytes, string))?;
            Ok(bytes)
        }
        Datatype::Fp16 | Datatype::Bf16 => Err(TensorError::NotContents(datatype)),
    }
}

fn bytes<T, const SIZE: usize>(numbers: Vec<T>, to_bytes: impl Fn(T) -> [u8; SIZE]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() * SIZE);
    for number in numbers {
        bytes.extend(to_bytes(number));
    }
    bytes
}

fn narrow<Wide: Copy + Into<i64>, T: TryFrom<Wide>, const SIZE: usize>(
    datatype: Datatype,
    numbers: Vec<Wide>,
    to_bytes: impl Fn(T) -> [u8; SIZE],
) -> Result<Vec<u8>, TensorError> {
    let mut bytes = Vec::with_capacity(numbers.len() * SIZE);
    for wide in numbers {
        let number = T::try_from(wide).map_err(|_| TensorError::Range(datatype, wide.into()))?;
        bytes.extend(to_bytes(number));
    }
    Ok(bytes)
}

/// Returns a tensor's elements, or `None` if its type has no field.
pub(super) fn write(tensor: &Tensor) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    match tensor.datatype() {
        Datatype::Bool => contents.bools = numbers(tensor, |[byte]| byte != 0),
        Datatype::Int8 => contents.ints = numbers(tensor, |bytes| i8::from_le_bytes(bytes).into()),
        Datatype::Int16 => contents.ints = numbers(tensor, |bytes| i16::from_le_bytes(bytes).into()),
        Datatype::Int32 => contents.ints = numbers(tensor, i32::from_le_bytes),
        Datatype::Int64 => contents.int64s = numbers(tensor, i64::from_le_bytes),
        Datatype::Uint8 => contents.uints = numbers(tensor, |[byte]| byte.into()),
        Datatype::Uint16 => contents.uints = numbers(tensor, |bytes| u16::from_le_bytes(bytes).into()),
        Datatype::Uint32 => contents.uints = numbers(tensor, u32::from_le_bytes),
        Datatype::Uint64 => contents.uint64s = numbers(tensor, u64::from_le_bytes),
        Datatype::Fp32 => contents.fp32s = numbers(tensor, f32::from_le_bytes),
        Datatype::Fp64 => contents.fp64s = numbers(tensor, f64::from_le_bytes),
        Datatype::Bytes => contents.strings = tensor.iter_strings().map(Bytes::copy_from_slice).collect(),
        Datatype::Fp16 | Datatype::Bf16 => return None,
    }
    Some(contents)
}

fn numbers<T, const SIZE: usize>(tensor: &Tensor, from_bytes: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    tensor.bytes().as_chunks().0.iter().map(|bytes| from_bytes(*bytes)).collect()
}
