//! The metadata of a server and its models.

use serde::{Deserialize, Serialize};

use super::error::TensorError;
use super::{Batching, Datatype, InferRequest, ProtocolError, Tensor};

/// The metadata of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerMetadata {
    /// The server's name.
    pub name: &'static str,
    /// The server's version.
    pub version: &'static str,
    /// The supported extensions of the protocol.
    pub extensions: Vec<&'static str>,
}

impl ServerMetadata {
    /// Returns Tenure's metadata over HTTP; `has_cuda` says whether the server computes on a CUDA device.
    pub(crate) fn http(has_cuda: bool) -> Self {
        let mut metadata = Self::grpc(has_cuda);
        metadata.extensions.insert(0, "binary_tensor_data");
        metadata
    }

    /// Returns Tenure's metadata over gRPC, where sending tensors as bytes is not an extension.
    pub(crate) fn grpc(has_cuda: bool) -> Self {
        let mut extensions = vec!["model_repository", "model_configuration", "statistics", "system_shared_memory"];
        extensions.extend(has_cuda.then_some("cuda_shared_memory"));
        Self { name: "tenure", version: env!("CARGO_PKG_VERSION"), extensions }
    }
}

/// The metadata of a model: its inputs and outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The versions, oldest first.
    pub versions: Vec<String>,
    /// The name of the framework that computes it.
    pub platform: String,
    /// The inputs.
    pub inputs: Vec<TensorMetadata>,
    /// The outputs.
    pub outputs: Vec<TensorMetadata>,
    /// The batching of its requests, if they may run together; reported in its [`ModelConfig`](super::ModelConfig).
    #[serde(skip)]
    pub batching: Option<Batching>,
}

/// A model's input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// The sizes; -1 stands for any.
    pub shape: Vec<i64>,
}

impl ModelMetadata {
    /// Checks that a request fits the model: it has all inputs of the model and no others, and asks only for existing
    /// outputs. Inputs in shared memory must have been read before.
    ///
    /// # Errors
    /// The first fault found, with the name of the tensor.
    pub fn check(&self, request: &InferRequest) -> Result<(), ProtocolError> {
        for input in &request.inputs {
            let known = self.inputs.iter().find(|known| known.name == input.name());
            known.ok_or_else(|| self.unknown("input", input.name(), &self.inputs))?.check(input)?;
        }
        // Names are unique, so a request with fewer inputs than the model lacks one.
        for TensorMetadata { name, .. } in &self.inputs {
            if !request.inputs.iter().any(|input| input.name() == name) {
                return Err(ProtocolError::Missing { model: self.name.clone(), name: name.clone() });
            }
        }
        for wanted in &request.wanted.outputs {
            if !self.outputs.iter().any(|output| output.name == wanted.name) {
                return Err(self.unknown("output", &wanted.name, &self.outputs));
            }
        }
        Ok(())
    }

    fn unknown(&self, role: &'static str, name: &str, known: &[TensorMetadata]) -> ProtocolError {
        ProtocolError::Unknown {
            model: self.name.clone(),
            role,
            name: name.into(),
            known: known.iter().map(|known| known.name.clone()).collect(),
        }
    }
}

impl TensorMetadata {
    fn check(&self, tensor: &Tensor) -> Result<(), ProtocolError> {
        let has_shape = tensor.shape().len() == self.shape.len()
            && tensor
                .shape()
                .iter()
                .zip(&self.shape)
                .all(|(&size, &expected)| expected == -1 || i64::try_from(size) == Ok(expected));
        if has_shape && tensor.datatype() == self.datatype {
            return Ok(());
        }
        let mismatch = TensorError::Mismatch {
            expected: self.datatype,
            expected_shape: self.shape.clone(),
            found: tensor.datatype(),
            found_shape: tensor.shape().into(),
        };
        Err(mismatch.of(&self.name))
    }
}

/// A model in the index of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The model's version.
    pub version: String,
    /// The state, which says whether it can be asked.
    pub state: ModelState,
    /// The reason for its state, if it is not obvious; else empty.
    pub reason: String,
}

/// The state of a model, which says whether it can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// The model can be asked.
    Ready,
    /// The model cannot be asked until it is loaded.
    Unavailable,
    /// The model is being loaded.
    Loading,
    /// The model is being unloaded.
    Unloading,
}

impl ModelState {
    /// Returns its name in the protocol, such as `READY`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// A request for the index.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct IndexRequest {
    /// Whether to list only models in the state [`ModelState::Ready`].
    #[serde(default)]
    pub(crate) ready: bool,
}
