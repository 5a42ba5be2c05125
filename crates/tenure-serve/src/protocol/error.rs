//! What can be wrong with a message.

use super::Datatype;
use super::datatype::UnknownDatatype;

/// Why a message is none of the protocol, or cannot be written as it was asked for. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Not JSON, or of another form.
    #[error("not a message of the protocol: {}", .0.to_string().replace('\n', " "))]
    Json(#[from] serde_json::Error),
    /// What JSON cannot say.
    #[error("{0}")]
    Write(serde_json::Error),
    /// The JSON is said to be longer than all.
    #[error("Inference-Header-Content-Length says {json_bytes} bytes of JSON, and the body has {body_bytes}")]
    JsonLength {
        /// What was said.
        json_bytes: usize,
        /// What there is.
        body_bytes: usize,
    },
    /// Bytes that belong to no tensor.
    #[error("{0} bytes follow the last tensor: the sizes of the tensors must sum up to what follows the JSON")]
    Trailing(usize),
    /// Not as many tensors as bytes as there are inputs.
    #[error(
        "raw_input_contents has {raw} tensors, and there are {inputs} inputs outside shared memory: it must have all, and contents none"
    )]
    RawContents {
        /// Inputs that are not in shared memory.
        inputs: usize,
        /// Those as bytes.
        raw: usize,
    },
    /// Two tensors of a name.
    #[error("there are two tensors {0:?}: a name must be one tensor's")]
    Twice(String),
    /// What this server does not do.
    #[error("{what} is not supported: {instead}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A tensor that cannot be.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: TensorError,
    },
    /// A tensor that the model does not have.
    #[error("model {model:?} has no {role} {name:?}: it has {known:?}")]
    Unknown {
        /// The model.
        model: String,
        /// `input` or `output`.
        role: &'static str,
        /// The tensor.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// An input that the model needs.
    #[error("model {model:?} needs an input {name:?}, and the request has none")]
    Missing {
        /// The model.
        model: String,
        /// The input.
        name: String,
    },
}

/// What is wrong with a tensor. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// No datatype.
    #[error(transparent)]
    Datatype(#[from] UnknownDatatype),
    /// Sizes that no memory has, or below zero.
    #[error("a tensor cannot have the shape {0:?}")]
    Shape(Vec<i64>),
    /// Not as many bytes as the shape says.
    #[error("{datatype} of shape {shape:?} takes {expected} bytes, and there are {found}")]
    Length {
        /// Its type.
        datatype: Datatype,
        /// Its shape.
        shape: Vec<usize>,
        /// What the shape says.
        expected: usize,
        /// What there is.
        found: usize,
    },
    /// Bytes that are not as many strings as the shape says.
    #[error("BYTES of shape {shape:?} are {expected} strings, each behind its length in 4 bytes: {reason}")]
    Strings {
        /// Its shape.
        shape: Vec<usize>,
        /// What the shape says.
        expected: usize,
        /// What there is.
        reason: &'static str,
    },
    /// A byte that is neither true nor false.
    #[error("a BOOL is a byte of 0 or 1, not {0}")]
    Bool(u8),
    /// Fewer bytes behind the JSON than the tensor's.
    #[error(
        "its binary_data_size is {size}, and {left} bytes are left behind the JSON; does the header \
         Inference-Header-Content-Length say where the JSON ends?"
    )]
    Cut {
        /// What it says.
        size: u64,
        /// What there is.
        left: usize,
    },
    /// No elements, or twice.
    #[error("it must have one of data, a parameter binary_data_size and a parameter shared_memory_region")]
    NoData,
    /// Elements in a message and in shared memory.
    #[error("it has contents, and a parameter shared_memory_region: it must have one of them")]
    BothContents,
    /// A region of shared memory, and nobody knows how much of it.
    #[error("its parameter shared_memory_region needs a parameter shared_memory_byte_size")]
    NoByteSize,
    /// Elements in JSON that are not those of the shape.
    #[error("data of {datatype} and shape {shape:?}: {}", reason.to_string().replace('\n', " "))]
    Data {
        /// Its type.
        datatype: Datatype,
        /// Its shape.
        shape: Vec<usize>,
        /// What is wrong.
        reason: serde_json::Error,
    },
    /// A type that JSON does not have.
    #[error("JSON has no {0}: send it, and ask for it, as binary data")]
    NotJson(Datatype),
    /// A type that messages of gRPC have only as bytes.
    #[error("contents have no {0}: send it as raw_input_contents")]
    NotContents(Datatype),
    /// Contents of another type.
    #[error("{0} has its elements in {1}, and there are others")]
    OtherContents(Datatype, &'static str),
    /// A number that the type does not have.
    #[error("{0} has no {1}")]
    Range(Datatype, i64),
    /// Not what the model takes.
    #[error("the model takes {expected} of shape {expected_shape:?} (-1 is any size), not {found} of {found_shape:?}")]
    Mismatch {
        /// The model's type.
        expected: Datatype,
        /// The model's shape.
        expected_shape: Vec<i64>,
        /// The request's type.
        found: Datatype,
        /// The request's shape.
        found_shape: Vec<usize>,
    },
}

impl TensorError {
    /// The error of the tensor with a name.
    pub(crate) fn of(self, name: &str) -> ProtocolError {
        ProtocolError::Tensor { name: name.into(), reason: self }
    }
}
