//! The error of clients and agents.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tenure_plan::PlanError;

use super::frame::FrameError;
use super::{Address, AgentRefusal, MessageError};

/// The reason why an agent does not serve, or a client has no answer. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The operating system returned an error.
    #[error("{address}: {doing}: {reason}")]
    Socket {
        /// The address.
        address: Address,
        /// The operation that failed.
        doing: &'static str,
        /// The reason.
        reason: io::Error,
    },
    /// Another agent listens at the address.
    #[error("{address}: another agent serves here: end it, or choose another path")]
    AlreadyServed {
        /// The address.
        address: Address,
    },
    /// The address can be reached from other hosts.
    #[error("{0} is not of this host alone: an agent is served at 127.0.0.1 or [::1]")]
    NotLoopback(SocketAddr),
    /// The folder for results cannot be used.
    #[error("{}: no folder for results: {reason}", path.display())]
    Results {
        /// The folder.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// The agent has no planners.
    #[error("an agent needs a planner")]
    NoPlanners,
    /// The agent refused the request.
    #[error("{address}: the agent refused ({}): {}", refusal.code, refusal.message)]
    Refused {
        /// The agent's address.
        address: Address,
        /// The agent's reason.
        refusal: AgentRefusal,
    },
    /// The request is invalid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The received data is not of the protocol, or nothing was received in time.
    #[error("{address}: {reason}")]
    Frame {
        /// The agent's address.
        address: Address,
        /// The reason.
        reason: FrameError,
    },
    /// The answer is invalid, or its mapping cannot be read.
    #[error("{address}: the agent's answer: {reason}")]
    Answer {
        /// The agent's address.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The mapping is for other tiers.
    #[error("the agent's mapping is for the tiers {found:?}, and the problem has {asked:?}")]
    Tiers {
        /// The mapping's tiers.
        found: Vec<String>,
        /// The problem's tiers.
        asked: Vec<String>,
    },
    /// The mapping does not fit in the tiers.
    #[error("the agent's mapping cannot be: {0}")]
    Plan(#[from] PlanError),
}
