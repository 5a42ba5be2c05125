//! Requests in progress.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::core::{Core, CoreState};
use crate::executor::OpenModel;
use crate::http::ServeError;
use crate::protocol::{InferRequest, InferResponse, Tensor};
use crate::repository::{Config, Dimension, TensorSpec};
use crate::request_log::{self, RequestRecord};
use crate::scheduler::{ModelId, Refusal, RequestId, RequestSpec, Unanswered};

/// The highest priority that a client can ask for. Each higher number halves a request's worth; 0 stands for the
/// model's own priority.
const HIGHEST_PRIORITY: u64 = 1;

/// The outputs of a request, or why there are none.
pub(super) type Answer = Result<Vec<Tensor>, ServeError>;

/// A request that is not answered yet.
pub(super) struct Waiting {
    pub(super) id: ModelId,
    pub(super) model: Arc<OpenModel>,
    /// The inputs in the model's order, taken when the request runs.
    pub(super) inputs: Vec<Tensor>,
    pub(super) rows: u32,
    pub(super) arrived: Instant,
    /// The time at which its batch was handed out.
    pub(super) chosen: Instant,
    /// The request's record for the log.
    pub(super) record: Option<Arc<RequestRecord>>,
    timeout: Duration,
    answer: oneshot::Sender<Answer>,
}

impl Waiting {
    /// Sends the answer to the client, which may have stopped waiting.
    pub(super) fn answer(self, answered: Answer) {
        let _ = self.answer.send(answered);
    }

    /// Answers with the error for a request that no batch answers.
    pub(super) fn refuse(self, outcome: Unanswered) {
        let error = match outcome {
            Unanswered::Expired | Unanswered::TooLate => ServeError::DeadlinePassed(self.timeout),
            Unanswered::Removed => not_ready(self.model.name(), &outcome),
            outcome => ServeError::Failed(outcome.to_string()),
        };
        self.answer(Err(error));
    }
}

pub(super) fn not_ready(model: &str, reason: impl ToString) -> ServeError {
    ServeError::NotReady { model: model.into(), reason: reason.to_string() }
}

/// A guard that cancels a request when its client no longer waits for it.
struct CancelOnDrop<'a> {
    core: &'a Core,
    request: RequestId,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        // The request is still there unless it was answered.
        if let Some(waiting) = state.requests.remove(&self.request) {
            state.scheduler.cancel(self.request);
            self.core.count_queued(&state, waiting.id, &waiting.model);
            self.core.advance(&mut state);
        }
    }
}

impl Core {
    /// Queues a request, and waits for its answer.
    pub(super) async fn infer(&self, request: InferRequest) -> Result<InferResponse, ServeError> {
        let model = request.model.clone();
        let version = request.version.clone();
        let (id, answered) = self.submit(request)?;
        let cancel = CancelOnDrop { core: self, request: id };
        let outputs = answered.await.unwrap_or(Err(ServeError::ShuttingDown));
        // The request was removed when it was answered. The guard has nothing left to do and would only take the shared
        // lock.
        mem::forget(cancel);
        Ok(InferResponse { model, version, id: None, outputs: outputs? })
    }

    /// Queues a request, and returns a receiver of its answer.
    fn submit(&self, request: InferRequest) -> Result<(RequestId, oneshot::Receiver<Answer>), ServeError> {
        let mut state = self.state.lock();
        if state.is_ending {
            return Err(ServeError::ShuttingDown);
        }
        let name = request.model.clone();
        let arrived = Instant::now();
        let (id, model) = state.ready(&name, request.version.as_deref())?;
        let timeout = request.timeout.or(model.stored().config.timeout);
        let priority = request.priority;
        let inputs = in_order(request, &model.stored().config);
        let (rows, shape) = rows(&inputs, &model.stored().config)?;
        let now = self.now();
        let deadline = timeout.map(|timeout| now.saturating_add(timeout));
        let scheduled =
            RequestSpec { rows, shape, priority: scheduled_priority(priority), deadline, ..RequestSpec::new(id) };
        let timeout = timeout.unwrap_or_default();
        let request =
            state.scheduler.submit(scheduled, now).map_err(|refusal| refusal_error(&name, refusal, timeout))?;
        let (answer, answered) = oneshot::channel();
        let record = request_log::current();
        let waiting = Waiting { id, model, inputs, rows, arrived, chosen: arrived, record, timeout, answer };
        self.count_queued(&state, id, &waiting.model);
        state.requests.insert(request, waiting);
        self.advance(&mut state);
        Ok((request, answered))
    }
}

/// Returns a request's inputs in the model's order. The request must have all of them.
fn in_order(request: InferRequest, config: &Config) -> Vec<Tensor> {
    let mut inputs = request.inputs;
    inputs.sort_by_key(|input| config.inputs.iter().position(|spec| spec.name == input.name()));
    inputs
}

/// Returns a request's rows, and the sizes that must be equal in one batch. If the first size of an input is fixed, a
/// request is one row.
fn rows(inputs: &[Tensor], config: &Config) -> Result<(u32, Arc<[u64]>), ServeError> {
    if !config.inputs.iter().all(|spec: &TensorSpec| spec.shape.first() == Some(&Dimension::Free)) {
        return Ok((1, inputs.iter().flat_map(Tensor::shape).map(|size| *size as u64).collect()));
    }
    let rows: Vec<usize> = inputs.iter().map(|input| input.shape()[0]).collect();
    if rows.iter().any(|other| *other != rows[0]) {
        let names: Vec<_> = inputs.iter().map(Tensor::name).collect();
        let message = format!("inputs {names:?} have {rows:?} rows: the first size must be one for all");
        return Err(ServeError::Malformed(message));
    }
    let shape = inputs.iter().flat_map(|input| &input.shape()[1..]).map(|size| *size as u64).collect();
    Ok((rows[0].try_into().unwrap_or(u32::MAX), shape))
}

/// Converts a client's priority to the scheduler's, where higher numbers go first.
fn scheduled_priority(priority: u64) -> i32 {
    const STEPS: i32 = 10;
    match priority {
        0 => 0,
        priority => STEPS - i32::try_from(priority - HIGHEST_PRIORITY).unwrap_or(i32::MAX).min(2 * STEPS),
    }
}

/// Converts the scheduler's refusal of a request to the client's error.
fn refusal_error(model: &str, refusal: Refusal, timeout: Duration) -> ServeError {
    match refusal {
        Refusal::Full { retry_after, .. } => ServeError::QueueFull { model: model.into(), retry_after },
        Refusal::TooLate { .. } => ServeError::DeadlinePassed(timeout),
        Refusal::UnknownModel => not_ready(model, refusal),
        refusal => ServeError::Malformed(refusal.to_string()),
    }
}

impl CoreState {
    /// Returns a model that is served.
    ///
    /// # Errors
    /// There is no such model, or it is not served.
    pub(super) fn ready(&self, name: &str, version: Option<&str>) -> Result<(ModelId, Arc<OpenModel>), ServeError> {
        let id = self.entry(name, version)?.ready(name)?;
        let model = self.models.get(&id).ok_or_else(|| not_ready(name, Refusal::UnknownModel))?;
        Ok((id, Arc::clone(model)))
    }
}
