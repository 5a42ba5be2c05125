//! The errors of requests, and their HTTP statuses.

use std::time::Duration;

use axum::http::StatusCode;

use crate::metrics::RequestOutcome;
use crate::protocol::ProtocolError;
use crate::shared_memory::SharedMemoryError;

/// The longest message, in bytes: names that a client chose may be longer.
const MESSAGE_BYTES: usize = 2 << 10;

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The request is invalid. An invalid answer is [`ServeError::Failed`] instead.
    #[error(transparent)]
    Invalid(ProtocolError),
    /// A body or header is malformed.
    #[error("{0}")]
    Malformed(String),
    /// A shared-memory error.
    #[error(transparent)]
    SharedMemory(#[from] SharedMemoryError),
    /// There is no such model, or no such version of it.
    #[error("unknown model {model:?}{}: POST v2/repository/index lists models", of_version(version))]
    UnknownModel {
        /// The model's name.
        model: String,
        /// The version, if one was asked for.
        version: Option<String>,
    },
    /// There is no such route.
    #[error("nothing is served at {0}")]
    UnknownRoute(String),
    /// The server does not support this extension of the protocol.
    #[error("the extension {0} is not served: GET v2 lists those that are")]
    NoExtension(&'static str),
    /// The route does not support this method.
    #[error("{0} is not served here: see the header Allow")]
    Method(String),
    /// The token is missing or wrong.
    #[error("the server asks for a token: send the header Authorization: Bearer TOKEN")]
    Token,
    /// The request comes from another site's page in a browser.
    #[error("pages of other sites may not use this server: its option --allow-origin names the origins that may")]
    OtherSite,
    /// The request asks for the server by a name that may be another site's.
    #[error(
        "the server does not answer as {0:?}, which may be another site's name for it: ask by its IP address, or start it with \
         --allow-host NAME or with --tokens"
    )]
    OtherHost(String),
    /// The media type is one that pages of other sites may send.
    #[error("the server takes no bodies of {0}, as forms send them: send Content-Type: application/json")]
    ContentType(String),
    /// The client is on another host, and has no token.
    #[error(
        "clients of other hosts may not load or unload models or use shared memory: start the server with --tokens and send one, or \
         with --allow-remote-operators"
    )]
    Elsewhere,
    /// The body did not arrive in time.
    #[error("the body did not come within {0:?}")]
    Slow(Duration),
    /// The body makes too little progress.
    #[error("too little of the body came within {0:?}")]
    Stalled(Duration),
    /// The body is too long, compressed or not.
    #[error("the body is longer than {0} bytes, which is the server's limit")]
    TooLarge(usize),
    /// The request takes more memory than there is.
    #[error("{0}")]
    TooMuchMemory(String),
    /// The compression is unknown.
    #[error("unsupported Content-Encoding {0:?}: use gzip, deflate or identity")]
    ContentEncoding(String),
    /// The model cannot be asked now.
    #[error("model {model:?} is not ready: {reason}")]
    NotReady {
        /// The model's name.
        model: String,
        /// The reason.
        reason: String,
    },
    /// Too many requests wait.
    #[error("too many requests wait for model {model:?}: try again in {retry_after:.1?}")]
    QueueFull {
        /// The model's name.
        model: String,
        /// The estimated time until there is room.
        retry_after: Duration,
    },
    /// There is no memory for another body.
    #[error("requests that are under way hold as much as the server has memory for: try again in a second")]
    Busy,
    /// All connections have requests in progress, and this one is kept for health checks.
    #[error("the server has as many connections as it takes: try again in a second")]
    Crowded,
    /// A passing failure: the model's worker is gone, its weights were rewritten, or other models occupy its memory.
    #[error("{0}")]
    TryAgain(String),
    /// The request's time limit passed.
    #[error("there was no answer within {0:?}, which was the request's timeout")]
    DeadlinePassed(Duration),
    /// The server does not answer requests yet.
    #[error("the server is not ready yet")]
    NotServing,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The server failed.
    #[error("{0}")]
    Failed(String),
}

fn of_version(version: &Option<String>) -> String {
    version.as_ref().map_or_else(String::new, |version| format!(" of version {version:?}"))
}

impl ServeError {
    pub(crate) fn not_ready(model: &str, reason: impl ToString) -> Self {
        Self::NotReady { model: model.into(), reason: reason.to_string() }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) | Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::SharedMemory(error) => error.status(),
            Self::UnknownModel { .. } | Self::UnknownRoute(_) | Self::NoExtension(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::OtherSite | Self::Elsewhere => StatusCode::FORBIDDEN,
            Self::OtherHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Slow(_) | Self::Stalled(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) | Self::TooMuchMemory(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ContentEncoding(_) | Self::ContentType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotReady { .. }
            | Self::QueueFull { .. }
            | Self::Busy
            | Self::Crowded
            | Self::TryAgain(_)
            | Self::NotServing
            | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::DeadlinePassed(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the message for a client, short enough for a header.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
        if message.len() > MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
            message.push('…');
        }
        message
    }

    /// Returns the outcome of a request that is answered with this error.
    pub(crate) fn outcome(&self) -> RequestOutcome {
        outcome(self.status())
    }

    /// Returns when to try again, if that may help.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after, .. } => Some(*retry_after),
            Self::Busy | Self::Crowded | Self::TryAgain(_) => Some(Duration::from_millis(500)),
            _ => None,
        }
    }
}

/// Returns the outcome of a request that is answered with this status.
pub(crate) fn outcome(status: StatusCode) -> RequestOutcome {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => RequestOutcome::Unavailable,
        StatusCode::GATEWAY_TIMEOUT => RequestOutcome::TimedOut,
        StatusCode::INTERNAL_SERVER_ERROR => RequestOutcome::Failed,
        status if status.is_client_error() => RequestOutcome::Refused,
        _ => RequestOutcome::Answered,
    }
}
