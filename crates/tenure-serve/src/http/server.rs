//! The server: its connections, their limits, and its shutdown.

use std::any::Any;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use axum::response::IntoResponse;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::answer_body::AnswerBody;
use super::connections::{Accepted, Connections};
use super::cors::Cors;
use super::places::{Place, PlaceKind};
use super::routes::{Routes, is_health};
use super::shared::ServerShared;
use super::sites::{HostName, Origin};
use super::tls::{TlsError, TlsFiles};
use super::{ServeError, Service, error};
use crate::grpc;
use crate::request_log::{REQUEST_ID, RequestEvent, RequestRecord};
use crate::shared_memory::Peer;

/// The settings of an [`InferenceServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferenceServerConfig {
    /// The address to listen on for HTTP.
    pub address: SocketAddr,
    /// The address to listen on for gRPC, if it is served.
    pub grpc: Option<SocketAddr>,
    /// The accepted tokens: each request must carry one of them, except health checks. Without tokens, every client may
    /// ask.
    pub tokens: Vec<String>,
    /// The certificate and key that encrypt all connections. Without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// The names by which clients without a token may ask, beside IP addresses and `localhost`.
    pub hosts: Vec<HostName>,
    /// The origins of other sites' pages that may use the server.
    pub origins: Vec<Origin>,
    /// The clients that may load and unload models and use shared memory.
    pub operators: Operators,
    /// The limits of the server.
    pub limits: Limits,
}

/// The clients that may load and unload models and use shared memory, with which a client reads and writes every object
/// that the server's user can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// Clients on the server's host, and clients with a token.
    #[default]
    HereOrWithToken,
    /// All clients.
    All,
}

impl Default for InferenceServerConfig {
    /// HTTP on port 8000 of this host only, without tokens.
    fn default() -> Self {
        let address = (Ipv4Addr::LOCALHOST, 8000).into();
        Self {
            address,
            grpc: None,
            tokens: Vec::new(),
            tls: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            operators: Operators::default(),
            limits: Limits::default(),
        }
    }
}

impl Operators {
    /// Returns whether a client is one of them.
    pub(super) fn include(self, peer: Option<Peer>, has_token: bool) -> bool {
        match self {
            Self::HereOrWithToken => has_token || peer.is_some_and(|peer| peer.is_here()),
            Self::All => true,
        }
    }
}

/// The limits of an [`InferenceServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body in bytes, both as received and decompressed.
    pub body_bytes: usize,
    /// The bytes of the bodies of all requests in progress. A request that does not fit is told to come again later.
    pub all_body_bytes: usize,
    /// The longest request line and headers in bytes.
    pub header_bytes: usize,
    /// The most connections at once, each with at most one request in progress; half of them from one address. Others
    /// take the place of connections that have no request, or are answered health checks only. gRPC has as many
    /// connections of its own, which together have at most as many calls in progress.
    pub connections: usize,
    /// The time limit of a TLS handshake, and of receiving the first headers after it.
    pub head: Duration,
    /// The longest time in which a body makes too little progress: at least a KiB and a sixteenth of what has arrived.
    pub stall: Duration,
    /// The time limit of receiving a body; also the longest idle time of a connection, and the longest time that a client
    /// may accept no bytes of its answer.
    pub receive: Duration,
    /// The time that requests in progress have to end when the server shuts down.
    pub drain: Duration,
}

impl Default for Limits {
    /// Bodies of 64 MiB, and 1 GiB together; headers of 32 KiB; 1,024 connections; 10 s for a handshake, for the first
    /// headers and without progress; a minute to receive and half a minute to shut down.
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            all_body_bytes: 1 << 30,
            header_bytes: 32 << 10,
            connections: 1024,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            receive: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The server cannot listen at an address.
    #[error("{address}: nothing can be served here: {reason}; is another port free?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        reason: io::Error,
    },
    /// The server has no usable certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server of the protocol over HTTP/1.1 and, if [`InferenceServerConfig::grpc`] is set, over gRPC.
pub struct InferenceServer {
    connections: Connections,
    address: SocketAddr,
    grpc: Option<(Connections, SocketAddr)>,
    shared: Arc<ServerShared>,
}

impl InferenceServer {
    /// Starts to listen. Port 0 stands for any free port.
    ///
    /// # Errors
    /// The server cannot listen there, or the TLS files are invalid.
    pub async fn bind(config: InferenceServerConfig, service: Arc<dyn Service>) -> Result<Self, BindError> {
        let shared = Arc::new(ServerShared::new(service, config));
        let (connections, address) = listen(shared.config.address, &shared.config, b"http/1.1").await?;
        let grpc = match shared.config.grpc {
            Some(address) => Some(listen(address, &shared.config, b"h2").await?),
            None => None,
        };
        Ok(Self { connections, address, grpc, shared })
    }

