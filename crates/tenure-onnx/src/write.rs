//! Models as files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use tenure_core::atomic_files::write_atomically;
use tenure_tensor::Tensor;

use crate::proto::{ModelProto, StringStringEntryProto};
use crate::{Error, Result, encode};

/// A message must be smaller than this: 2 GB, of which the graph may need some.
pub(crate) const LARGEST_MESSAGE_BYTES: usize = (1 << 31) - (1 << 26);

/// Elements in a second file begin at multiples of this, so that they can be mapped.
const ALIGNMENT: u64 = 4096;

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
        messages.push(encode::tensor(name, tensor, !is_external)?);
    }
    if is_external {
        let mut data_path = path.as_os_str().to_owned();
        data_path.push(".data");
        let data_path = PathBuf::from(data_path);
        let location = data_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut unread = None;
        let write = |file: &mut dyn Write| {
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
        };
        let written = write_atomically(&data_path, write);
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
