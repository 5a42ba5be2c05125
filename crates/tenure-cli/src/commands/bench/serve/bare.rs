//! A bare server with the same HTTP library, as an upper bound on speed: it reads a body and sends a fixed answer.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tenure_serve::protocol::JSON_LENGTH;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::client::HttpAnswer;

/// A bare server, which runs until it is dropped.
pub(super) struct BareServer {
    pub(super) url: String,
    _runtime: Runtime,
}

impl BareServer {
    /// Starts a server that answers every request with `answer`, copied from another server.
    pub(super) fn start(answer: HttpAnswer) -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let url = format!("http://{}", listener.local_addr()?);
        let HttpAnswer { json_bytes, body, .. } = answer;
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let body = body.clone();
                let service = service_fn(move |request| respond(request, json_bytes, body.clone()));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { url, _runtime: runtime })
    }
}

async fn respond(
    request: Request<Incoming>,
    json_bytes: Option<usize>,
    body: Bytes,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // Errors of the body do not matter: the benchmark's own client sends whole bodies.
    drop(request.into_body().collect().await);
    let mut response = Response::new(Full::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(json_bytes) = json_bytes {
        headers.insert(JSON_LENGTH, json_bytes.into());
    }
    Ok(response)
}
