//! The calls for inference.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::call::Call;
use super::convert::{self, decode, infer_request, said};
use super::messages::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use super::status;
use super::wire::{Outgoing, frame};
use crate::metrics::RequestOutcome;
use crate::request_log::RequestEvent;
use crate::service::body::BodyShare;
use crate::service::shared::{Ending, ServerShared};
use crate::service::work::aside;
use crate::service::work::guarded;
use crate::service::{Peer, ServeError};
use crate::shared_memory::SharedTensors;

impl Call<'_> {
    pub(super) async fn infer(&mut self) -> Result<Bytes, ServeError> {
        let mut ending = Ending::new(self.shared.service.metrics(), self.arrived);
        let answer = async {
            let mut share = self.shared.share();
            let message = self.incoming.only(&mut share).await?;
            let asked = self.asked(self.arrived, self.limit);
            asked.answer(message, share, &mut ending.model, |answer| frame(&answer)).await
        };
        let answer = answer.await;
        ending.of(&answer);
        answer
    }

    /// Answers one message after the other. An error in one message does not end the others.
    pub(super) async fn stream(mut self, mut outgoing: Outgoing) -> io::Result<()> {
        loop {
            let mut share = self.shared.share();
            let message = tokio::select! {
                () = outgoing.cancelled() => return Ok(()),
                message = self.incoming.next(&mut share) => message,
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
                answer = record.scope(guarded(self.streamed(message, share))) => answer,
            };
            let outcome = answer.as_ref().map_or_else(ServeError::outcome, |_| RequestOutcome::Answered);
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

    async fn streamed(&mut self, message: Bytes, share: BodyShare) -> Result<Bytes, ServeError> {
        let arrived = Instant::now();
        let mut ending = Ending::new(self.shared.service.metrics(), arrived);
        let limit = self.limit.map(|limit| (self.arrived + limit).saturating_duration_since(arrived));
        let asked = self.asked(arrived, limit);
        let in_stream =
            |answer| frame(&ModelStreamInferResponse { error_message: String::new(), infer_response: Some(answer) });
        let answer = asked.answer(message, share, &mut ending.model, in_stream).await;
        ending.of(&answer);
        answer
    }
}

impl<'a> Call<'a> {
    fn asked(&self, arrived: Instant, limit: Option<Duration>) -> Asked<'a> {
        Asked { shared: self.shared, peer: self.peer, arrived, limit }
    }
}

/// A request for inference.
struct Asked<'a> {
    shared: &'a ServerShared,
    peer: Peer,
    arrived: Instant,
    /// The time limit of the call, which holds even if the message states another.
    limit: Option<Duration>,
}

impl Asked<'_> {
    /// Answers a message and encodes the answer with `frame`. Sets `known` to the model's name once the model is found.
    async fn answer(
        &self,
        message: Bytes,
        mut share: BodyShare,
        known: &mut String,
        frame: impl FnOnce(ModelInferResponse) -> Result<Bytes, ServeError> + Send + 'static,
    ) -> Result<Bytes, ServeError> {
        let bytes = message.len();
        let decoded = aside(bytes, move || {
            let taken = bytes.saturating_add(convert::decoded_bytes(&message)?);
            share.grow(taken)?;
            let message: ModelInferRequest = decode(message)?;
            let (name, version) = (message.model_name.clone(), said(message.model_version.clone()));
            Ok((name, version, infer_request(message), share, taken))
        });
        let (name, version, request, mut share, taken) = decoded.await?;
        let metadata = self.shared.service.metadata(&name, version.as_deref())?;
        *known = name;
        let (mut request, form) = request?;
        request.timeout = request.timeout.into_iter().chain(self.limit).min();
        let mut shared_tensors = SharedTensors::find(self.shared, Some(self.peer), &request)?;
        let request = shared_tensors.read_inputs(self.shared, &mut share, taken, request).await?;
        metadata.check(&request).map_err(ServeError::Invalid)?;
        let wanted = request.wanted.clone();
        let response = shared_tensors.write_outputs(self.shared.infer(request, self.arrived).await?).await?;
        let bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
        aside(bytes, move || frame(convert::infer_response(&response, &wanted, form)?)).await
    }
}
