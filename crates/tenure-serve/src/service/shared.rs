//! State that requests share over HTTP and gRPC.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::thread;

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::body::BodyShare;
use super::work::on_another_thread;
use super::{Limits, Operators, Peer, ServeError, Service};
use crate::metrics::{Metrics, RequestOutcome};
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelStatistics};
use crate::request_log;
use crate::scheduler::ClientId;
use crate::shared_memory::{CudaRegion, CudaRegistration, Region, Regions};

/// The largest number of health checks over gRPC that last, for which clients need no token.
const WATCHES: usize = 64;

/// State that all requests share.
pub(crate) struct ServerShared {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) limits: Limits,
    /// The accepted tokens; every client may ask if there are none.
    tokens: Vec<String>,
    operators: Operators,
    /// The registered regions of shared memory.
    pub(crate) regions: Regions,
    /// One permit for each health check that lasts.
    pub(crate) watches: Semaphore,
    /// Whether the server ends.
    stop: watch::Sender<bool>,
    /// The memory for bodies, in KiB.
    memory: Arc<Semaphore>,
}

impl ServerShared {
    pub(crate) fn new(service: Arc<dyn Service>, limits: Limits, tokens: Vec<String>, operators: Operators) -> Self {
        let memory = Semaphore::new((limits.all_body_bytes / 1024).min(Semaphore::MAX_PERMITS));
        Self {
            service,
            limits,
            tokens,
            operators,
            regions: Regions::default(),
            watches: Semaphore::new(WATCHES),
            stop: watch::Sender::new(false),
            memory: Arc::new(memory),
        }
    }

    /// Ends all that waits for [`Self::stopped`].
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until the server ends.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as this object.
        let _ = self.stop.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    /// Returns whether clients must send a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Checks that a client is one of the [`Operators`](super::Operators).
    pub(crate) fn check_operator(&self, peer: Option<Peer>) -> Result<(), ServeError> {
        // If tokens are required, every request that reaches this point carries one.
        if self.operators.include(peer, self.has_tokens()) { Ok(()) } else { Err(ServeError::Elsewhere) }
    }

    /// Returns the client that sent a request: its token if tokens are required, or else its host.
    pub(crate) fn client(&self, peer: Peer, headers: &HeaderMap) -> ClientId {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let token = headers.get(header::AUTHORIZATION).filter(|_| self.has_tokens());
        ClientId(match token {
            Some(token) => KEY.hash_one(token.as_bytes()),
            None => KEY.hash_one(peer.0.to_canonical()),
        })
    }

    /// Returns whether models are computed on a CUDA device.
    pub(crate) fn has_cuda(&self) -> bool {
        self.service.devices().iter().any(|device| !device.is_cpu())
    }

    /// Opens memory of a client's CUDA device and keeps it as a region. Waits for the driver on another thread.
    pub(crate) async fn register_cuda(&self, name: String, registration: CudaRegistration) -> Result<(), ServeError> {
        let served = self.service.devices().to_vec();
        let region = on_another_thread(move || Ok(CudaRegion::open(name, registration, &served)?)).await?;
        Ok(self.regions.register(Region::Cuda(region))?)
    }

    /// Returns the request statistics of one model or of all models.
    ///
    /// # Errors
    /// There is no such model, or no such version of it.
    pub(crate) fn statistics(&self, model: Option<(&str, Option<&str>)>) -> Result<Vec<ModelStatistics>, ServeError> {
        if let Some((name, version)) = model {
            // Fails if there is no such model or version.
            self.service.is_model_ready(name, version)?;
        }
        let mut entries = self.service.index();
        entries.retain(|entry| model.is_none_or(|(name, _)| entry.name == name));
        Ok(entries
            .into_iter()
            .map(|IndexEntry { name, version, .. }| {
                let counted = self.service.metrics().statistics(&name);
                ModelStatistics { name, version, ..counted }
            })
            .collect())
    }

    pub(crate) fn share(&self) -> BodyShare {
        BodyShare::new(self.memory.clone(), self.limits.all_body_bytes)
    }

    /// Checks that a request carries one of the tokens, if tokens are required.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<(), ServeError> {
        let tokens = &self.tokens;
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        let given =
            given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map_or(&[][..], |(_, token)| token);
        // Every token is compared in full, so that timing does not reveal how close a guess was.
        let is_known = tokens.iter().fold(Choice::from(0), |known, token| known | token.as_bytes().ct_eq(given));
        if tokens.is_empty() || is_known.into() { Ok(()) } else { Err(ServeError::Token) }
    }

    /// Asks a model, until the request's timeout after `arrived`. The answer carries the request's id.
    pub(crate) async fn infer(&self, request: InferRequest, arrived: Instant) -> Result<InferResponse, ServeError> {
        let id = request.id.clone();
        let timeout = request.timeout;
        let inferred = self.service.infer(request);
        let mut response = match timeout {
            None => inferred.await?,
            Some(timeout) => {
                let in_time = timeout_at(arrived + timeout, inferred).await;
                in_time.map_err(|_| ServeError::DeadlinePassed(timeout))??
            }
        };
        response.id = id;
        Ok(response)
    }
}

/// Refuses to load a model with parameters, since they would be ignored.
pub(crate) fn refuse_parameters<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<(), ServeError> {
    let Some(name) = names.next() else { return Ok(()) };
    Err(ServeError::Malformed(format!("the parameter {name:?} is not supported: a model is loaded as its files say")))
}

/// Counts how a request ended, even if it is dropped.
pub(crate) struct Ending<'a> {
    metrics: &'a Metrics,
    /// The model's name, once it is known that there is such a model.
    pub(crate) model: String,
    pub(crate) arrived: Instant,
    pub(crate) outcome: RequestOutcome,
}

impl<'a> Ending<'a> {
    pub(crate) fn new(metrics: &'a Metrics, arrived: Instant) -> Self {
        Self { metrics, model: String::new(), arrived, outcome: RequestOutcome::Cancelled }
    }

    /// Records the outcome of this answer.
    pub(crate) fn of<T>(&mut self, answer: &Result<T, ServeError>) {
        self.outcome = answer.as_ref().map_or_else(ServeError::outcome, |_| RequestOutcome::Answered);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let outcome = if thread::panicking() { RequestOutcome::Failed } else { self.outcome };
        self.metrics.ended(&self.model, outcome, self.arrived.elapsed());
        if let Some(record) = request_log::current().filter(|_| !self.model.is_empty()) {
            record.asks(&self.model);
        }
    }
}
