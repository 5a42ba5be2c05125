//! Calls, and how each is answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{Method, Request, header};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::convert::{self, Form, decode, infer_request, said};
use super::messages::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    ModelReadyResponse, ModelStreamInferResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelRequest, RepositoryModelResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use super::status;
use super::wire::{Incoming, Outgoing, frame, time_limit};
use crate::http::ServeError;
use crate::http::body::{Share, aside};
use crate::http::server::guarded;
use crate::http::shared::{Ending, Shared, refuse_parameters};
use crate::metrics::Outcome;
use crate::protocol::{ModelState, ServerMetadata};
use crate::request_log::{RequestEvent, RequestRecord};

const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Answers a call, if there are fewer under way than `places`. It ends when the client cancels it.
///
/// # Errors
/// The client takes no answer.
pub(super) async fn answer(
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> io::Result<()> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    let record = RequestRecord::new(&head.headers, "grpc", head.method.as_str(), head.uri.path());
    let outgoing = Outgoing::new(record.clone(), respond, shared.config.limits.receive);
    if !is_grpc(&head) {
        return outgoing.refuse();
    }
    record.scope(call(&shared, &places, &head, body, outgoing, arrived)).await
}

/// Answers a call whose record is the current one.
async fn call(
    shared: &Shared,
    places: &Semaphore,
    head: &Parts,
    body: RecvStream,
    mut outgoing: Outgoing,
    arrived: Instant,
) -> io::Result<()> {
    let mut call = match Call::new(shared, head, body, arrived) {
        Ok(call) => call,
        Err(error) => return outgoing.end(&Err(error)),
    };
    let place = tokio::select! {
        () = outgoing.cancelled() => return Ok(()),
        place = call.place(places) => place,
    };
    let _place = match place {
        Ok(place) => place,
        Err(error) => return outgoing.end(&Err(error)),
    };
    if call.method == "ModelStreamInfer" {
        return call.stream(outgoing).await;
    }
    let answer = tokio::select! {
        () = outgoing.cancelled() => return Ok(()),
        answer = guarded(call.unary()) => answer,
    };
    if let Ok(answer) = &answer {
        outgoing.send(answer.clone()).await?;
    }
    outgoing.end(&answer.map(drop))
}

fn is_grpc(head: &Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    head.method == Method::POST && matches!(kind, Some(b"application/grpc" | b"application/grpc+proto"))
}

/// A call that is under way.
struct Call<'a> {
    shared: &'a Shared,
    method: &'a str,
    path: &'a str,
    arrived: Instant,
    /// How long it may take.
    limit: Option<Duration>,
    incoming: Incoming,
    share: Share,
}

impl<'a> Call<'a> {
    fn new(shared: &'a Shared, head: &'a Parts, body: RecvStream, arrived: Instant) -> Result<Self, ServeError> {
        let path = head.uri.path();
        let method = path.strip_prefix(SERVICE).unwrap_or_default();
        // Whoever looks whether the server is there has no token.
        if !matches!(method, "ServerLive" | "ServerReady") {
            shared.authorize(&head.headers)?;
        }
        let limit = time_limit(&head.headers)?;
        let incoming = Incoming::new(&head.headers, body, shared.config.limits)?;
        Ok(Self { shared, method, path, arrived, limit, incoming, share: shared.share() })
    }

