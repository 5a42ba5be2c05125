//! A gRPC call: its head, its messages and its place among others.

use std::time::Duration;

use axum::http::request::Parts;
use h2::RecvStream;
use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::convert::decode;
use super::wire::{Incoming, time_limit};
use crate::service::body::BodyShare;
use crate::service::places::PlaceKind;
use crate::service::shared::ServerShared;
use crate::service::{Peer, ServeError};

const SERVICE: &str = "/inference.GRPCInferenceService/";

/// The paths of gRPC's own health checks.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The sender of a call.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) peer: Peer,
    pub(super) place: PlaceKind,
}

/// The kind of a call, which says to which clients it is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// A health check, which needs neither a token nor a place.
    Check,
    /// A health check that lasts. It needs no token, and its number is limited by itself.
    Watch,
    /// Any other call.
    Other,
}

impl CallKind {
    fn of(path: &str) -> Self {
        match path {
            CHECK => Self::Check,
            WATCH => Self::Watch,
            path => match path.strip_prefix(SERVICE) {
                Some("ServerLive" | "ServerReady") => Self::Check,
                _ => Self::Other,
            },
        }
    }
}

/// A call in progress.
pub(super) struct Call<'a> {
    pub(super) shared: &'a ServerShared,
    pub(super) peer: Peer,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) arrived: Instant,
    /// The time limit that the client set.
    pub(super) limit: Option<Duration>,
    pub(super) incoming: Incoming,
    pub(super) share: BodyShare,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        shared: &'a ServerShared,
        Caller { peer, place }: Caller,
        head: &'a Parts,
        body: RecvStream,
        arrived: Instant,
    ) -> Result<Self, ServeError> {
        let path = head.uri.path();
        let method = path.strip_prefix(SERVICE).unwrap_or_default();
        let kind = CallKind::of(path);
        if kind != CallKind::Check && place == PlaceKind::Reserve {
            return Err(ServeError::Crowded);
        }
        if kind == CallKind::Other {
            shared.authorize(&head.headers)?;
        }
        let limit = time_limit(&head.headers)?;
        let incoming = Incoming::new(&head.headers, body, shared.limits)?;
        Ok(Self { shared, peer, method, path, arrived, limit, incoming, share: shared.share() })
    }

    /// Waits until another call may begin. Health checks may always.
    pub(super) async fn place<'p>(&self, places: &'p Semaphore) -> Result<Option<SemaphorePermit<'p>>, ServeError> {
        if CallKind::of(self.path) != CallKind::Other {
            return Ok(None);
        }
        let place = match self.limit {
            None => places.acquire().await,
            Some(limit) => {
                let in_time = timeout_at(self.arrived + limit, places.acquire()).await;
                in_time.map_err(|_| ServeError::DeadlinePassed(limit))?
            }
        };
        // The semaphore is closed when the server is gone.
        place.map(Some).map_err(|_| ServeError::ShuttingDown)
    }

    /// Returns the error of a call that is not implemented.
    pub(super) fn unknown(&self) -> ServeError {
        ServeError::UnknownRoute(self.path.into())
    }

    /// Receives the call's only message.
    pub(super) async fn message<M: Message + Default>(&mut self) -> Result<M, ServeError> {
        decode(self.incoming.only(&mut self.share).await?)
    }
}
