//! Errors of served models.

use std::path::PathBuf;

use tenure_core::DType;
use tenure_nn::Error;
use tenure_switch::SwitchError;
use tenure_tensor::TensorError;

use crate::protocol::{Datatype, ProtocolError};

/// The reason why a model cannot be served. The message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The configuration lists a different number of inputs or outputs than the architecture has.
    #[error(
        "{architecture} has {expected} {role}, and the configuration {found}: list them in the architecture's order"
    )]
    Arity {
        /// The architecture.
        architecture: String,
        /// `inputs` or `outputs`.
        role: &'static str,
        /// The number that the architecture has.
        expected: usize,
        /// The number that the configuration lists.
        found: usize,
    },
    /// A datatype that tensors cannot have.
    #[error(
        "tensor {name:?} cannot be of {datatype}: networks compute with BOOL, UINT8, INT8 to INT64 and FP16 to FP64"
    )]
    Datatype {
        /// The name of an input or output.
        name: String,
        /// The datatype in the configuration.
        datatype: Datatype,
    },
    /// The configuration asks for a dtype that would require a conversion.
    #[error(
        "{tensor} is stored in {stored}, and weights are served as they are stored: convert the file to {wanted}, or leave \
         dtype out"
    )]
    Conversion {
        /// The tensor.
        tensor: String,
        /// The dtype in the file.
        stored: DType,
        /// The dtype in the configuration.
        wanted: DType,
    },
    /// The files changed since they were inspected.
    #[error("{}: it is gone or was written again, and is looked at again now: ask again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The network cannot be built, or its weights are not in the files.
    #[error(transparent)]
    Network(#[from] Error),
    /// The model has no weights to compute with.
    #[error("the weights are not there")]
    NoWeights,
    /// The weights could not be loaded.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The network cannot compute these inputs.
    #[error(transparent)]
    Compute(#[from] TensorError),
    /// The network's output differs from the configuration.
    #[error("the network answers {found}, and the configuration says {expected}: correct one of them")]
    Output {
        /// The tensor that the network returned.
        found: String,
        /// The tensor that the configuration describes.
        expected: String,
    },
    /// An answer that cannot be expressed in a message of the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The model cannot be computed, for a reason that the message gives: mostly another process reported it.
    #[error("{0}")]
    Elsewhere(String),
    /// The request itself is wrong: another process reported it, or its inputs are too long to be sent there.
    #[error("{0}")]
    Asked(String),
    /// The request takes more memory than there is.
    #[error("the request takes more memory than there is ({0}): send fewer rows, or shorter ones")]
    OutOfMemory(String),
    /// The process that computed the model ended.
    #[error("the worker that computed it ended with {0}: ask again")]
    Lost(String),
    /// There is no process to compute the model.
    #[error("no worker computes it: {0}")]
    NoWorker(String),
    /// A PyTorch module on a server without a Python that computes such modules.
    #[error("PyTorch modules are computed by a Python with tenure and PyTorch: name one with --python")]
    NoPython,
    /// The batch was abandoned: no request waited for it any more.
    #[error("the request was abandoned")]
    Abandoned,
    /// The network's code panicked.
    #[error("the network panicked: {0}")]
    Panic(String),
}

impl ModelError {
    /// Returns whether the same request may succeed when it is sent again.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Lost(_)
                | Self::NoWorker(_)
                | Self::Changed { .. }
                | Self::Switch(SwitchError::NoHostRoom { .. } | SwitchError::NoDeviceRoom { .. })
        )
    }

    /// Returns whether the request takes more memory than there is.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) => true,
            Self::Compute(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// Returns whether the request itself is wrong, for example a token outside the vocabulary.
    pub(crate) fn is_request_error(&self) -> bool {
        matches!(
            self,
            Self::Asked(_)
                | Self::Compute(
                    TensorError::Shape { .. }
                        | TensorError::Broadcast { .. }
                        | TensorError::DType { .. }
                        | TensorError::Index { .. }
                        | TensorError::Argument { .. }
                )
        )
    }
}
