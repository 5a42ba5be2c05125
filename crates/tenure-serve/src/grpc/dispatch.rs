//! The dispatch of gRPC calls.

use std::io;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{Method, Request, header};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::call::{CHECK, Call, Caller, WATCH};
use super::convert::said;
use super::messages::{
    ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    ModelReadyResponse, ModelStatisticsRequest, ModelStatisticsResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelRequest, RepositoryModelResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use super::reflection;
use super::wire::{Outgoing, frame};
use crate::protocol::{ModelConfig, ModelState, ServerMetadata};
use crate::request_log::RequestRecord;
use crate::service::ServeError;
use crate::service::shared::{ServerShared, refuse_parameters};
use crate::service::work::guarded;

/// Answers a call once one of `places` is free. The call ends when the client cancels it.
///
/// # Errors
/// The client does not accept an answer.
pub(super) async fn answer(
    shared: Arc<ServerShared>,
    places: Arc<Semaphore>,
    caller: Caller,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> io::Result<()> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    let record = RequestRecord::new(&head.headers, "grpc", head.method.as_str(), head.uri.path());
    record.comes_from(shared.client(caller.peer, &head.headers));
    let outgoing = Outgoing::new(record.clone(), respond, shared.limits.receive);
    if !is_grpc(&head) {
        return outgoing.refuse();
    }
    let call = match Call::new(&shared, caller, &head, body, arrived) {
        Ok(call) => call,
        Err(error) => return outgoing.end(&Err(error)),
    };
    record.scope(answer_call(call, &places, outgoing)).await
}

/// Answers a call whose record is the current one.
async fn answer_call(mut call: Call<'_>, places: &Semaphore, mut outgoing: Outgoing) -> io::Result<()> {
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
    if call.path == WATCH {
        return call.watch(outgoing).await;
    }
    if reflection::PATHS.contains(&call.path) {
        return call.reflect(outgoing).await;
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

impl Call<'_> {
    /// Returns the framed answer to a call of one message.
    async fn unary(&mut self) -> Result<Bytes, ServeError> {
        // This call applies the limit itself once the model is known, and counts how it ends.
        if self.method == "ModelInfer" {
            return self.infer().await;
        }
        let Some(limit) = self.limit else { return self.other().await };
        let in_time = timeout_at(self.arrived + limit, self.other()).await;
        in_time.map_err(|_| ServeError::DeadlinePassed(limit))?
    }

    async fn other(&mut self) -> Result<Bytes, ServeError> {
        if self.path == CHECK {
            return self.check().await;
        }
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
                frame(&ServerMetadataResponse::from(ServerMetadata::grpc(self.shared.has_cuda())))
            }
            "ModelReady" => self.model_ready().await,
            "ModelMetadata" => {
                let ModelMetadataRequest { name, version } = self.message().await?;
                let metadata = self.shared.service.metadata(&name, said(version).as_deref())?;
                frame(&ModelMetadataResponse::from(&*metadata))
            }
            "ModelConfig" => {
                let ModelConfigRequest { name, version } = self.message().await?;
                let metadata = self.shared.service.metadata(&name, said(version).as_deref())?;
                frame(&ModelConfigResponse { config: Some(ModelConfig::new(&metadata).into()) })
            }
            "ModelStatistics" => {
                let ModelStatisticsRequest { name, version } = self.message().await?;
                let name = said(name);
                let version = said(version);
                let statistics = self.shared.statistics(name.as_deref().map(|name| (name, version.as_deref())))?;
                frame(&ModelStatisticsResponse { model_stats: statistics.into_iter().map(Into::into).collect() })
            }
            "RepositoryIndex" => {
                let RepositoryIndexRequest { ready, .. } = self.message().await?;
                let mut entries = self.shared.service.index();
                entries.retain(|entry| !ready || entry.state == ModelState::Ready);
                frame(&RepositoryIndexResponse { models: entries.into_iter().map(Into::into).collect() })
            }
            "RepositoryModelLoad" => {
                self.shared.check_operator(Some(self.peer))?;
                let RepositoryModelRequest { model_name, parameters, .. } = self.message().await?;
                refuse_parameters(parameters.keys())?;
                self.shared.service.load(&model_name).await?;
                frame(&RepositoryModelResponse {})
            }
            "RepositoryModelUnload" => {
                self.shared.check_operator(Some(self.peer))?;
                // No model depends on another, so `unload_dependents` has no effect.
                let RepositoryModelRequest { model_name, .. } = self.message().await?;
                self.shared.service.unload(&model_name).await?;
                frame(&RepositoryModelResponse {})
            }
            method => match method.split_once("SharedMemory") {
                Some(("System", what)) => self.system_shared_memory(what).await,
                Some(("Cuda", what)) => self.cuda_shared_memory(what).await,
                _ => Err(self.unknown()),
            },
        }
    }

    /// Answers that an unknown model is not ready. Triton reports no error in this case either.
    async fn model_ready(&mut self) -> Result<Bytes, ServeError> {
        let ModelReadyRequest { name, version } = self.message().await?;
        let ready = match self.shared.service.is_model_ready(&name, said(version).as_deref()) {
            Err(ServeError::UnknownModel { .. }) => false,
            ready => ready?,
        };
        frame(&ModelReadyResponse { ready })
    }
}
