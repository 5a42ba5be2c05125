//! The body of a message: JSON, followed by the bytes of the tensors that are not in the JSON.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::elements::{self, Elements};
use super::error::TensorError;
use super::{Datatype, Encoding, ProtocolError, SharedTensor, Span, Tensor, tensor};

/// The header that states the JSON's length in a message with bytes after the JSON. Nothing else states it.
pub const JSON_LENGTH: &str = "inference-header-content-length";

/// A body to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The whole body.
    pub body: Bytes,
    /// The number of its bytes that are JSON, for the header `Inference-Header-Content-Length`; `None` if all are.
    pub json_bytes: Option<usize>,
}

impl Encoded {
    /// Encodes `message`, followed by the bytes of the binary tensors.
    pub(super) fn new<'a>(
        message: &impl Serialize,
        tensors: impl Iterator<Item = (&'a Tensor, Encoding)>,
    ) -> Result<Self, ProtocolError> {
        let mut body = serde_json::to_vec(message).map_err(ProtocolError::Write)?;
        let json = body.len();
        let mut is_binary = false;
        for (tensor, _) in tensors.filter(|(_, encoding)| *encoding == Encoding::Binary) {
            is_binary = true;
            body.extend_from_slice(tensor.bytes());
        }
        Ok(Self { body: body.into(), json_bytes: is_binary.then_some(json) })
    }
}

/// Splits a body into its JSON and the bytes after it.
pub(super) fn split(mut body: Bytes, json_bytes: Option<usize>) -> Result<(Bytes, Bytes), ProtocolError> {
    let json_bytes = json_bytes.unwrap_or(body.len());
    if json_bytes > body.len() {
        return Err(ProtocolError::JsonLength { json_bytes, body_bytes: body.len() });
    }
    let binary = body.split_off(json_bytes);
    Ok((body, binary))
}

/// Parses a message, which must be a JSON object.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, ProtocolError> {
    // serde would accept an array as the values of a message's fields.
    if json.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(serde_json::Error::custom("a message is an object").into());
    }
    serde_json::from_slice(json).map_err(|error| match is_at_a_number_of_none(json, &error) {
        true => {
            ProtocolError::Unsupported { what: "NaN or an infinity in JSON", instead: "send the tensor as binary data" }
        }
        false => error.into(),
    })
}

/// Returns whether an error is at a `NaN` or `Infinity`, which JSON lacks but other languages write.
fn is_at_a_number_of_none(json: &[u8], error: &serde_json::Error) -> bool {
    let line = json.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1));
    let rest = line.and_then(|line| line.get(error.column().saturating_sub(1)..)).unwrap_or_default();
    error.is_syntax() && [&b"NaN"[..], b"Infinity"].into_iter().any(|number| rest.starts_with(number))
}

/// A tensor as read from JSON.
#[derive(Deserialize)]
pub(super) struct TensorIn<'a> {
    name: String,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    shape: Vec<i64>,
    parameters: Option<TensorParameters>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct TensorParameters {
    binary_data_size: Option<u64>,
    shared_memory_region: Option<String>,
    shared_memory_offset: Option<u64>,
    shared_memory_byte_size: Option<u64>,
}

/// Reads the tensors whose bytes follow each other in `binary`, and those whose bytes are in shared memory.
pub(super) fn read(
    tensors: Vec<TensorIn<'_>>,
    mut binary: Bytes,
) -> Result<(Vec<Tensor>, Vec<SharedTensor>), ProtocolError> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&*tensor.name)) {
        return Err(ProtocolError::Twice(twice.name.clone()));
    }
    let mut here = Vec::with_capacity(tensors.len());
    let mut shared = Vec::new();
    for tensor in tensors {
        match tensor.read(&mut binary)? {
            Read::Here(tensor) => here.push(tensor),
            Read::Shared(tensor) => shared.push(tensor),
        }
    }
    if binary.is_empty() { Ok((here, shared)) } else { Err(ProtocolError::Trailing(binary.len())) }
}

/// A tensor that was read, with its elements in the message or in shared memory.
enum Read {
    Here(Tensor),
    Shared(SharedTensor),
}

impl TensorIn<'_> {
    fn read(self, binary: &mut Bytes) -> Result<Read, ProtocolError> {
        let Self { name, datatype, shape, parameters, data } = self;
        let TensorParameters {
            binary_data_size,
            shared_memory_region: region,
            shared_memory_offset: offset,
            shared_memory_byte_size: byte_size,
        } = parameters.unwrap_or_default();
        let elements = || {
            let datatype = datatype.parse()?;
            let shape = tensor::shape(shape)?;
            let elements = match (data, binary_data_size, Span::of(region, offset, byte_size)?) {
                (Some(data), None, None) => ElementsPlace::Bytes(elements::parse(data, datatype, &shape)?.into()),
                (None, Some(size), None) => {
                    let fits = usize::try_from(size).ok().filter(|size| *size <= binary.len());
                    ElementsPlace::Bytes(binary.split_to(fits.ok_or(TensorError::Cut { size, left: binary.len() })?))
                }
                (None, None, Some(span)) => ElementsPlace::Span(span),
                _ => return Err(TensorError::NoData),
            };
            Ok((datatype, shape, elements))
        };
        let (datatype, shape, elements) = elements().map_err(|error: TensorError| error.of(&name))?;
        Ok(match elements {
            ElementsPlace::Bytes(bytes) => Read::Here(Tensor::new(name, datatype, shape, bytes)?),
            ElementsPlace::Span(span) => Read::Shared(SharedTensor { name, datatype, shape, span }),
        })
    }
}

/// The place of a tensor's elements.
enum ElementsPlace {
    Bytes(Bytes),
    Span(Span),
}

/// A tensor to be written as JSON.
#[derive(Serialize)]
pub(super) struct TensorOut<'a> {
    name: &'a str,
    datatype: Datatype,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<ParametersOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Elements<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ParametersOut {
    Binary {
        binary_data_size: usize,
    },
    Shared {
        shared_memory_region: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        shared_memory_offset: Option<u64>,
        shared_memory_byte_size: u64,
    },
}

impl<'a> TensorOut<'a> {
    pub(super) fn new(tensor: &'a Tensor, encoding: Encoding) -> Self {
        let (parameters, data) = match encoding {
            Encoding::Json => (None, Some(Elements(tensor))),
            Encoding::Binary => (Some(ParametersOut::Binary { binary_data_size: tensor.bytes().len() }), None),
        };
        Self { name: tensor.name(), datatype: tensor.datatype(), shape: tensor.shape(), parameters, data }
    }

    /// Describes a tensor whose elements were written to shared memory. The message does not repeat where, which the
    /// client knows: Triton's C++ client would take an output with parameters for one that is sent as bytes.
    pub(super) fn written(tensor: &'a Tensor) -> Self {
        let name = tensor.name();
        let datatype = tensor.datatype();
        let shape = tensor.shape();
        Self { name, datatype, shape, parameters: None, data: None }
    }
}

impl<'a> From<&'a SharedTensor> for TensorOut<'a> {
    fn from(tensor: &'a SharedTensor) -> Self {
        let SharedTensor { name, datatype, shape, span } = tensor;
        let parameters = ParametersOut::Shared {
            shared_memory_region: span.region.clone(),
            shared_memory_offset: span.sent_offset(),
            shared_memory_byte_size: span.byte_size,
        };
        Self { name, datatype: *datatype, shape, parameters: Some(parameters), data: None }
    }
}
