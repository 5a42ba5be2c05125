//! Requests, their refusals and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use super::{BatchId, ModelId};

/// The id of an accepted request. Later requests have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// The properties that must be equal for requests to run together: the sizes of inputs except the first dimension, and
/// any others that the user adds.
pub type Shape = Arc<[u64]>;

/// A client. The requests of one client take turns with those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The properties of a request that the scheduler needs. The user keeps its inputs.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The model that answers it.
    pub model: ModelId,
    /// Its size in the first dimension.
    pub rows: u32,
    /// The elements of its inputs, by which the time to compute it is estimated; at least its rows.
    pub size: u64,
    /// The properties that must be equal in a batch.
    pub shape: Shape,
    /// The priority, which is added to the model's. Sums are limited to -10 to 10.
    pub priority: i32,
    /// The time at which it is answered at the latest, with [`Unanswered::Expired`] if it is not computed.
    pub deadline: Option<Duration>,
    /// The client that sent it; `None` if it is unknown. Requests of unknown clients do not take turns.
    pub client: Option<ClientId>,
    /// Whether it continues a request that was accepted before. Then it is queued although too many wait.
    pub is_continuation: bool,
}

impl RequestSpec {
    /// Creates a request of one row from an unknown client, with an empty shape and no deadline.
    pub fn new(model: ModelId) -> Self {
        Self {
            model,
            rows: 1,
            size: 1,
            shape: Shape::default(),
            priority: 0,
            deadline: None,
            client: None,
            is_continuation: false,
        }
    }
}

/// The reason why a request is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such model, or it was removed.
    #[error("the model is not served: list the models that are")]
    UnknownModel,
    /// The request is larger than any batch.
    #[error("a request of {rows} rows is larger than a batch of {max_rows}: split it, or raise the model's max_rows")]
    TooManyRows {
        /// The request's rows.
        rows: u32,
        /// The most rows of a batch.
        max_rows: u32,
    },
    /// The request has no rows.
    #[error("a request of 0 rows asks for nothing: give it at least one")]
    NoRows,
    /// Too many requests wait.
    #[error("{queued} requests wait for the model, and no more may: try again in {} ms", .retry_after.as_millis().max(1))]
    Full {
        /// The number of waiting requests.
        queued: usize,
        /// The time until all waiting requests will be done, by the measured costs.
        retry_after: Duration,
    },
    /// The deadline has passed, or is nearer than the model's fastest answer.
    #[error(
        "the deadline is in {} ms, and the model takes {} ms at least: allow more time, or ask for fewer rows",
        .left.as_millis(), .least.as_millis()
    )]
    TooLate {
        /// The time to the deadline.
        left: Duration,
        /// The least time that as many rows ever took.
        least: Duration,
    },
}

/// The outcome of a request that no batch answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The user cancelled it.
    #[error("the request was cancelled")]
    Cancelled,
    /// It waited or ran at its deadline.
    #[error("the deadline passed before there was an answer: allow more time, or give it more priority")]
    Expired,
    /// Its turn came too late to meet the deadline.
    #[error("the deadline could not be met any more when the request's turn came: allow more time")]
    TooLate,
    /// The model was removed.
    #[error("the model was removed while the request waited for it")]
    Removed,
    /// The executor is gone.
    #[error("the executor died while the request ran: it may be sent again")]
    Lost,
}

/// An accepted request that is not answered yet.
#[derive(Debug)]
pub(super) struct AcceptedRequest {
    pub(super) model: ModelId,
    pub(super) rows: u32,
    pub(super) size: u64,
    pub(super) shape: Shape,
    pub(super) priority: i32,
    pub(super) arrived: Duration,
    /// Its turn among requests of one model and priority: the time at which it would have arrived if its client sent
    /// one request after the other.
    pub(super) turn: Duration,
    /// The time from which it is due: see the module's documentation.
    pub(super) due: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) client: Option<ClientId>,
    /// The batch in which it runs.
    pub(super) batch: Option<BatchId>,
    /// Whether it was queued again because its executor was lost.
    pub(super) was_requeued: bool,
}