    /// Waits until another call may be under way.
    async fn place<'p>(&self, places: &'p Semaphore) -> Result<SemaphorePermit<'p>, ServeError> {
        let place = match self.limit {
            None => places.acquire().await,
            Some(limit) => {
                let in_time = timeout_at(self.arrived + limit, places.acquire()).await;
                in_time.map_err(|_| ServeError::DeadlinePassed(limit))?
            }
        };
        // It is closed when the server is gone.
        place.map_err(|_| ServeError::ShuttingDown)
    }

    /// The answer to a call of one message, behind its length.
    async fn unary(&mut self) -> Result<Bytes, ServeError> {
        // This has the limit from where the model is asked, and counts how it ends.
        if self.method == "ModelInfer" {
            return self.infer().await;
        }
        let Some(limit) = self.limit else { return self.other().await };
        let in_time = timeout_at(self.arrived + limit, self.other()).await;
        in_time.map_err(|_| ServeError::DeadlinePassed(limit))?
    }

    async fn other(&mut self) -> Result<Bytes, ServeError> {
        match self.method {
            "ServerLive" => {
                let ServerLiveRequest {} = self.message().await?;
                frame(&ServerLiveResponse { live: self.shared.service.is_live() })
            }
            "ServerReady" => {
                let ServerReadyRequest {} = self.message().await?;
                frame(&ServerReadyResponse { ready: self.shared.service.is_ready() })
            }
            "ServerMetadata" => {
                let ServerMetadataRequest {} = self.message().await?;
                frame(&ServerMetadataResponse::from(ServerMetadata::TENURE))
            }
            "ModelReady" => self.model_ready().await,
            "ModelMetadata" => {
                let ModelMetadataRequest { name, version } = self.message().await?;
                let metadata = self.shared.service.metadata(&name, said(version).as_deref())?;
                frame(&ModelMetadataResponse::from(&*metadata))
            }
            "RepositoryIndex" => {
                let RepositoryIndexRequest { ready, .. } = self.message().await?;
                let mut entries = self.shared.service.index();
                entries.retain(|entry| !ready || entry.state == ModelState::Ready);
                frame(&RepositoryIndexResponse { models: entries.into_iter().map(Into::into).collect() })
            }
            "RepositoryModelLoad" => {
                let RepositoryModelRequest { model_name, parameters, .. } = self.message().await?;
                refuse_parameters(parameters.keys())?;
                self.shared.service.load(&model_name).await?;
                frame(&RepositoryModelResponse {})
            }
            "RepositoryModelUnload" => {
                // No model depends on another, so that `unload_dependents` says nothing.
                let RepositoryModelRequest { model_name, .. } = self.message().await?;
                self.shared.service.unload(&model_name).await?;
                frame(&RepositoryModelResponse {})
            }
            _ => Err(ServeError::UnknownRoute(self.path.into())),
        }
    }

    /// A model that is not known is not ready. That is no error, as it is none of Triton's.
    async fn model_ready(&mut self) -> Result<Bytes, ServeError> {
        let ModelReadyRequest { name, version } = self.message().await?;
        let ready = match self.shared.service.is_model_ready(&name, said(version).as_deref()) {
            Err(ServeError::UnknownModel { .. }) => false,
            ready => ready?,
        };
        frame(&ModelReadyResponse { ready })
    }

    /// The call's only message.
    async fn message<M: Message + Default>(&mut self) -> Result<M, ServeError> {
        decode(self.incoming.only(&mut self.share).await?)
    }

    async fn infer(&mut self) -> Result<Bytes, ServeError> {
        let mut ending = Ending::new(self.shared.service.metrics(), self.arrived);
        let answer = async {
            let message = self.incoming.only(&mut self.share).await?;
            let asked = Asked { shared: self.shared, arrived: self.arrived, limit: self.limit };
            asked.answer(message, &mut self.share, &mut ending.model, |answer| frame(&answer)).await
        };
        let answer = answer.await;
        ending.of(&answer);
        answer
    }

    /// Answers one message after the other. What is wrong with one ends no other.
    async fn stream(mut self, mut outgoing: Outgoing) -> io::Result<()> {
        loop {
            // What the last one took is free.
            self.share = self.shared.share();
            let message = tokio::select! {
                () = outgoing.cancelled() => return Ok(()),
                message = self.incoming.next(&mut self.share) => message,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return outgoing.end(&Ok(())),
                Err(error) => return outgoing.end(&Err(error)),
            };
            let record = outgoing.record().next();
            record.received(message.len());
            let mut event = RequestEvent::new(record.clone());
            let answer = tokio::select! {
                () = outgoing.cancelled() => return Ok(()),
                answer = record.scope(guarded(self.streamed(message))) => answer,
            };
            let outcome = answer.as_ref().map_or_else(ServeError::outcome, |_| Outcome::Answered);
            let bytes_out = answer.as_ref().ok().map(|answer| answer.len() as u64);
            event.answered(outcome, status::number(&answer), bytes_out);
            drop(event);
            let error = |error: ServeError| {
                frame(&ModelStreamInferResponse { error_message: error.message(), infer_response: None })
            };
            match answer.or_else(error) {
                Ok(answer) => outgoing.send(answer).await?,
                Err(error) => return outgoing.end(&Err(error)),
            }
        }
    }

    async fn streamed(&mut self, message: Bytes) -> Result<Bytes, ServeError> {
        let arrived = Instant::now();
        let mut ending = Ending::new(self.shared.service.metrics(), arrived);
        let limit = self.limit.map(|limit| (self.arrived + limit).saturating_duration_since(arrived));
        let asked = Asked { shared: self.shared, arrived, limit };
        let in_stream =
            |answer| frame(&ModelStreamInferResponse { error_message: String::new(), infer_response: Some(answer) });
        let answer = asked.answer(message, &mut self.share, &mut ending.model, in_stream).await;
        ending.of(&answer);
        answer
    }
}

/// A request for inference.
struct Asked<'a> {
    shared: &'a Shared,
    arrived: Instant,
    /// How long it may take, whatever it says.
    limit: Option<Duration>,
}

impl Asked<'_> {
    /// The answer to a message, as `frame` makes it. `known` becomes the model's name, when it is known that there is such a
    /// model.
    async fn answer(
        &self,
        message: Bytes,
        share: &mut Share,
        known: &mut String,
        frame: impl FnOnce(ModelInferResponse) -> Result<Bytes, ServeError> + Send + 'static,
    ) -> Result<Bytes, ServeError> {
        let bytes = message.len();
        let counted = aside(bytes, move || Ok((convert::decoded_bytes(&message)?, message)));
        let (more, message) = counted.await?;
        share.grow(bytes.saturating_add(more))?;
        let message: ModelInferRequest = aside(bytes, move || decode(message)).await?;
        let metadata =
            self.shared.service.metadata(&message.model_name, said(message.model_version.clone()).as_deref())?;
        known.clone_from(&message.model_name);
        let read = move || {
            let (request, form) = infer_request(message)?;
            metadata.check(&request).map_err(ServeError::Invalid)?;
            Ok((request, form))
        };
        let (mut request, form): (_, Form) = aside(bytes, read).await?;
        request.timeout = request.timeout.into_iter().chain(self.limit).min();
        let wanted = request.wanted.clone();
        let response = self.shared.infer(request, self.arrived).await?;
        let bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
        aside(bytes, move || frame(convert::infer_response(&response, &wanted, form)?)).await
    }
}
