use std::sync::Arc;
use std::time::Duration;

use super::{BatchId, ModelId};

/// A request that was accepted. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// What must be equal for requests to run together: sizes of inputs but for the first, and whatever else their user wants.
pub type Shape = Arc<[u64]>;

/// What is known of a request; what it holds stays with the user.
#[derive(Clone, Debug)]
pub struct Request {
    /// The model that answers it.
    pub model: ModelId,
    /// Its size in the first dimension.
    pub rows: u32,
    /// What must be equal in a batch.
    pub shape: Shape,
    /// Added to the model's. Sums are taken for -10 to 10.
    pub priority: i32,
    /// When its answer is of no use any more. It is not started then; one that runs may end.
    pub deadline: Option<Duration>,
}

impl Request {
    /// One row of no particular shape, without a deadline.
    pub fn new(model: ModelId) -> Self {
        Self { model, rows: 1, shape: Shape::default(), priority: 0, deadline: None }
    }
}

/// Why a request is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such model, or not any more.
    #[error("the model is not served: list the models that are")]
    UnknownModel,
    /// It would never fit a batch.
    #[error("a request of {rows} rows is larger than a batch of {max_rows}: split it, or raise the model's max_rows")]
    TooManyRows {
        /// Its rows.
        rows: u32,
        /// Rows of the largest batch.
        max_rows: u32,
    },
    /// Nothing is asked for.
    #[error("a request of 0 rows asks for nothing: give it at least one")]
    NoRows,
    /// Too many wait.
    #[error("{queued} requests wait for the model, and no more may: try again in {} ms", .retry_after.as_millis().max(1))]
    Full {
        /// How many.
        queued: usize,
        /// When all that waits will be done, by the costs that were measured.
        retry_after: Duration,
    },
    /// Its deadline has passed, or is nearer than the model was ever fast.
    #[error(
        "the deadline is in {} ms, and the model takes {} ms at least: allow more time, or ask for fewer rows",
        .left.as_millis(), .least.as_millis()
    )]
    TooLate {
        /// Time to the deadline.
        left: Duration,
        /// The least that as many rows ever took.
        least: Duration,
    },
}

/// How a request ends that is not answered by a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Outcome {
    /// As was asked for.
    #[error("the request was cancelled")]
    Cancelled,
    /// It still waited at its deadline.
    #[error("the deadline passed while the request waited: allow more time, or give it more priority")]
    Expired,
    /// It still waited when the model was too slow to meet its deadline.
    #[error("the deadline could not be met any more when the request's turn came: allow more time")]
    TooLate,
    /// The model is gone.
    #[error("the model was removed while the request waited for it")]
    Removed,
    /// The executor is gone.
    #[error("the executor died while the request ran: it may be sent again")]
    Lost,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) model: ModelId,
    pub(super) rows: u32,
    pub(super) shape: Shape,
    pub(super) priority: i32,
    pub(super) arrived: Duration,
    /// From when on it goes first.
    pub(super) due: Duration,
    pub(super) deadline: Option<Duration>,
    /// What it runs in.
    pub(super) batch: Option<BatchId>,
    /// An executor was lost with it already.
    pub(super) is_again: bool,
}
