//! Answers to requests for inference.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::body::{self, Encoded, TensorIn, TensorOut};
use super::{Encoding, ProtocolError, Tensor, Wanted};

/// An answer to a request for inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferResponse {
    /// The model's name.
    pub model: String,
    /// The version that answered.
    pub version: Option<String>,
    /// The request's id.
    pub id: Option<String>,
    /// The model's outputs.
    pub outputs: Vec<Tensor>,
}

#[derive(Deserialize)]
struct ResponseIn<'a> {
    model_name: String,
    model_version: Option<String>,
    id: Option<String>,
    #[serde(borrow)]
    outputs: Vec<TensorIn<'a>>,
}

#[derive(Serialize)]
struct ResponseOut<'a> {
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<TensorOut<'a>>,
}

impl InferResponse {
    /// Encodes the answer's body: the wanted outputs, each in the wanted form. Outputs in shared memory have no
    /// elements in it: the caller must write them there.
    ///
    /// # Errors
    /// A wanted output is missing, or has no form in JSON and was not requested as bytes.
    pub fn encode(&self, wanted: &Wanted) -> Result<Encoded, ProtocolError> {
        let outputs = self.wanted(wanted)?;
        let message = ResponseOut {
            model_name: &self.model,
            model_version: self.version.as_deref(),
            id: self.id.as_deref(),
            outputs: outputs
                .iter()
                .map(|(output, encoding)| match wanted.span(output.name()) {
                    Some(_) => TensorOut::written(output),
                    None => TensorOut::new(output, *encoding),
                })
                .collect(),
        };
        Encoded::new(&message, outputs.iter().copied().filter(|(output, _)| wanted.span(output.name()).is_none()))
    }

    /// Parses a body as an answer. The first `json_bytes` of the body are JSON; `None` if all are.
    ///
    /// # Errors
    /// The answer is invalid.
    pub fn parse(body: Bytes, json_bytes: Option<usize>) -> Result<Self, ProtocolError> {
        let (json, binary) = body::split(body, json_bytes)?;
        let ResponseIn { model_name, model_version, id, outputs } = body::object(&json)?;
        let (outputs, shared) = body::read(outputs, binary)?;
        if !shared.is_empty() {
            return Err(ProtocolError::Unsupported {
                what: "an answer in shared memory",
                instead: "read it there, or ask for it as binary data",
            });
        }
        Ok(Self { model: model_name, version: model_version, id, outputs })
    }

    /// Returns the wanted outputs, each with its encoding.
    ///
    /// # Errors
    /// A wanted output is missing.
    pub(crate) fn wanted(&self, wanted: &Wanted) -> Result<Vec<(&Tensor, Encoding)>, ProtocolError> {
        if wanted.outputs.is_empty() {
            return Ok(self.outputs.iter().map(|output| (output, wanted.encoding)).collect());
        }
        let output = |name| {
            let output = self.outputs.iter().find(|output| output.name() == name);
            output.map(|output| (output, wanted.encoding(name))).ok_or_else(|| self.unknown(name))
        };
        wanted.outputs.iter().map(|wanted| output(&wanted.name)).collect()
    }

    fn unknown(&self, name: &str) -> ProtocolError {
        ProtocolError::Unknown {
            model: self.model.clone(),
            role: "output",
            name: name.into(),
            known: self.outputs.iter().map(|output| output.name().into()).collect(),
        }
    }
}
