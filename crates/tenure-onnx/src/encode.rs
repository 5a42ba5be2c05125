//! Tensors and models in ONNX's format.

use std::io;
use std::path::{Path, PathBuf};

use prost::Message;
use tenure_core::atomic_files::write_atomically;
use tenure_tensor::{DType, Scalar, Tensor};

use crate::proto::{ModelProto, StringStringEntryProto, TensorProto};
use crate::{Error, Result};

/// A message must be smaller than this: 2 GB, of which the graph may need some.
pub(crate) const LARGEST_MESSAGE_BYTES: usize = (1 << 31) - (1 << 26);

/// Elements in a second file begin at multiples of this, so that they can be mapped.
const ALIGNMENT: u64 = 4096;

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
fn tensor_message(name: &str, tensor: &Tensor, with_elements: bool) -> Result<TensorProto> {
    Ok(TensorProto {
        dims: tensor.sizes().iter().map(|size| *size as i64).collect(),
        data_type: data_type(tensor.dtype()),
        name: name.to_owned(),
        raw_data: if with_elements { Some(tensor.to_bytes()?) } else { None },
        ..TensorProto::default()
    })
}

/// Writes a model. If its tensors have more than `most_bytes`, their elements go to a second file, whose name has
/// `.data` at the end.
///
/// # Errors
/// A file cannot be written; a tensor cannot be read.
pub(crate) fn write(path: &Path, mut model: ModelProto, tensors: &[(String, Tensor)], most_bytes: usize) -> Result<()> {
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.numel() * tensor.dtype().size()).sum();
    let is_external = bytes > most_bytes;
    let mut messages = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        messages.push(tensor_message(name, tensor, !is_external)?);
    }
    if is_external {
        let mut data_path = path.as_os_str().to_owned();
        data_path.push(".data");
        let data_path = PathBuf::from(data_path);
        let location = data_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut unread = None;
        let written = write_atomically(&data_path, |file| {
            let mut end = 0_u64;
            for (message, (_, tensor)) in messages.iter_mut().zip(tensors) {
                let offset = end.next_multiple_of(ALIGNMENT);
                io::copy(&mut io::Read::take(io::repeat(0), offset - end), file)?;
                let length = match tensor.with_bytes(|bytes| file.write_all(bytes).map(|()| bytes.len() as u64)) {
                    Ok(length) => length?,
                    Err(error) => {
                        unread = Some(error);
                        return Err(io::ErrorKind::Other.into());
                    }
                };
                end = offset + length;
                message.data_location = Some(1);
                message.external_data = vec![
                    entry("location", location.clone()),
                    entry("offset", offset.to_string()),
                    entry("length", length.to_string()),
                ];
            }
            Ok(())
        });
        if let Some(error) = unread {
            return Err(error.into());
        }
        written.map_err(|error| Error::Write { path: data_path, error })?;
    }
    if let Some(graph) = &mut model.graph {
        graph.initializer.splice(0..0, messages);
    }
    let bytes = model.encode_to_vec();
    write_atomically(path, |file| file.write_all(&bytes)).map_err(|error| Error::Write { path: path.to_owned(), error })
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.to_owned(), value }
}
