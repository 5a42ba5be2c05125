//! The errors of agents that serve, and of their clients.

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
    /// The operating system refused to let the agent listen or the client connect, or a file is in the socket's way.
    #[error("{address}: {doing}: {reason}")]
    Socket {
        /// The address that the agent listens at, or that the client connects to.
        address: Address,
        /// The failed operation, or for a client, that no agent answers.
        doing: &'static str,
        /// The reason.
        reason: io::Error,
    },
    /// Another agent already listens at the address.
    #[error("{address}: another agent serves here: end it, or choose another path")]
    AlreadyServed {
        /// The address of both agents.
        address: Address,
    },
    /// The TCP address can be reached from other hosts.
    #[error("other hosts can reach {0}: serve an agent at 127.0.0.1 or [::1]")]
    NotLoopback(SocketAddr),
    /// The folder that the agent writes mappings to does not exist or cannot be listed.
    #[error("{}: no folder for results: {reason}", path.display())]
    Results {
        /// The folder's path.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// The server was given no planners, so it could answer no request.
    #[error("an agent needs a planner")]
    NoPlanners,
    /// The agent answered that it refuses the request.
    #[error("{address}: the agent refused ({}): {}", refusal.code, refusal.message)]
    Refused {
        /// The agent's address.
        address: Address,
        /// The code and the message of its answer.
        refusal: AgentRefusal,
    },
    /// The request or report is invalid, or cannot be encoded.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A frame could not be sent or received: the connection failed, the data is not of the protocol, or nothing came
    /// in time.
    #[error("{address}: {reason}")]
    Frame {
        /// The agent's address.
        address: Address,
        /// The reason.
        reason: FrameError,
    },
    /// The agent's answer is not of the expected form, or the file of its mapping cannot be read.
    #[error("{address}: the agent's answer: {reason}")]
    Answer {
        /// The agent's address.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The mapping's tiers are not those of the problem, by name.
    #[error("the agent's mapping is for the tiers {found:?}, and the problem has {asked:?}")]
    Tiers {
        /// The names of the mapping's tiers.
        found: Vec<String>,
        /// The names of the problem's tiers.
        asked: Vec<String>,
    },
    /// The simulator cannot run the mapping on the problem, for instance because a tier is too small for it.
    #[error("the agent's mapping is invalid: {0}")]
    Plan(#[from] PlanError),
}
