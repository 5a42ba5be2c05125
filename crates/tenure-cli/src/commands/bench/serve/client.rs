//! An HTTP client that uses one connection for each concurrent request and keeps idle connections.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tenure_serve::protocol::{Encoded, JSON_LENGTH};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time after which a request is abandoned.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

type Connection = SendRequest<Full<Bytes>>;

/// A client of one server.
pub(super) struct HttpClient {
    /// The address as HOST:PORT.
    address: String,
    host: HeaderValue,
    idle: Mutex<Vec<Connection>>,
}

/// The server's answer.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    /// The number of JSON bytes in the body, if not all are JSON.
    pub(super) json_bytes: Option<usize>,
    pub(super) body: Bytes,
}

impl HttpClient {
    /// Makes a client of the server at http://HOST:PORT. It sends nothing yet.
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let address = url.strip_prefix("http://").map(|address| address.trim_end_matches('/'));
        let address = address.filter(|address| !address.contains('/')).map(str::to_owned);
        let address = address.with_context(|| format!("--url {url}: expected http://HOST:PORT"))?;
        let host = HeaderValue::from_str(&address)?;
        Ok(Self { address, host, idle: Mutex::default() })
    }

    /// Sends a GET and returns the answer.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<HttpAnswer> {
        self.send(Request::get(path).body(Full::default())?).await
    }

    /// Sends a POST and returns the answer.
    pub(super) async fn post(&self, path: &str, sent: &Encoded) -> anyhow::Result<HttpAnswer> {
        let mut request = Request::post(path).body(Full::new(sent.body.clone()))?;
        if let Some(json_bytes) = sent.json_bytes {
            request.headers_mut().insert(JSON_LENGTH, json_bytes.into());
        }
        self.send(request).await
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> anyhow::Result<HttpAnswer> {
        request.headers_mut().insert(HOST, self.host.clone());
        let answered = timeout(PATIENCE, async {
            let mut connection = self.connection().await?;
            let answer = connection.send_request(request).await?;
            let status = answer.status();
            let json_bytes = answer.headers().get(JSON_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
            let body = answer.into_body().collect().await?.to_bytes();
            self.idle().push(connection);
            anyhow::Ok(HttpAnswer { status, json_bytes, body })
        });
        answered.await.with_context(|| format!("{}: no answer in {PATIENCE:?}", self.address))?
    }

    /// Returns an idle connection, or a new one.
    async fn connection(&self) -> anyhow::Result<Connection> {
        loop {
            let Some(mut idle) = self.idle().pop() else { return self.connect().await };
            if idle.ready().await.is_ok() {
                return Ok(idle);
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.address).await.with_context(|| self.address.clone())?;
        stream.set_nodelay(true)?;
        let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
        // The request sees how the connection ends.
        tokio::spawn(driver);
        Ok(connection)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
