//! Connections, and their limits.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::{self, Builder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::calls;
use crate::http::server::{PAUSE, accept};
use crate::http::shared::Shared;

/// The most calls of one connection at once.
const CALLS: u32 = 128;

/// Bytes of a body that may come before they are asked for.
const WINDOW: u32 = 1 << 20;

/// A server of the protocol over gRPC.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn new(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>) -> Self {
        Self { listener, address, shared }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`, and what is then under way for no longer than that may take.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, shared, .. } = self;
        let limits = shared.config.limits;
        let places = Arc::new(Semaphore::new(limits.connections));
        let calls = Arc::new(Semaphore::new(limits.connections));
        let (close, closing) = watch::channel(false);
        // Dropped with this future, and then ends them all.
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&listener, &places, limits.receive) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let (stream, _, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let connection = Connection { shared: shared.clone(), calls: calls.clone(), closing: closing.clone() };
            connections.spawn(async move {
                let _place = place;
                if let Err(error) = connection.serve(stream).await {
                    tracing::debug!("a connection ended: {error}");
                }
            });
        }
        drop(listener);
        close.send_replace(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(limits.drain, ended).await.is_err() {
            tracing::warn!("calls that were under way for {:?} are cut off", limits.drain);
        }
        connections.shutdown().await;
    }
}

/// The settings of a connection.
struct Connection {
    shared: Arc<Shared>,
    /// One for each call that may be under way.
    calls: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl Connection {
    /// Answers calls until the client closes it, or has none for too long, or the server ends.
    async fn serve(mut self, stream: TcpStream) -> io::Result<()> {
        let limits = self.shared.config.limits;
        let handshake = builder(limits.header_bytes).handshake(stream);
        let handshake = tokio::select! {
            handshake = timeout(limits.receive, handshake) => handshake?,
            _ = self.closing.wait_for(|closing| *closing) => return Ok(()),
        };
        let mut connection: server::Connection<_, Bytes> = handshake.map_err(io::Error::other)?;
        let mut calls = JoinSet::new();
        let mut is_closing = false;
        loop {
            tokio::select! {
                accepted = connection.accept() => {
                    let Some(accepted) = accepted else { return Ok(()) };
                    let (request, respond) = accepted.map_err(io::Error::other)?;
                    calls.spawn(calls::answer(self.shared.clone(), self.calls.clone(), request, respond));
                }
                Some(ended) = calls.join_next() => {
                    if let Ok(Err(error)) = ended {
                        tracing::debug!("a call ended: {error}");
                    }
                }
                _ = self.closing.wait_for(|closing| *closing), if !is_closing => {
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
