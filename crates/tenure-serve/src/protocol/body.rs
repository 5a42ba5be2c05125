//! A message's body: JSON, and behind it the bytes of those tensors that are not in it.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::elements::{self, Elements};
use super::error::TensorError;
use super::{Datatype, Encoding, ProtocolError, Tensor, tensor};

/// The JSON's length is told by this header of a message that has bytes behind it, and by nothing else.
pub const JSON_LENGTH: &str = "inference-header-content-length";

/// A body that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// All of it.
    pub body: Bytes,
    /// How many of its bytes are JSON, for the header `Inference-Header-Content-Length`; nothing if all are.
    pub json_bytes: Option<usize>,
}

impl Encoded {
    /// The body that says `message`, with the bytes of those tensors behind it that are not in it.
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

/// The JSON of a body, and what is behind it.
pub(super) fn split(mut body: Bytes, json_bytes: Option<usize>) -> Result<(Bytes, Bytes), ProtocolError> {
    let json_bytes = json_bytes.unwrap_or(body.len());
    if json_bytes > body.len() {
        return Err(ProtocolError::JsonLength { json_bytes, body_bytes: body.len() });
    }
    let binary = body.split_off(json_bytes);
    Ok((body, binary))
}

/// A tensor as JSON says it.
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
    shared_memory_region: Option<IgnoredAny>,
}

/// The tensors, whose bytes lie one behind the other in `binary`.
pub(super) fn read(tensors: Vec<TensorIn<'_>>, mut binary: Bytes) -> Result<Vec<Tensor>, ProtocolError> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&*tensor.name)) {
        return Err(ProtocolError::Twice(twice.name.clone()));
    }
    let tensors: Vec<Tensor> =
        tensors.into_iter().map(|tensor| tensor.read(&mut binary)).collect::<Result<_, ProtocolError>>()?;
    if binary.is_empty() { Ok(tensors) } else { Err(ProtocolError::Trailing(binary.len())) }
}

impl TensorIn<'_> {
    fn read(self, binary: &mut Bytes) -> Result<Tensor, ProtocolError> {
        let Self { name, datatype, shape, parameters, data } = self;
        let parameters = parameters.unwrap_or_default();
        if parameters.shared_memory_region.is_some() {
            return Err(ProtocolError::Unsupported {
                what: "shared memory",
                instead: "send the tensor as binary data behind the JSON",
            });
        }
        let elements = || {
            let datatype = datatype.parse()?;
            let shape = tensor::shape(shape)?;
            let bytes = match (data, parameters.binary_data_size) {
                (Some(data), None) => elements::parse(data, datatype, &shape)?.into(),
                (None, Some(size)) => {
                    let fits = usize::try_from(size).ok().filter(|size| *size <= binary.len());
                    binary.split_to(fits.ok_or(TensorError::Cut { size, left: binary.len() })?)
                }
                _ => return Err(TensorError::NoData),
            };
            Ok((datatype, shape, bytes))
        };
        let (datatype, shape, bytes) = elements().map_err(|error: TensorError| error.of(&name))?;
        Tensor::new(name, datatype, shape, bytes)
    }
}

/// A tensor as JSON says it.
#[derive(Serialize)]
pub(super) struct TensorOut<'a> {
    name: &'a str,
    datatype: Datatype,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Elements<'a>>,
}

#[derive(Serialize)]
struct Size {
    binary_data_size: usize,
}

impl<'a> TensorOut<'a> {
    pub(super) fn new(tensor: &'a Tensor, encoding: Encoding) -> Self {
        let (parameters, data) = match encoding {
            Encoding::Json => (None, Some(Elements(tensor))),
            Encoding::Binary => (Some(Size { binary_data_size: tensor.bytes().len() }), None),
        };
        Self { name: tensor.name(), datatype: tensor.datatype(), shape: tensor.shape(), parameters, data }
    }
}
