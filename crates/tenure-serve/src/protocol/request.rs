//! What a model is asked.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::body::{self, Encoded, TensorIn, TensorOut};
use super::{ProtocolError, SharedTensor, Span, Tensor};

/// How a tensor's elements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// In the JSON.
    #[default]
    Json,
    /// As bytes behind the JSON.
    Binary,
}

/// A request for inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferRequest {
    /// The model's name.
    pub model: String,
    /// The model's version, if it matters which.
    pub version: Option<String>,
    /// The client's name for the request, which comes back with the answer.
    pub id: Option<String>,
    /// Which request goes first: the lowest from 1 up. 0 is the server's choice.
    pub priority: u64,
    /// How long the answer is of use, from when the request came, if not for ever. It is sent in µs, where 0 is for ever.
    pub timeout: Option<Duration>,
    /// What the model computes with.
    pub inputs: Vec<Tensor>,
    /// What it computes with and is still to be read from shared memory.
    pub shared_inputs: Vec<SharedTensor>,
    /// What it answers.
    pub wanted: Wanted,
}

/// The outputs that are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// In the order of the answer. If there are none, all are asked for.
    pub outputs: Vec<WantedOutput>,
    /// How outputs are sent that do not say it themselves.
    pub encoding: Encoding,
}

/// An output that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedOutput {
    /// Its name.
    pub name: String,
    /// How it is to be sent, if not as the others.
    pub encoding: Option<Encoding>,
    /// Where in shared memory it is to be written, if it is not to be sent.
    pub span: Option<Span>,
}

impl Wanted {
    /// How the output of a name is sent.
    pub fn encoding(&self, name: &str) -> Encoding {
        let output = self.outputs.iter().find(|output| output.name == name);
        output.and_then(|output| output.encoding).unwrap_or(self.encoding)
    }

    /// Where in shared memory the output of a name is written, if it is.
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

/// Other parameters change nothing, and may be there.
#[derive(Default, Deserialize, Serialize)]
struct RequestParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_output: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u64>,
    /// In µs.
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
    /// The request to a model that a body says, whose first `json_bytes` are JSON; nothing, if all are.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// The request's body, with all inputs that are not in shared memory as `encoding` says. The model and version are the address's.
    ///
    /// # Errors
    /// An input that JSON has no form for.
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
