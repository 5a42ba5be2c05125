//! The errors of messages.

use super::Datatype;
use super::datatype::UnknownDatatype;

/// The reason why a message is invalid, or cannot be written as requested. The text is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The body is not JSON, or has another form.
    #[error("not a message of the protocol: {}", .0.to_string().replace('\n', " "))]
    Json(#[from] serde_json::Error),
    /// A value cannot be written as JSON.
    #[error("{0}")]
    Write(serde_json::Error),
    /// The stated length of the JSON exceeds the body.
    #[error("Inference-Header-Content-Length says {json_bytes} bytes of JSON, and the body has {body_bytes}")]
    JsonLength {
        /// The stated bytes of JSON.
        json_bytes: usize,
        /// The bytes of the body.
        body_bytes: usize,
    },
    /// Bytes follow the last tensor.
    #[error("{0} bytes follow the last tensor: the sizes of the tensors must sum up to what follows the JSON")]
    Trailing(usize),
    /// The numbers of raw tensors and of inputs differ.
    #[error(
        "raw_input_contents has {raw} tensors, and there are {inputs} inputs outside shared memory: it must have all, and contents none"
    )]
    RawContents {
        /// The number of inputs that are not in shared memory.
        inputs: usize,
        /// The number of tensors sent as raw bytes.
        raw: usize,
    },
    /// Two tensors have the same name.
    #[error("there are two tensors {0:?}: a name must be one tensor's")]
    Twice(String),
    /// The server does not support the request.
    #[error("{what} is not supported: {instead}")]
    Unsupported {
        /// The unsupported feature.
        what: &'static str,
        /// The advice to the client.
        instead: &'static str,
    },
    /// A tensor is invalid.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The error.
        reason: TensorError,
    },
    /// The model has no such tensor.
    #[error("model {model:?} has no {role} {name:?}: it has {known:?}")]
    Unknown {
        /// The model's name.
        model: String,
        /// `input` or `output`.
        role: &'static str,
        /// The tensor's name.
        name: String,
        /// The names of the model's tensors.
        known: Vec<String>,
    },
    /// The request lacks an input that the model needs.
    #[error("model {model:?} needs an input {name:?}, and the request has none")]
    Missing {
        /// The model's name.
        model: String,
        /// The input's name.
        name: String,
    },
}

/// The reason why a tensor is invalid. The text is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The datatype is unknown.
    #[error(transparent)]
    Datatype(#[from] UnknownDatatype),
    /// A size is negative, or the tensor would not fit in memory.
    #[error("a tensor cannot have the shape {0:?}")]
    Shape(Vec<i64>),
    /// The number of bytes does not match the shape.
    #[error("{datatype} of shape {shape:?} takes {expected} bytes, and there are {found}")]
    Length {
        /// The tensor's datatype.
        datatype: Datatype,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The bytes that the shape requires.
        expected: usize,
        /// The bytes that were given.
        found: usize,
    },
    /// The bytes are not as many strings as the shape says.
    #[error("BYTES of shape {shape:?} are {expected} strings, each behind its length in 4 bytes: {reason}")]
    Strings {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The number of strings that the shape requires.
        expected: usize,
        /// The error.
        reason: &'static str,
    },
    /// A byte is neither true nor false.
    #[error("a BOOL is a byte of 0 or 1, not {0}")]
    Bool(u8),
    /// Fewer bytes follow the JSON than the tensor has.
    #[error(
        "its binary_data_size is {size}, and {left} bytes are left behind the JSON; does the header \
         Inference-Header-Content-Length say where the JSON ends?"
    )]
    Cut {
        /// The tensor's `binary_data_size` in bytes.
        size: u64,
        /// The bytes that are left.
        left: usize,
    },
    /// The tensor has no elements, or has them twice.
    #[error("it must have one of data, a parameter binary_data_size and a parameter shared_memory_region")]
    NoData,
    /// The tensor has elements both in the message and in shared memory.
    #[error("it has contents, and a parameter shared_memory_region: it must have one of them")]
    BothContents,
    /// The tensor names a region of shared memory but not the size of its part.
    #[error("its parameter shared_memory_region needs a parameter shared_memory_byte_size")]
    NoByteSize,
    /// Elements in JSON do not match the shape.
    #[error("data of {datatype} and shape {shape:?}: {}", reason.to_string().replace('\n', " "))]
    Data {
        /// The tensor's datatype.
        datatype: Datatype,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The error.
        reason: serde_json::Error,
    },
    /// The datatype can be sent over gRPC only as raw bytes.
    #[error("contents have no {0}: send it as raw_input_contents")]
    NotContents(Datatype),
    /// The contents are in the field of another datatype.
    #[error("{0} has its elements in {1}, and there are others")]
    OtherContents(Datatype, &'static str),
    /// A number is out of the datatype's range.
    #[error("{0} has no {1}")]
    Range(Datatype, i64),
    /// The tensor differs from the model's input.
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
    /// Attributes the error to the tensor with this name.
    pub(crate) fn of(self, name: &str) -> ProtocolError {
        ProtocolError::Tensor { name: name.into(), reason: self }
    }
}
