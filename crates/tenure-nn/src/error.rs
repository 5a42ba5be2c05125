//! The errors of this crate.

use tenure_switch::SwitchError;
use tenure_tensor::TensorError;
use tenure_tier::TierError;

use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::networks::NetworkError;
use crate::switched::SwitchedError;
use crate::train::TrainError;

/// The result of functions in which more than a tensor operation can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of this crate, by the subsystem that it comes from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The tensors read are not the state of this model or optimizer.
    #[error(transparent)]
    State(#[from] StateError),
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A training run cannot continue.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A network cannot be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A file of weights cannot be opened.
    #[error(transparent)]
    Open(#[from] TierError),
    /// Weights cannot be brought to where they are needed.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A model cannot be switched in this way.
    #[error(transparent)]
    Switched(#[from] SwitchedError),
}

/// The reason why tensors are not the state of a module. The module is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The names differ.
    #[error("the names are not the {of}'s{}{}", list("missing", missing), list("unexpected", unexpected))]
    Names {
        /// `model` or `optimizer`.
        of: &'static str,
        /// Names that the module has and the source has not.
        missing: Vec<String>,
        /// Names that the source has and the module has not.
        unexpected: Vec<String>,
    },
    /// A name has other sizes.
    #[error("{name}: the {of} has sizes {expected:?}, got {found:?}{}", others(*more))]
    Sizes {
        /// `model` or `optimizer`.
        of: &'static str,
        /// The tensor's name.
        name: String,
        /// The sizes in the module.
        expected: Vec<usize>,
        /// The sizes in the source.
        found: Vec<usize>,
        /// The number of other names whose sizes differ too.
        more: usize,
    },
    /// The saved state is of other rules than the optimizer's.
    #[error("the optimizer steps by {expected}, and what was saved is of {found}")]
    Rules {
        /// The optimizer's rules, by group.
        expected: String,
        /// The saved rules.
        found: String,
    },
}

fn others(more: usize) -> String {
    if more > 0 { format!("; and {more} more of other sizes") } else { String::new() }
}

/// Lists the first names, and the number of the others.
fn list(what: &str, names: &[String]) -> String {
    const SHOWN: usize = 6;
    if names.is_empty() {
        return String::new();
    }
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; {what}: {}{more}", names[..names.len().min(SHOWN)].join(", "))
}
