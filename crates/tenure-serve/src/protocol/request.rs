//! Requests for inference.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::body::{self, Encoded, TensorIn, TensorOut};
use super::{ProtocolError, SharedTensor, Span, Tensor};

/// The form in which a tensor's elements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// In the JSON.
    #[default]
    Json,
    /// As bytes after the JSON.
    Binary,
}

/// A request for inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferRequest {
    /// The model's name.
    pub model: String,
    /// The model's version, if the client asks for a certain one.
    pub version: Option<String>,
    /// The client's id for the request, which the answer repeats.
    pub id: Option<String>,
    /// The priority: 1 goes first, higher numbers later. 0 leaves the choice to the server.
    pub priority: u64,
    /// The time from the request's arrival during which an answer is of use; `None` if it always is. It is sent in µs,
    /// where 0 means no limit.
    pub timeout: Option<Duration>,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The inputs that are still to be read from shared memory.
    pub shared_inputs: Vec<SharedTensor>,
    /// The outputs to answer with.
    pub wanted: Wanted,
}

/// The requested outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The outputs in the order of the answer. If the list is empty, all outputs are requested.
    pub outputs: Vec<WantedOutput>,
    /// The encoding of outputs that do not state their own.
    pub encoding: Encoding,
}

/// A requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedOutput {
    /// The output's name.
    pub name: String,
    /// The encoding, if it differs from the others'.
    pub encoding: Option<Encoding>,
    /// The span of shared memory to write it to, instead of sending it.
    pub span: Option<Span>,
}

impl Wanted {
    /// Returns the encoding of the output with this name.
    pub fn encoding(&self, name: &str) -> Encoding {
        let output = self.outputs.iter().find(|output| output.name == name);
        output.and_then(|output| output.encoding).unwrap_or(self.encoding)
    }

    /// Returns the span of shared memory for the output with this name, if it has one.
    pub fn span(&self, name: &str) -> Option<&Span> {
        self.outputs.iter().find(|output| output.name == name)?.span.as_ref()
    }
}

#[derive(Deserialize)]
struct RequestIn<'a> {
    id: Option<String>,
    parameters: Option<RequestParameters>,
    #[serde(borrow)]
    inputs: Vec<TensorIn<'a>>,
    outputs: Option<Vec<OutputIn>>,
}

/// The parameters of a request. Others are allowed and have no effect.
#[derive(Default, Deserialize, Serialize)]
struct RequestParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_output: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u64>,
    /// The timeout in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing)]
    sequence_id: Option<IgnoredAny>,
}

#[derive(Deserialize, Serialize)]
struct OutputIn {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<OutputParameters>,
}

#[derive(Deserialize, Serialize)]
struct OutputParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data: Option<bool>,
    #[serde(skip_serializing)]
    classification: Option<IgnoredAny>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_region: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_byte_size: Option<u64>,
}

impl InferRequest {
    /// Parses a body as a request to a model. The first `json_bytes` of the body are JSON; `None` if all are.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn parse(
        model: impl Into<String>,
        version: Option<String>,
        body: Bytes,
        json_bytes: Option<usize>,
    ) -> Result<Self, ProtocolError> {
        let (json, binary) = body::split(body, json_bytes)?;
        let RequestIn { id, parameters, inputs, outputs } = body::object(&json)?;
        let parameters = parameters.unwrap_or_default();
        if parameters.sequence_id.is_some() {
            return Err(ProtocolError::Unsupported {
                what: "a sequence of requests",
                instead: "leave sequence_id out, and send what a request needs with it: models keep no state",
            });
        }
        let wanted = Wanted {
            outputs: wanted(outputs.unwrap_or_default())?,
            encoding: encoding(parameters.binary_data_output.unwrap_or(false)),
        };
        let (inputs, shared_inputs) = body::read(inputs, binary)?;
        Ok(Self {
            model: model.into(),
            version,
            id,
            priority: parameters.priority.unwrap_or(0),
            timeout: parameters.timeout.filter(|us| *us > 0).map(Duration::from_micros),
            inputs,
            shared_inputs,
            wanted,
        })
    }

    /// Encodes the request's body; inputs that are not in shared memory have the form `encoding`. The address, not the
    /// body, names the model and version.
    ///
    /// # Errors
    /// An input has no form in JSON.
    pub fn encode(&self, encoding: Encoding) -> Result<Encoded, ProtocolError> {
        let parameters = RequestParameters {
            binary_data_output: (self.wanted.encoding == Encoding::Binary).then_some(true),
            priority: (self.priority > 0).then_some(self.priority),
            timeout: self.timeout.map(|timeout| timeout.as_micros().try_into().unwrap_or(u64::MAX)),
            sequence_id: None,
        };
        let inputs = self.inputs.iter().map(|input| TensorOut::new(input, encoding));
        let message = RequestOut {
            id: self.id.as_deref(),
            parameters,
            inputs: inputs.chain(self.shared_inputs.iter().map(TensorOut::from)).collect(),
            outputs: self.wanted.outputs.iter().map(OutputIn::new).collect(),
        };
        Encoded::new(&message, self.inputs.iter().map(|input| (input, encoding)))
    }
}

#[derive(Serialize)]
struct RequestOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    parameters: RequestParameters,
    inputs: Vec<TensorOut<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<OutputIn>,
}

fn encoding(is_binary: bool) -> Encoding {
    if is_binary { Encoding::Binary } else { Encoding::Json }
}

fn wanted(outputs: Vec<OutputIn>) -> Result<Vec<WantedOutput>, ProtocolError> {
    let mut names = HashSet::new();
    if let Some(twice) = outputs.iter().find(|output| !names.insert(&*output.name)) {
        return Err(ProtocolError::Twice(twice.name.clone()));
    }
    outputs.into_iter().map(OutputIn::read).collect()
}

impl OutputIn {
    fn new(wanted: &WantedOutput) -> Self {
        let WantedOutput { name, encoding, span } = wanted;
        let parameters = (encoding.is_some() || span.is_some()).then(|| OutputParameters {
            binary_data: encoding.map(|encoding| encoding == Encoding::Binary),
            classification: None,
            shared_memory_region: span.as_ref().map(|span| span.region.clone()),
            shared_memory_offset: span.as_ref().and_then(Span::sent_offset),
            shared_memory_byte_size: span.as_ref().map(|span| span.byte_size),
        });
        Self { name: name.clone(), parameters }
    }

    fn read(self) -> Result<WantedOutput, ProtocolError> {
        let Self { name, parameters } = self;
        let Some(parameters) = parameters else { return Ok(WantedOutput { name, encoding: None, span: None }) };
        if parameters.classification.is_some() {
            return Err(ProtocolError::Unsupported {
                what: "classification of an output",
                instead: "ask for the output itself: it has the scores, and labels are not known here",
            });
        }
        let span = Span::of(
            parameters.shared_memory_region,
            parameters.shared_memory_offset,
            parameters.shared_memory_byte_size,
        );
        let span = span.map_err(|error| error.of(&name))?;
        Ok(WantedOutput { name, encoding: parameters.binary_data.map(encoding), span })
    }
}
