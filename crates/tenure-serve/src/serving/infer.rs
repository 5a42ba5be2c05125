//! Requests for inference: checked, queued, and answered.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::core::Core;
use super::requests::{Answer, PendingRequest, Stage};
use crate::executor::OpenModel;
use crate::protocol::{Datatype, InferRequest, InferResponse, Tensor};
use crate::repository::{Config, Dimension, TensorSpec};
use crate::request_log::{self, RequestRecord};
use crate::scheduler::{ModelId, Refusal, RequestId, RequestSpec};
use crate::service::ServeError;
use crate::service::work::aside;

/// The highest priority that a client can ask for. Each higher number halves a request's worth; 0 stands for the
/// model's own priority.
const HIGHEST_PRIORITY: u64 = 1;

/// A guard that cancels a request when its client no longer waits for it.
struct CancelOnDrop<'a> {
    core: &'a Core,
    request: RequestId,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        // The request is still there unless it was answered.
        if let Some(waiting) = state.requests.cancel(self.request) {
            self.core.count_queued(&state, waiting.id, &waiting.model);
            self.core.advance(&mut state);
        }
    }
}

impl Core {
    /// Queues a request, and waits for its answer. A request of many rows is computed in parts, so that others do not
    /// wait for all of it.
    pub(super) async fn infer(&self, request: InferRequest) -> Result<InferResponse, ServeError> {
        let model = request.model.clone();
        let version = request.version.clone();
        let asked = self.accept(request)?;
        let mut answered: Vec<Vec<Tensor>> = Vec::new();
        let mut done = 0;
        while done < asked.rows || answered.is_empty() {
            let end = (done + self.rows_of_part(&asked)).min(asked.rows);
            let (id, answer) = self.submit(&asked, done..end)?;
            let cancel = CancelOnDrop { core: self, request: id };
            let outputs = answer.await.unwrap_or(Err(ServeError::ShuttingDown));
            // The request was removed when it was answered. The guard has nothing left to do and would only take the
            // shared lock.
            mem::forget(cancel);
            answered.push(outputs?);
            done = end;
        }
        let bytes = if answered.len() < 2 { 0 } else { answered.iter().flatten().map(|part| part.bytes().len()).sum() };
        let outputs = aside(bytes, move || Ok(joined(answered))).await?;
        Ok(InferResponse { model, version, id: None, outputs })
    }

    /// Checks a request, and finds its model.
    fn accept(&self, request: InferRequest) -> Result<AskedRequest, ServeError> {
        let arrived = Instant::now();
        let now = self.now();
        let state = self.state.lock();
        if state.is_ending {
            return Err(ServeError::ShuttingDown);
        }
        let (id, model) = state.registry.ready(&request.model, request.version.as_deref())?;
        drop(state);
        let config = &model.stored().config;
        let timeout = request.timeout.into_iter().chain(config.timeout).min();
        let priority = scheduled_priority(request.priority);
        let inputs = in_order(request, config);
        check_tokens(&inputs, config)?;
        let (rows, shape) = rows(&inputs, config)?;
        Ok(AskedRequest {
            id,
            rows,
            shape,
            priority,
            deadline: timeout.map(|timeout| now.saturating_add(timeout)),
            timeout: timeout.unwrap_or_default(),
            arrived,
            record: request_log::current(),
            inputs,
            model,
        })
    }

