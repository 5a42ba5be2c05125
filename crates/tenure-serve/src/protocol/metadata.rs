//! What a server and its models say of themselves.

use serde::{Deserialize, Serialize};

use super::error::TensorError;
use super::{Batching, Datatype, Encoding, InferRequest, ProtocolError, Tensor};

/// What a server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerMetadata {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The protocol's extensions that it has.
    pub extensions: Vec<&'static str>,
}

impl ServerMetadata {
    /// Tenure's over HTTP, of a server that computes on a CUDA device or does not.
    pub(crate) fn http(has_cuda: bool) -> Self {
        let mut metadata = Self::grpc(has_cuda);
        metadata.extensions.insert(0, "binary_tensor_data");
        metadata
    }

    /// Tenure's over gRPC, where tensors as bytes are no extension.
    pub(crate) fn grpc(has_cuda: bool) -> Self {
        let mut extensions = vec!["model_repository", "model_configuration", "statistics", "system_shared_memory"];
        extensions.extend(has_cuda.then_some("cuda_shared_memory"));
        Self { name: "tenure", version: env!("CARGO_PKG_VERSION"), extensions }
    }
}

/// What a model takes and answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelMetadata {
    /// Its name.
    pub name: String,
    /// Its versions, oldest first.
    pub versions: Vec<String>,
    /// What computes it.
    pub platform: String,
    /// What it takes.
    pub inputs: Vec<TensorMetadata>,
    /// What it answers.
    pub outputs: Vec<TensorMetadata>,
    /// How its requests run together, if they may; said by its [`ModelConfig`](super::ModelConfig).
    #[serde(skip)]
    pub batching: Option<Batching>,
}

/// A model's input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its sizes; -1 is any.
    pub shape: Vec<i64>,
}

impl ModelMetadata {
    /// Whether the model can be asked this: with all its inputs and no other, for outputs that it has, as they can be sent. Inputs
    /// in shared memory are to be read before.
    ///
    /// # Errors
    /// What is wrong, naming the tensor.
    pub fn check(&self, request: &InferRequest) -> Result<(), ProtocolError> {
        for input in &request.inputs {
            let known = self.inputs.iter().find(|known| known.name == input.name());
            known.ok_or_else(|| self.unknown("input", input.name(), &self.inputs))?.check(input)?;
        }
        // Names are there once each, so that fewer inputs than the model's lack one.
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
        let is_wanted = |output: &&TensorMetadata| {
            let outputs = &request.wanted.outputs;
            outputs.is_empty() || outputs.iter().any(|wanted| wanted.name == output.name)
        };
        for TensorMetadata { name, datatype, .. } in self.outputs.iter().filter(is_wanted) {
            let is_sent = request.wanted.span(name).is_none();
            if is_sent && !datatype.has_json() && request.wanted.encoding(name) == Encoding::Json {
                return Err(TensorError::NotJson(*datatype).of(name));
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
        let fits = |(&size, &expected): (&usize, &i64)| expected == -1 || i64::try_from(size) == Ok(expected);
        let has_shape = tensor.shape().len() == self.shape.len() && tensor.shape().iter().zip(&self.shape).all(fits);
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
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it can be asked.
    pub state: ModelState,
    /// Why it is in this state, if that is not plain; else empty.
    pub reason: String,
}

/// Whether a model can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// It can.
    Ready,
    /// It cannot, before it is loaded.
    Unavailable,
    /// It can soon.
    Loading,
    /// It no longer can.
    Unloading,
}

impl ModelState {
    /// Its name in the protocol, such as `READY`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// What the index is asked for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct IndexRequest {
    /// Models in the state [`ModelState::Ready`] only.
    #[serde(default)]
    pub(crate) ready: bool,
}
