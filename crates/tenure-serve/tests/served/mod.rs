//! A server of models in its own folder, over loopback, with a client.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod cuda;
pub(crate) mod moody;
pub(crate) mod probe;
pub(crate) mod processes;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use tenure_nn::checkpoint::Weights;
use tenure_nn::networks::Architectures;
use tenure_nn::{Module, Scope};
use tenure_serve::examples;
use tenure_serve::protocol::{Datatype, Encoding, InferRequest, InferResponse, Tensor, Wanted};
use tenure_serve::server::{InferenceServer, InferenceServerConfig};
use tenure_serve::service::Service;
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_tensor::random::Generator;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use probe::Control;

/// The interval at which folders are read again.
pub(crate) const RESCAN: Duration = Duration::from_millis(50);

/// A server that runs until it is dropped.
pub(crate) struct Served {
    pub(crate) folder: TempDir,
    pub(crate) serving: Arc<Serving>,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    _runtime: Runtime,
}

impl Served {
    /// Starts a server of the models in a folder, with this much memory for weights.
    pub(crate) fn new(folder: TempDir, memory_bytes: u64) -> Self {
        Self::with(folder, memory_bytes, Architectures::default())
    }

    pub(crate) fn with(folder: TempDir, memory_bytes: u64, architectures: Architectures) -> Self {
        let mut options = ServingOptions::new(folder.path(), memory_bytes);
        options.rescan = RESCAN;
        Self::start(folder, options, architectures)
    }

    pub(crate) fn start(folder: TempDir, options: ServingOptions, architectures: Architectures) -> Self {
        let serving = Arc::new(Serving::start(options, architectures).unwrap());
        let runtime = Runtime::new().unwrap();
        let mut config = InferenceServerConfig::default();
        config.address.set_port(0);
        let server = runtime.block_on(InferenceServer::bind(config, serving.clone())).unwrap();
        let (address, (stop, stopped)) = (server.address(), oneshot::channel());
        runtime.spawn(server.run(async { stopped.await.unwrap_or(()) }));
        Self { folder, serving, address, stop: Some(stop), _runtime: runtime }
    }

    /// Starts a server of the examples that need no other files.
    pub(crate) fn examples() -> Self {
        Self::new(example_models(), 1 << 30)
    }

    /// Starts a server of models of the architecture `probe` only, each of 100,000 bytes.
    pub(crate) fn probes(names: &[&str], config: &str, memory_bytes: u64) -> (Self, Arc<Control>) {
        let folder = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| probe::write(folder.path(), name, config));
        let control = Arc::new(Control::default());
        (Self::with(folder, memory_bytes, probe::architectures(&control)), control)
    }

    pub(crate) fn infer(&self, request: &InferRequest) -> Result<InferResponse, (u16, String)> {
        let encoded = request.encode(Encoding::Binary).unwrap();
        let json = encoded.json_bytes.map(|bytes| format!("Inference-Header-Content-Length: {bytes}\r\n"));
        let path = format!("/v2/models/{}/infer", request.model);
        let (status, headers, body) = self.ask("POST", &path, &json.unwrap_or_default(), &encoded.body);
        if status != 200 {
            return Err((status, error(&body)));
        }
        let length = headers.lines().find_map(|line| line.strip_prefix("inference-header-content-length: "));
        Ok(InferResponse::parse(Bytes::from(body), length.map(|length| length.parse().unwrap())).unwrap())
    }

    /// Sends a POST request, and returns the status and the error message.
    pub(crate) fn post(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("POST", path, "", b"");
        (status, if status == 200 { String::new() } else { error(&body) })
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("GET", path, "", b"");
        (status, String::from_utf8(body).unwrap())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        stream.write_all(&self.request(method, path, headers, body)).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        (head[9..12].parse().unwrap(), head, answer[end + 4..].to_vec())
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}");
        [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }

    /// Returns the bytes of weights in memory.
    pub(crate) fn memory(&self) -> u64 {
        self.serving.snapshot().tiers[0].used_bytes
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

pub(crate) fn example_models() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    examples::write(folder.path(), None).unwrap();
    folder
}

/// Counts the images of models with such names that are mapped in this process.
pub(crate) fn images(name: &str) -> usize {
    let mappings = fs::read_to_string("/proc/self/maps").unwrap();
    mappings.lines().filter(|line| line.contains(&format!("memfd:{name}"))).count()
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn request(model: &str, inputs: Vec<Tensor>) -> InferRequest {
    let wanted = Wanted { encoding: Encoding::Binary, ..Wanted::default() };
    InferRequest { model: model.into(), inputs, wanted, ..InferRequest::default() }
}

pub(crate) fn floats(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor::new(name, Datatype::Fp32, shape.into(), bytes).unwrap()
}

pub(crate) fn integers(name: &str, shape: &[usize], values: &[i64]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor::new(name, Datatype::Int64, shape.into(), bytes).unwrap()
}

/// Loads a folder's model directly, without a server.
pub(crate) fn own<M: Module>(folder: &Path, build: impl FnOnce(&Scope) -> M) -> M {
    let mut model = build(&Scope::new(&Generator::new(7)));
    model.load(&Weights::open(folder).unwrap()).unwrap();
    model.eval();
    model
}

fn error(body: &[u8]) -> String {
    let body: std::collections::BTreeMap<String, String> = serde_json::from_slice(body).unwrap();
    body["error"].clone()
}
