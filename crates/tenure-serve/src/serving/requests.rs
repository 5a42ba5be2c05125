//! The requests that are not answered yet, and the scheduler of their batches.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::executor::OpenModel;
use crate::metrics::Phases;
use crate::protocol::Tensor;
use crate::request_log::RequestRecord;
use crate::scheduler::{ModelId, Refusal, RequestId, RequestSpec, Scheduler, Unanswered};
use crate::service::ServeError;

/// The outputs of a request, or why there are none.
pub(super) type Answer = Result<Vec<Tensor>, ServeError>;

/// A request that is not answered yet: what the service keeps of it, beside what the scheduler does
/// ([`RequestSpec`]).
pub(super) struct PendingRequest {
    pub(super) id: ModelId,
    pub(super) model: Arc<OpenModel>,
    pub(super) rows: u32,
    /// Whether no other part of the same request comes after this.
    pub(super) is_last: bool,
    /// The time at which the request arrived, of which this may be a part.
    pub(super) arrived: Instant,
    pub(super) stage: Stage,
    /// The request's record for the log.
    pub(super) record: Option<Arc<RequestRecord>>,
    pub(super) timeout: Duration,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Whether a request is queued or runs in a batch.
pub(super) enum Stage {
    /// It is queued, with its inputs in the model's order.
    Queued(Vec<Tensor>),
    /// Its batch was handed out at this time.
    Running(Instant),
}

impl PendingRequest {
    /// Moves the request to a batch that is handed out at this time, and returns its inputs.
    fn begin(&mut self, chosen: Instant) -> Vec<Tensor> {
        match mem::replace(&mut self.stage, Stage::Running(chosen)) {
            Stage::Queued(inputs) => inputs,
            Stage::Running(_) => Vec::new(),
        }
    }

    /// Returns the phases of the request, whose batch began at `begun` and then took `spent`.
    pub(super) fn phases(&self, begun: Instant, spent: Phases) -> Phases {
        let chosen = match self.stage {
            Stage::Queued(_) => self.arrived,
            Stage::Running(chosen) => chosen,
        };
        Phases { queue: chosen - self.arrived, copy: begun - chosen + spent.copy, ..spent }
    }

    /// Sends the answer to the client, which may have stopped waiting.
    pub(super) fn answer(self, answered: Answer) {
        let _ = self.answer.send(answered);
    }

    /// Answers with the error for a request that no batch answers.
    pub(super) fn refuse(self, outcome: Unanswered) {
        let error = match outcome {
            Unanswered::Expired | Unanswered::TooLate => ServeError::DeadlinePassed(self.timeout),
            Unanswered::Removed => ServeError::not_ready(self.model.name(), &outcome),
            outcome => ServeError::Failed(outcome.to_string()),
        };
        self.answer(Err(error));
    }
}

/// The scheduler, and the requests that it has accepted and that are not answered yet. The service's lock guards it.
pub(super) struct Requests {
    pub(super) scheduler: Scheduler,
    waiting: HashMap<RequestId, PendingRequest>,
}

impl Requests {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, waiting: HashMap::new() }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The scheduler refuses it.
    pub(super) fn submit(
        &mut self,
        spec: RequestSpec,
        waiting: PendingRequest,
        now: Duration,
    ) -> Result<RequestId, Refusal> {
        let request = self.scheduler.submit(spec, now)?;
        self.waiting.insert(request, waiting);
        Ok(request)
    }

    /// Withdraws a request whose client is gone, unless it was answered.
    pub(super) fn cancel(&mut self, request: RequestId) -> Option<PendingRequest> {
        let waiting = self.waiting.remove(&request)?;
        self.scheduler.cancel(request);
        Some(waiting)
    }

    /// Moves requests to a batch. Returns the rows and inputs of each one.
    pub(super) fn begin(&mut self, requests: &[RequestId]) -> (Vec<u32>, Vec<Vec<Tensor>>) {
        let chosen = Instant::now();
        let mut rows = Vec::with_capacity(requests.len());
        let mut inputs = Vec::with_capacity(requests.len());
        for request in requests {
            if let Some(waiting) = self.waiting.get_mut(request) {
                rows.push(waiting.rows);
                inputs.push(waiting.begin(chosen));
            }
        }
        (rows, inputs)
    }

    /// Takes a request out, to be answered.
    pub(super) fn take(&mut self, request: RequestId) -> Option<PendingRequest> {
        self.waiting.remove(&request)
    }

    /// Returns the time at which the first of the requests arrived.
    pub(super) fn first_arrival(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.arrived).min()
    }

    /// Drops all requests, so that their clients are told that the server ends.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}
