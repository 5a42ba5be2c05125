//! State that requests share over HTTP and gRPC.

use std::sync::Arc;
use std::thread;

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::body::{BodyShare, aside};
use super::feed::Feed;
use super::{InferenceServerConfig, Limits, ServeError, Service};
use crate::metrics::{Metrics, RequestOutcome};
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelStatistics};
use crate::request_log;
use crate::shared_memory::{CudaRegion, CudaRegistration, Peer, Region, Regions, SharedMemoryError};

/// State that all requests share.
pub(crate) struct ServerShared {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) config: InferenceServerConfig,
    /// The registered regions of shared memory.
    pub(crate) regions: Regions,
    /// The feed of the live page.
    pub(super) feed: Feed,
    /// The memory for bodies, in KiB.
    memory: Arc<Semaphore>,
}

impl ServerShared {
    pub(crate) fn new(service: Arc<dyn Service>, config: InferenceServerConfig) -> Self {
        let memory = Semaphore::new((config.limits.all_body_bytes / 1024).min(Semaphore::MAX_PERMITS));
        Self { service, config, regions: Regions::default(), feed: Feed::default(), memory: Arc::new(memory) }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Allows shared memory to clients on this host and to clients with a token. Other clients have no use for it.
    pub(crate) fn neighbour(&self, peer: Option<Peer>) -> Result<(), SharedMemoryError> {
        let is_here = peer.is_some_and(|peer| peer.is_here());
        // If tokens are required, every request that reaches this point carries one.
        if is_here || !self.config.tokens.is_empty() { Ok(()) } else { Err(SharedMemoryError::Elsewhere) }
    }

    /// Returns whether models are computed on a CUDA device.
    pub(crate) fn has_cuda(&self) -> bool {
        self.service.devices().iter().any(|device| !device.is_cpu())
    }

    /// Opens memory of a client's CUDA device and keeps it as a region. Waits for the driver on another thread.
    pub(crate) async fn register_cuda(&self, name: String, registration: CudaRegistration) -> Result<(), ServeError> {
        let served = self.service.devices().to_vec();
        let region = aside(usize::MAX, move || Ok(CudaRegion::open(name, registration, &served)?)).await?;
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
        BodyShare::new(self.memory.clone())
    }

    /// Checks that a request carries one of the tokens, if tokens are required.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<(), ServeError> {
        let tokens = &self.config.tokens;
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
    pub(super) arrived: Instant,
    pub(super) outcome: RequestOutcome,
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
