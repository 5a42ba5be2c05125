//! The server: its settings, and its start for HTTP and gRPC.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::grpc;
use crate::http::{self, HostName, Origin, Sites};
use crate::service::connections::Connections;
use crate::service::shared::ServerShared;
use crate::service::{Limits, Operators, Service, TlsError, TlsFiles};

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

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The server cannot listen at an address.
    #[error("{address}: cannot listen here: {reason}; try another port")]
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
    sites: Sites,
}

impl InferenceServer {
    /// Starts to listen. Port 0 stands for any free port.
    ///
    /// # Errors
    /// The server cannot listen there, or the TLS files are invalid.
    pub async fn bind(config: InferenceServerConfig, service: Arc<dyn Service>) -> Result<Self, BindError> {
        let (connections, address) = listen(config.address, &config, b"http/1.1").await?;
        let grpc = match config.grpc {
            Some(address) => Some(listen(address, &config, b"h2").await?),
            None => None,
        };
        let InferenceServerConfig { tokens, hosts, origins, operators, limits, .. } = config;
        let shared = Arc::new(ServerShared::new(service, limits, tokens, operators));
        Ok(Self { connections, address, grpc, shared, sites: Sites { hosts, origins } })
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
        let Self { connections, grpc, shared, sites, .. } = self;
        let shutdown = async {
            shutdown.await;
            shared.stop();
        };
        let grpc = async {
            if let Some((connections, _)) = grpc {
                grpc::serve(connections, shared.clone(), shared.stopped()).await;
            }
        };
        tokio::join!(shutdown, http::serve(connections, shared.clone(), sites), grpc);
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
        tracing::warn!("every client that reaches {address} may {may}: the server has no tokens");
    }
    Ok((Connections { listener, limits: config.limits, tls }, address))
}
