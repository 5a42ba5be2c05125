//! gRPC's own health checks, `grpc.health.v1.Health`.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::call::Call;
use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use super::reflection;
use super::wire::{Outgoing, frame};
use crate::service::ServeError;
use crate::service::shared::ServerShared;

/// The time after which a watched status is looked at again.
const PERIOD: Duration = Duration::from_millis(250);

impl Call<'_> {
    /// Answers with the current status.
    ///
    /// # Errors
    /// There is no such service.
    pub(super) async fn check(&mut self) -> Result<Bytes, ServeError> {
        let HealthCheckRequest { service } = self.message().await?;
        frame(&response(status(self.shared, &service)?))
    }

    /// Sends the status and each further one, until the client or the server ends.
    pub(super) async fn watch(mut self, mut outgoing: Outgoing) -> io::Result<()> {
        let Ok(_watch) = self.shared.watches.try_acquire() else { return outgoing.end(&Err(ServeError::Crowded)) };
        let received = tokio::select! {
            () = outgoing.cancelled() => return Ok(()),
            received = self.message() => received,
        };
        let HealthCheckRequest { service } = match received {
            Ok(request) => request,
            Err(error) => return outgoing.end(&Err(error)),
        };
        let mut sent = None;
        loop {
            // A service that is not known may become known.
            let now = status(self.shared, &service).unwrap_or(ServingStatus::ServiceUnknown);
            if sent != Some(now) {
                match frame(&response(now)) {
                    Ok(frame) => outgoing.send(frame).await?,
                    Err(error) => return outgoing.end(&Err(error)),
                }
                sent = Some(now);
            }
            tokio::select! {
                () = outgoing.cancelled() => return Ok(()),
                () = self.shared.stopped() => return outgoing.end(&Err(ServeError::ShuttingDown)),
                () = sleep(PERIOD) => {}
            }
        }
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// Returns the status of the server, if `service` is empty or one of its services, or of the model with that name.
fn status(shared: &ServerShared, service: &str) -> Result<ServingStatus, ServeError> {
    let is_server = service.is_empty() || reflection::services().any(|known| known == service);
    // An unknown model is an error even if the server is not ready.
    let is_service_ready = is_server || shared.service.is_model_ready(service, None)?;
    let is_ready = is_service_ready && shared.service.is_live() && shared.service.is_ready();
    Ok(if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing })
}