    /// Returns how many rows of a request are computed together.
    fn rows_of_part(&self, asked: &AskedRequest) -> u32 {
        let max_rows = asked.model.stored().config.batching.max_rows.get();
        // The scheduler refuses a request that has more rows than a batch may have.
        if asked.rows < 2 || asked.rows > max_rows || asked.inputs[0].shape().first() != Some(&(asked.rows as usize)) {
            return asked.rows;
        }
        let most = self.state.lock().requests.scheduler.size_within_a_batch(asked.id);
        u32::try_from(most / asked.row_size().max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Queues some rows of a request, and returns a receiver of their answer.
    fn submit(
        &self,
        asked: &AskedRequest,
        rows: Range<u32>,
    ) -> Result<(RequestId, oneshot::Receiver<Answer>), ServeError> {
        let mut state = self.state.lock();
        if state.is_ending {
            return Err(ServeError::ShuttingDown);
        }
        let spec = RequestSpec {
            rows: rows.end - rows.start,
            size: asked.row_size().saturating_mul((rows.end - rows.start).into()),
            shape: Arc::clone(&asked.shape),
            priority: asked.priority,
            deadline: asked.deadline,
            client: asked.record.as_ref().and_then(|record| record.client()),
            is_continuation: rows.start > 0,
            ..RequestSpec::new(asked.id)
        };
        let (answer, answered) = oneshot::channel();
        let waiting = PendingRequest {
            id: asked.id,
            model: Arc::clone(&asked.model),
            stage: Stage::Queued(asked.rows_of_inputs(&rows)),
            rows: rows.end - rows.start,
            is_last: rows.end == asked.rows,
            arrived: asked.arrived,
            record: asked.record.clone(),
            timeout: asked.timeout,
            answer,
        };
        let submitted = state.requests.submit(spec, waiting, self.now());
        let request = submitted.map_err(|refusal| refusal_error(asked.model.name(), refusal, asked.timeout))?;
        self.count_queued(&state, asked.id, &asked.model);
        self.advance(&mut state);
        Ok((request, answered))
    }
}

/// A checked request, before it is queued.
struct AskedRequest {
    id: ModelId,
    model: Arc<OpenModel>,
    /// The inputs in the model's order.
    inputs: Vec<Tensor>,
    rows: u32,
    shape: Arc<[u64]>,
    priority: i32,
    deadline: Option<Duration>,
    timeout: Duration,
    arrived: Instant,
    record: Option<Arc<RequestRecord>>,
}

impl AskedRequest {
    /// Returns the elements of a row of the largest input.
    fn row_size(&self) -> u64 {
        let largest = self.inputs.iter().map(Tensor::numel).max().unwrap_or(0) as u64;
        largest / u64::from(self.rows.max(1))
    }

    fn rows_of_inputs(&self, rows: &Range<u32>) -> Vec<Tensor> {
        if rows.end - rows.start == self.rows {
            return self.inputs.clone();
        }
        self.inputs.iter().map(|input| input.rows(rows.start as usize..rows.end as usize)).collect()
    }
}

/// Joins the outputs of the parts of a request.
fn joined(mut answered: Vec<Vec<Tensor>>) -> Vec<Tensor> {
    if answered.len() < 2 {
        return answered.pop().unwrap_or_default();
    }
    let outputs = answered.first().map_or(0, Vec::len);
    let mut answered: Vec<_> = answered.into_iter().map(Vec::into_iter).collect();
    (0..outputs).filter_map(|_| Tensor::joined(answered.iter_mut().filter_map(Iterator::next).collect())).collect()
}

/// Returns a request's inputs in the model's order. The request must have all of them.
fn in_order(request: InferRequest, config: &Config) -> Vec<Tensor> {
    let mut inputs = request.inputs;
    inputs.sort_by_key(|input| config.inputs.iter().position(|spec| spec.name == input.name()));
    inputs
}

/// Refuses rows of more tokens than the model has positions for.
fn check_tokens(inputs: &[Tensor], config: &Config) -> Result<(), ServeError> {
    let Some(most) = config.max_tokens else { return Ok(()) };
    for (input, spec) in inputs.iter().zip(&config.inputs) {
        let is_tokens = spec.shape.len() == 2
            && spec.shape[1] == Dimension::Free
            && matches!(spec.datatype, Datatype::Int32 | Datatype::Int64);
        let tokens = input.shape().get(1).map_or(0, |tokens| *tokens as u64);
        if is_tokens && tokens > most {
            let name = input.name();
            let message =
                format!("input {name:?} has rows of {tokens} tokens, and the model takes at most {most}: shorten them");
            return Err(ServeError::Malformed(message));
        }
    }
    Ok(())
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
        Refusal::UnknownModel => ServeError::not_ready(model, refusal),
        refusal => ServeError::Malformed(refusal.to_string()),
    }
}
