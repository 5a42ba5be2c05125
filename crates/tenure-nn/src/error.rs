//! What can go wrong around tensors.

use tenure_switch::SwitchError;
use tenure_tensor::TensorError;
use tenure_tier::TierError;

use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::networks::NetworkError;
use crate::switched::SwitchedError;
use crate::train::TrainError;

/// What this crate returns where more than tensors can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong, by the subsystem that it went wrong in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// What was read is not the state of the model or optimizer that it was read for.
    #[error(transparent)]
    State(#[from] StateError),
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A run does not go on.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A network cannot be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A file of weights cannot be opened.
    #[error(transparent)]
    Open(#[from] TierError),
    /// Weights are not where they are wanted.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A model cannot be switched so.
    #[error(transparent)]
    Switched(#[from] SwitchedError),
}

/// Why tensors are not the state of a module. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Other names.
    #[error("the names are not the {of}'s{}{}", list("missing", missing), list("unexpected", unexpected))]
    Names {
        /// `model` or `optimizer`.
        of: &'static str,
        /// What it has and the source has not.
        missing: Vec<String>,
        /// What the source has and it has not.
        unexpected: Vec<String>,
    },
    /// Other sizes of one name.
    #[error("{name}: the {of} has sizes {expected:?}, got {found:?}{}", others(*more))]
    Sizes {
        /// `model` or `optimizer`.
        of: &'static str,
        /// The tensor.
        name: String,
        /// Its own.
        expected: Vec<usize>,
        /// The source's.
        found: Vec<usize>,
        /// How many other names have other sizes too.
        more: usize,
    },
    /// Of other rules than the optimizer's.
    #[error("the optimizer steps by {expected}, and what was saved is of {found}")]
    Rules {
        /// The optimizer's, by group.
        expected: String,
        /// Those that were saved.
        found: String,
    },
}

fn others(more: usize) -> String {
    if more > 0 { format!("; and {more} more of other sizes") } else { String::new() }
}

/// The first names, and how many more.
fn list(what: &str, names: &[String]) -> String {
    const SHOWN: usize = 6;
    if names.is_empty() {
        return String::new();
    }
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; {what}: {}{more}", names[..names.len().min(SHOWN)].join(", "))
}
