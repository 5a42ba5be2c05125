//! The connections of a listener, over HTTP and gRPC: their number, their handshakes and their end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::Limits;
use crate::shared_memory::Peer;

/// The pause after a connection could not be accepted, for example for lack of descriptors, which others may free.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection's byte stream.
pub(crate) type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// A listener, and the settings of its connections.
pub(crate) struct Connections {
    pub(crate) listener: TcpListener,
    pub(crate) limits: Limits,
    /// The TLS acceptor; without it, connections are not encrypted.
    pub(crate) tls: Option<TlsAcceptor>,
}

/// A signal that connections are to end after the answers that they have begun.
#[derive(Clone)]
pub(crate) struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Waits until the signal is given.
    pub(crate) async fn begun(&mut self) {
        // An error means that the listener is gone, and its connections with it.
        drop(self.0.wait_for(|is_closing| *is_closing).await);
    }
}

impl Connections {
    /// Serves each connection with `serve` until `shutdown`. Connections then have [`Limits::drain`] to end.
    pub(crate) async fn serve<F>(
        self,
        shutdown: impl Future<Output = ()>,
        serve: impl Fn(Stream, Peer, Closing) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Self { listener, limits, tls } = self;
        let places = Arc::new(Semaphore::new(limits.connections));
        let (close, closing) = watch::channel(false);
        let closing = Closing(closing);
        // Dropping this future drops the set, which ends all connections.
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&listener, &places, limits.receive) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let (stream, peer, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let serve = serve.clone();
            let tls = tls.clone();
            let mut closing = closing.clone();
            connections.spawn(async move {
                let _place = place;
                let handshake = tokio::select! {
                    handshake = timeout(limits.receive, encrypt(stream, tls)) => handshake,
                    () = closing.begun() => return,
                };
                let served = handshake.map_err(io::Error::from).flatten().map(|stream| serve(stream, peer, closing));
                let ended = match served {
                    Ok(served) => served.await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ended {
                    tracing::debug!("a connection ended: {error}");
                }
            });
        }
        drop(listener);
        close.send_replace(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(limits.drain, ended).await.is_err() {
            tracing::warn!("requests still in progress after {:?} are cut off", limits.drain);
        }
        connections.shutdown().await;
    }
}

/// Accepts the next connection once there is a place for it. The connection ends if the peer acknowledges no sent bytes
/// for `patience`.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    patience: Duration,
) -> io::Result<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    let patience_ms = patience.as_millis().try_into().unwrap_or(u32::MAX);
    // Answers are written whole, so nothing is gained by delaying packets. A failure means that the peer is gone.
    let _ = stream.set_nodelay(true).and_then(|()| Ok(sockopt::set_tcp_user_timeout(&stream, patience_ms)?));
    Ok((stream, Peer(peer.ip()), place))
}

/// Returns a connection's stream, after the TLS handshake if there is an acceptor.
async fn encrypt(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Stream> {
    match tls {
        Some(tls) => Ok(Either::Right(tls.accept(stream).await?)),
        None => Ok(Either::Left(stream)),
    }
}
