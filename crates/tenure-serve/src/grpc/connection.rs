//! gRPC connections and their limits.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::{self, Builder};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::calls;
use crate::http::connections::{Closing, Connections, Stream};
use crate::http::shared::ServerShared;
use crate::shared_memory::Peer;

/// The largest number of concurrent calls on one connection.
const CALLS: u32 = 128;

/// The flow-control window: bytes of a body that may arrive before the server asks for them.
const WINDOW: u32 = 1 << 20;

/// Serves the protocol over gRPC until `shutdown`. Calls in progress then have `Limits::drain` to end.
pub(crate) async fn serve(connections: Connections, shared: Arc<ServerShared>, shutdown: impl Future<Output = ()>) {
    let calls = Arc::new(Semaphore::new(shared.config.limits.connections));
    connections
        .serve(shutdown, move |stream, peer, closing| {
            let connection = GrpcConnection { shared: shared.clone(), calls: calls.clone(), peer, closing };
            connection.serve(stream)
        })
        .await;
}

/// The settings of a connection.
struct GrpcConnection {
    shared: Arc<ServerShared>,
    /// One permit for each call that may be in progress.
    calls: Arc<Semaphore>,
    peer: Peer,
    closing: Closing,
}

impl GrpcConnection {
    /// Answers calls until the client closes the connection, has no call for too long, or the server ends.
    async fn serve(mut self, stream: Stream) -> io::Result<()> {
        let limits = self.shared.config.limits;
        let handshake = builder(limits.header_bytes).handshake(stream);
        let handshake = tokio::select! {
            handshake = timeout(limits.receive, handshake) => handshake?,
            () = self.closing.begun() => return Ok(()),
        };
        let mut connection: server::Connection<_, Bytes> = handshake.map_err(io::Error::other)?;
        let mut calls = JoinSet::new();
        let mut is_closing = false;
        loop {
            tokio::select! {
                accepted = connection.accept() => {
                    let Some(accepted) = accepted else { return Ok(()) };
                    let (request, respond) = accepted.map_err(io::Error::other)?;
                    calls.spawn(calls::answer(self.shared.clone(), self.calls.clone(), self.peer, request, respond));
                }
                Some(ended) = calls.join_next() => {
                    if let Ok(Err(error)) = ended {
                        tracing::debug!("a call ended: {error}");
                    }
                }
                () = self.closing.begun(), if !is_closing => {
                    is_closing = true;
                    connection.graceful_shutdown();
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
