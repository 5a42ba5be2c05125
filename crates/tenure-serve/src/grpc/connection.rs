//! gRPC connections and their limits.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use h2::server::{self, Builder};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::call::Caller;
use super::dispatch::answer;
use crate::service::connections::{Accepted, Connections};
use crate::service::places::PlaceKind;
use crate::service::shared::ServerShared;

/// The largest number of concurrent calls on one connection.
const CALLS: u32 = 128;

/// The flow-control window: bytes of a body that may arrive before the server asks for them.
const WINDOW: u32 = 1 << 20;

/// Serves the protocol over gRPC until `shutdown`. Calls in progress then have `Limits::drain` to end.
pub(crate) async fn serve(connections: Connections, shared: Arc<ServerShared>, shutdown: impl Future<Output = ()>) {
    let calls = Arc::new(Semaphore::new(shared.limits.connections));
    connections
        .serve(shutdown, move |accepted| {
            GrpcConnection { shared: shared.clone(), calls: calls.clone(), accepted }.serve()
        })
        .await;
}

/// The settings of a connection.
struct GrpcConnection {
    shared: Arc<ServerShared>,
    /// One permit for each call that may be in progress.
    calls: Arc<Semaphore>,
    accepted: Accepted,
}

impl GrpcConnection {
    /// Answers calls until the client closes the connection, has no call for too long, or the server ends.
    async fn serve(self) -> io::Result<()> {
        let Self { shared, calls: places, accepted } = self;
        let Accepted { stream, peer, place, mut closing } = accepted;
        let caller = Caller { peer, place: place.kind() };
        let limits = shared.limits;
        let handshake = builder(limits.header_bytes).handshake(stream);
        let handshake = tokio::select! {
            handshake = timeout(limits.head, handshake) => handshake?,
            () = closing.begun() => return Ok(()),
        };
        let mut connection: server::Connection<_, Bytes> = handshake.map_err(io::Error::other)?;
        let mut calls = JoinSet::new();
        let mut is_closing = false;
        let mut silence = pin!(sleep(limits.head));
        loop {
            tokio::select! {
                accepted = connection.accept() => {
                    let Some(accepted) = accepted else { return Ok(()) };
                    let (request, respond) = accepted.map_err(io::Error::other)?;
                    if place.kind() == PlaceKind::Reserve && !is_closing {
                        // The client's next connection may get a regular place.
                        is_closing = true;
                        connection.graceful_shutdown();
                    }
                    let in_progress = place.begin();
                    let answer = answer(shared.clone(), places.clone(), caller, request, respond);
                    calls.spawn(async move {
                        let answered = answer.await;
                        drop(in_progress);
                        answered
                    });
                }
                Some(ended) = calls.join_next() => {
                    if let Ok(Err(error)) = ended {
                        tracing::debug!("a call ended: {error}");
                    }
                }
                () = closing.begun(), if !is_closing => {
                    is_closing = true;
                    connection.graceful_shutdown();
                }
                () = &mut silence, if !is_closing && !place.had_request() => {
                    is_closing = true;
                    connection.abrupt_shutdown(Reason::NO_ERROR);
                }
                () = sleep(limits.receive), if calls.is_empty() => {
                    if is_closing {
                        return Ok(());
                    }
                    is_closing = true;
                    connection.graceful_shutdown();
                }
            }
        }
    }
}

fn builder(header_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_header_list_size(header_bytes.try_into().unwrap_or(u32::MAX))
        .max_concurrent_streams(CALLS)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    builder
}
