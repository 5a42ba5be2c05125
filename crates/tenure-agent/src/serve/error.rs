//! What goes wrong between a client and an agent.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tenure_plan::PlanError;

use super::frame::FrameError;
use super::{Address, MessageError, Refusal};

/// Why an agent does not serve, or a client has no answer. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The operating system refused.
    #[error("{address}: {doing}: {reason}")]
    Socket {
        /// Where.
        address: Address,
        /// What could not be done.
        doing: &'static str,
        /// Why.
        reason: io::Error,
    },
    /// Somebody listens there.
    #[error("{address}: another agent serves here: end it, or choose another path")]
    AlreadyServed {
        /// Where.
        address: Address,
    },
    /// An address that others than this host's processes reach.
    #[error("{0} is not of this host alone: an agent is served at 127.0.0.1 or [::1]")]
    NotLoopback(SocketAddr),
    /// A folder that cannot be.
    #[error("{}: no folder for results: {reason}", path.display())]
    Results {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// An agent without planners.
    #[error("an agent needs a planner")]
    NoPlanners,
    /// The agent has no answer.
    #[error("{address}: the agent refused ({}): {}", refusal.code, refusal.message)]
    Refused {
        /// Where.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// No request.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// What came is not of the protocol, or nothing came.
    #[error("{address}: {reason}")]
    Frame {
        /// Where.
        address: Address,
        /// What is wrong with it.
        reason: FrameError,
    },
    /// An answer that says nothing, or names no mapping.
    #[error("{address}: the agent's answer: {reason}")]
    Answer {
        /// Where.
        address: Address,
        /// What is wrong with it.
        reason: String,
    },
    /// A mapping for other tiers.
    #[error("the agent's mapping is for the tiers {found:?}, and the problem has {asked:?}")]
    Tiers {
        /// The mapping's.
        found: Vec<String>,
        /// The problem's.
        asked: Vec<String>,
    },
    /// A mapping that does not fit.
    #[error("the agent's mapping cannot be: {0}")]
    Plan(#[from] PlanError),
}
