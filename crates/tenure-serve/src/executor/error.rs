use std::path::PathBuf;

use tenure_core::DType;
use tenure_nn::Error;
use tenure_switch::SwitchError;
use tenure_tensor::TensorError;

use crate::protocol::{Datatype, ProtocolError};

/// Why a model cannot be served. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Another number of inputs or outputs.
    #[error(
        "{architecture} has {expected} {role}, and the configuration {found}: list them in the architecture's order"
    )]
    Arity {
        /// The architecture.
        architecture: String,
        /// `inputs` or `outputs`.
        role: &'static str,
        /// The architecture's.
        expected: usize,
        /// The configuration's.
        found: usize,
    },
    /// A datatype that tensors cannot have.
    #[error(
        "tensor {name:?} cannot be of {datatype}: networks compute with BOOL, UINT8, INT8 to INT64 and FP16 to FP64"
    )]
    Datatype {
        /// An input or output.
        name: String,
        /// What the configuration says.
        datatype: Datatype,
    },
    /// Weights that would have to be converted.
    #[error(
        "{tensor} is stored in {stored}, and weights are served as they are stored: convert the file to {wanted}, or leave \
         dtype out"
    )]
    Conversion {
        /// The tensor.
        tensor: String,
        /// What its file has.
        stored: DType,
        /// What the configuration says.
        wanted: DType,
    },
    /// The files are not those that were looked at.
    #[error("{}: it is gone or was written again, and is looked at again now: ask again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The network cannot be built, or its weights are not in the files.
    #[error(transparent)]
    Network(#[from] Error),
    /// Nothing is computed without weights.
    #[error("the weights are not there")]
    NoWeights,
    /// The weights cannot be had.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The network does not compute this.
    #[error(transparent)]
    Compute(#[from] TensorError),
    /// What it computed is no answer.
    #[error("the network answers {found}, and the configuration says {expected}: correct one of them")]
    Output {
        /// What came.
        found: String,
        /// What was to come.
        expected: String,
    },
    /// An answer that no message can say.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Another process computes, and says why it has no answer.
    #[error("{0}")]
    Elsewhere(String),
    /// Another process computes, and says what is wrong with what was asked.
    #[error("{0}")]
    Asked(String),
    /// The process that computed it is gone.
    #[error("the worker that computed it ended with {0}: ask again")]
    Lost(String),
    /// There is no process to compute it.
    #[error("no worker computes it: {0}")]
    NoWorker(String),
    /// A PyTorch module where none is computed.
    #[error("PyTorch modules are computed by a Python with tenure and PyTorch: name one with --python")]
    NoPython,
    /// Nobody waited for it any more.
    #[error("nobody waits for the answer")]
    Abandoned,
    /// The network's code gave up.
    #[error("the network panicked: {0}")]
    Panic(String),
}

impl ModelError {
    /// Whether it may be gone when the same is asked again.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Lost(_)
                | Self::NoWorker(_)
                | Self::Changed { .. }
                | Self::Switch(SwitchError::NoHostRoom { .. } | SwitchError::NoDeviceRoom { .. })
        )
    }

    /// Whether it is what was asked that is wrong, such as a token that there is not.
    pub(crate) fn is_asked(&self) -> bool {
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
