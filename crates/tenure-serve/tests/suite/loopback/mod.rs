//! A server of the fake service over loopback, and a parser of raw answers.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure_serve::server::{InferenceServer, InferenceServerConfig};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake::Fake;

/// A server of a test, which runs until it is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) grpc_address: Option<SocketAddr>,
    pub(crate) fake: Arc<Fake>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) running: JoinHandle<()>,
    pub(crate) runtime: Runtime,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Parses the first answer in some bytes, and returns it with its length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let head_bytes = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = str::from_utf8(&bytes[..head_bytes]).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.into())).unwrap();
        let headers: BTreeMap<String, String> = lines.map(header).collect();
        let body_bytes = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let begin = head_bytes + 4;
        let rest = &bytes[head_bytes + 4..];
        let body = rest[..rest.len().min(body_bytes)].to_vec();
        let end = begin + body.len();
        Some((Self { status, headers, body }, end))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Returns the status and the error message of the body, in the protocol's form or in OpenAI's.
    pub(crate) fn error(&self) -> (u16, String) {
        let mut body: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&self.body).unwrap();
        let error = body.remove("error").filter(|_| body.is_empty()).unwrap();
        let message = error.as_str().or(error["message"].as_str()).unwrap();
        (self.status, message.into())
    }
}

impl Served {
    /// Starts a server on free ports.
    pub(crate) fn with(config: InferenceServerConfig) -> Self {
        Self::of(config, Fake::default())
    }

    /// Starts a server on free ports for a given service.
    pub(crate) fn of(mut config: InferenceServerConfig, fake: Fake) -> Self {
        config.address.set_port(0);
        let runtime = Runtime::new().unwrap();
        let fake = Arc::new(fake);
        let server = runtime.block_on(InferenceServer::bind(config, fake.clone())).unwrap();
        let address = server.address();
        let grpc_address = server.grpc_address();
        let (stop, stopped) = oneshot::channel();
        let running = runtime.spawn(server.run(async { stopped.await.unwrap_or(()) }));
        Self { address, grpc_address, fake, stop: Some(stop), running, runtime }
    }

    pub(crate) fn send(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        // The server may answer, and close, before it has read everything.
        let _ = stream.write_all(request);
        stream
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        receive(self.send(&request(method, path, headers, body))).unwrap()
    }
}

/// Returns a request to `localhost`, unless `headers` have another host.
pub(crate) fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let has_host = headers.iter().any(|header| header.starts_with("Host: "));
    let host = if has_host { "" } else { "Host: localhost\r\n" };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

/// Receives all bytes until the connection is closed.
pub(crate) fn receive_all(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        // A connection that was reset may have been answered before.
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "neither an answer nor an end");
    }
    bytes
}

/// Receives an answer; `None` if the connection was closed without one.
pub(crate) fn receive(stream: TcpStream) -> Option<Answer> {
    Answer::parse(&receive_all(stream)).map(|(answer, _)| answer)
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{what} did not come to be");
        thread::sleep(Duration::from_millis(2));
    }
}
