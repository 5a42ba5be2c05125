//! The connections of a listener, over HTTP and gRPC: their handshakes and their end.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::Limits;
use super::places::{Place, Places};

/// The pause after a connection could not be accepted, for example for lack of descriptors, which others may free.
const PAUSE: Duration = Duration::from_millis(10);

/// A connection's byte stream.
pub(crate) type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// A listener, and the settings of its connections.
pub(crate) struct Connections {
    pub(crate) listener: TcpListener,
    pub(crate) limits: Limits,
    /// The TLS acceptor; without it, connections are not encrypted.
    pub(crate) tls: Option<TlsAcceptor>,
}

/// The address of the host that a request came from.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl Peer {
    /// Returns whether it is this host. A client here that uses the host's external address counts as remote.
    pub(crate) fn is_here(&self) -> bool {
        self.0.to_canonical().is_loopback()
    }
}

/// A connection that has been accepted, after its TLS handshake.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) peer: Peer,
    pub(crate) place: Arc<Place>,
    pub(crate) closing: Closing,
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
        serve: impl Fn(Accepted) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Self { listener, limits, tls } = self;
        let places = Places::new(limits.connections);
        let (close, closing) = watch::channel(false);
        let closing = Closing(closing);
        // Dropping this future drops the set, which ends all connections.
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&listener, limits.receive) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Descriptors may be scarcer than places.
                    if !places.make_room() {
                        tracing::warn!("a connection could not be accepted: {error}");
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let serve = serve.clone();
            let tls = tls.clone();
            let mut closing = closing.clone();
            let (place, evicted) = places.enter(peer.0);
            let served = async move {
                let handshake = tokio::select! {
                    handshake = timeout(limits.head, encrypt(stream, tls)) => handshake,
                    () = closing.begun() => return Ok(()),
                };
                let stream = handshake.map_err(io::Error::from).flatten()?;
                serve(Accepted { stream, peer, place, closing }).await
            };
            connections.spawn(async move {
                let ended = tokio::select! {
                    ended = served => ended,
                    _ = evicted => Err(io::Error::other("another connection needs its place")),
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

/// Accepts the next connection, which ends if the peer acknowledges no sent bytes for `patience`.
async fn accept(listener: &TcpListener, patience: Duration) -> io::Result<(TcpStream, Peer)> {
    let (stream, peer) = listener.accept().await?;
    let patience_ms = patience.as_millis().try_into().unwrap_or(u32::MAX);
    // Answers are written whole, so nothing is gained by delaying packets. A failure means that the peer is gone.
    let _ = stream.set_nodelay(true).and_then(|()| Ok(sockopt::set_tcp_user_timeout(&stream, patience_ms)?));
    Ok((stream, Peer(peer.ip())))
}

/// Returns a connection's stream, after the TLS handshake if there is an acceptor.
async fn encrypt(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Stream> {
    match tls {
        Some(tls) => Ok(Either::Right(tls.accept(stream).await?)),
        None => Ok(Either::Left(stream)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_here_if_it_comes_over_loopback() {
        for (address, is_here) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(Peer(address.parse().unwrap()).is_here(), is_here, "{address}");
        }
    }
}