    /// Returns the address on which it listens for HTTP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address on which it listens for gRPC, if it does.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `shutdown`. Then the server accepts no more connections, ends the live page's streams, and gives
    /// requests in progress [`Limits::drain`] to end.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { connections, grpc, shared, .. } = self;
        let shutdown = async {
            shutdown.await;
            shared.stop();
        };
        let grpc = async {
            if let Some((connections, _)) = grpc {
                grpc::serve(connections, shared.clone(), shared.stopped()).await;
            }
        };
        let routes = Arc::new(Routes::new(shared.clone()));
        let limits = shared.config.limits;
        let http = connections.serve(shared.stopped(), move |accepted| serve(accepted, routes.clone(), limits));
        let feed = shared.feed.run(&*shared.service, shared.stopped());
        tokio::join!(shutdown, http, grpc, feed);
    }
}

/// Starts to listen for connections that speak `protocol`, and warns if every client in reach may use the server.
async fn listen(
    address: SocketAddr,
    config: &InferenceServerConfig,
    protocol: &[u8],
) -> Result<(Connections, SocketAddr), BindError> {
    let tls = config.tls.as_ref().map(|files| files.acceptor(protocol)).transpose()?;
    let error = |reason| BindError::Listen { address, reason };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    let address = listener.local_addr().map_err(error)?;
    if !address.ip().is_loopback() && config.tokens.is_empty() {
        let may = match config.operators {
            Operators::HereOrWithToken => "use models",
            Operators::All => "use, load and unload models, and use shared memory",
        };
        tracing::warn!("every client that reaches {address} may {may}: there are no tokens");
    }
    Ok((Connections { listener, limits: config.limits, tls }, address))
}

/// Serves HTTP/1.1 over a connection until its client closes it or the server ends.
async fn serve(accepted: Accepted, routes: Arc<Routes>, limits: Limits) -> io::Result<()> {
    let Accepted { stream, peer, place, mut closing } = accepted;
    let service = {
        let place = place.clone();
        service_fn(move |request| answer(routes.clone(), peer, place.clone(), request))
    };
    let mut builder = http1::Builder::new();
    // This is the time that a connection may be idle, too.
    builder.timer(TokioTimer::new()).header_read_timeout(limits.receive).max_header_size(limits.header_bytes);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut silence = pin!(sleep(limits.head));
    let is_silent = || !place.had_request();
    loop {
        tokio::select! {
            ended = &mut connection => return ended.map_err(io::Error::other),
            () = &mut silence, if is_silent() => {
                if is_silent() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            () = closing.begun() => break,
        }
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
}

/// Returns the answer of a route.
async fn answer(
    routes: Arc<Routes>,
    peer: Peer,
    place: Arc<Place>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let in_progress = place.begin();
    let record = RequestRecord::new(request.headers(), "http", request.method().as_str(), request.uri().path());
    record.comes_from(routes.client(peer, request.headers()));
    let mut event = RequestEvent::new(record.clone());
    let cors = Cors::of(&routes.config().origins, request.headers());
    let is_refused = place.kind() == PlaceKind::Reserve && !is_health(request.uri().path());
    let routed = async {
        if is_refused {
            return Err(ServeError::Crowded);
        }
        // Boxed, since it has a few KiB, which would be copied at each move.
        Box::pin(routes.answer(peer, request)).await
    };
    let mut answer = record.scope(guarded(routed)).await.unwrap_or_else(ServeError::into_response);
    answer.headers_mut().insert(REQUEST_ID, record.id().clone());
    cors.add_to(answer.headers_mut());
    if place.kind() == PlaceKind::Reserve {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let status = answer.status();
    event.answered(error::outcome(status), status.as_u16(), answer.body().size_hint().exact());
    Ok(answer.map(|body| Body::new(AnswerBody::new(body, in_progress))))
}

/// Runs a request's future. If it panics, only this request fails and its connection goes on.
pub(crate) async fn guarded<T>(answer: impl Future<Output = Result<T, ServeError>>) -> Result<T, ServeError> {
    let mut answer = pin!(answer);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(failure(&*panic))))
    })
    .await
}

fn failure(panic: &(dyn Any + Send)) -> ServeError {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a request failed: {}", message.unwrap_or("it panicked"));
    ServeError::Failed("the server failed at this request: its log says how".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_another_host_without_a_token_operates_no_server() {
        let [here, there] = [[127, 0, 0, 1], [10, 0, 0, 1]].map(|address| Some(Peer(address.into())));
        let default = Operators::default();
        let included = [(here, false), (there, true), (there, false), (None, false)]
            .map(|(peer, has_token)| default.include(peer, has_token));
        assert_eq!(included, [true, true, false, false]);
        assert!(Operators::All.include(there, false));
    }
}
