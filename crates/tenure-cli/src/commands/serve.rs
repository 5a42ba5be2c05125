//! `tenure serve`: serves models over HTTP and gRPC.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, fs};

use tenure::tensor::Device;
use tenure::tier;
use tenure::units::{Amount, Bytes, parse_bytes};
use tenure_core::user_files::text_without_mark;

use tenure_nn::networks::Architectures;
use tenure_serve::http::{HostName, Origin};
use tenure_serve::protocol::{IndexEntry, ModelState};
use tenure_serve::repository::model_folder;
use tenure_serve::server::{InferenceServer, InferenceServerConfig};
use tenure_serve::service::{Limits, Operators, Service, TlsFiles};
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_serve::worker::{self, WorkerCommand};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::logging::LogFormat;
use crate::{files, platform, signals};

/// Serve the models of a folder over HTTP and gRPC (Open Inference Protocol v2), until interrupted
#[derive(clap::Args)]
#[command(after_help = "\
DIR has a folder for each model, with a config.toml and weights as safetensors; `tenure models init DIR` writes some \
to begin with. A Hugging Face folder is served as it is, if necessary by transformers in the Python that --python \
names. A PyTorch module that a function loads is served too: python = \"model.py:load\" in its config.toml. The \
server notices folders that are added, changed or removed.

If the weights do not all fit into --device-bytes, a model's weights are loaded when it is requested, on the CPU from \
the disk, on a GPU from the host's memory; the weights of least value are evicted. Models are computed by separate \
processes. One that ends is replaced; it loses no weights, and only the batch that it computed. At / is a page that \
shows the server's activity, at /metrics the same for Prometheus.

Examples:
  tenure models init models && tenure serve models
  tenure serve models --device-bytes 4GiB --listen 127.0.0.1:0 --json
  tenure serve models --listen 0.0.0.0:8000 --tokens tokens.txt
  tenure serve models --listen 0.0.0.0:8443 --tokens tokens.txt \\
    --tls-cert cert.pem --tls-key key.pem
  tenure serve models --device cuda --device-bytes 40GB --host-bytes 200GB
  tenure serve models --device cuda --python ~/venv/bin/python
  tenure serve models --grpc-port 8001
  tenure serve models --background /run/user/1000/background.sock
  tenure serve models --log json 2>>requests.jsonl

  curl localhost:8000/v2/models/next-byte/infer -d \\
    '{\"inputs\": [{\"name\": \"tokens\", \"datatype\": \"INT64\", \"shape\": [1, 3],
      \"data\": [72, 101, 108]}]}'")]
pub(crate) struct ServeArgs {
    /// The folder of models, or of one model
    #[arg(value_name = "DIR")]
    models: PathBuf,
    /// The address to listen on; other hosts reach the server only if it is not a loopback address. Port 0 is any free
    /// port, which is printed
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)), value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The port for gRPC, at the same address, with the same tokens; 0 is any free port, which is printed [default: no
    /// gRPC; Triton's port is 8001]
    #[arg(long, value_name = "N")]
    grpc_port: Option<u16>,
    /// A file with tokens, one per line; lines that begin with # are comments. Each request must have a token, as
    /// `Authorization: Bearer TOKEN` [default: no token is needed]
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// A file with the server's certificate as PEM; it turns on TLS for HTTP and gRPC
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// A file with the certificate's private key as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Also answer clients without a token that ask by this name, as behind a proxy or a service of Kubernetes; * is any
    /// name. IP addresses and localhost need none: a web page of another site can only use the server by a name of its
    /// own. May be given several times
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<HostName>,
    /// Also answer web pages of this origin, such as https://app.example.com; other sites' pages are refused. May be given
    /// several times
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<Origin>,
    /// Let clients of other hosts load and unload models and use shared memory without a token
    #[arg(long)]
    allow_remote_operators: bool,
    /// The device to compute on: cpu, cuda, or cuda:N; or several CUDA devices, such as cuda:0,cuda:1, on which models
    /// are placed when they are requested
    #[arg(long, default_value = "cpu", value_delimiter = ',', value_name = "DEVICE")]
    device: Vec<Device>,
    /// Each device's memory for weights: a size, or a share of the memory available to this program
    #[arg(long, default_value = "50%", value_name = "SIZE|P%")]
    device_bytes: Amount,
    /// The pinned host memory for weights that are not on a GPU: a size, or a share of the memory available to this
    /// program. All GPUs copy from the same weights there; with --python, half of it is for PyTorch modules, an equal
    /// share for each GPU
    #[arg(long, default_value = "50%", value_name = "SIZE|P%")]
    host_bytes: Amount,
    /// The socket of programs that use the device while there are no requests, such as training, and yield it when one
    /// comes: `tenure background SOCKET -- COMMAND`, or PyTorch with tenure.torch.install(background="SOCKET")
    /// [default: none]
    #[arg(long, value_name = "SOCKET")]
    background: Option<PathBuf>,
    /// The largest number of requests that may wait for one model; the server refuses others. A client takes at most half of
    /// the free places
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    max_queued: u32,
    /// The largest body of a request; a size is a number of bytes, or has a unit such as MiB or GB
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes, value_name = "SIZE")]
    max_body: u64,
    /// The Python program that computes PyTorch modules, with tenure and PyTorch installed; started if there is such a
    /// model, on GPUs once for each [default: on the CPU that of $VIRTUAL_ENV, or else python3; on GPUs none]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Log each request on standard error, one per line: its id, which is the header X-Request-Id, the model, the
    /// outcome, and the time of each phase
    #[arg(long, value_enum, default_value_t = LogFormat::Off, value_name = "FORMAT")]
    pub(crate) log: LogFormat,
    /// Print one JSON object when the server is ready: url, grpc, and the names of the models that are ready
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => files::print(Err(error)),
    }
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    // The first signal lets requests in progress be answered.
    let interrupted = Arc::new(Notify::new());
    let told = Arc::clone(&interrupted);
    signals::tell(move || told.notify_one());
    let mut config = InferenceServerConfig { address: args.listen, ..InferenceServerConfig::default() };
    config.grpc = args.grpc_port.map(|port| SocketAddr::new(args.listen.ip(), port));
    config.limits.body_bytes = usize::try_from(args.max_body)?;
    config.limits.all_body_bytes = Limits::default().all_body_bytes.max(config.limits.body_bytes);
    if let Some(file) = &args.tokens {
        config.tokens = tokens(file)?;
    }
    config.hosts.clone_from(&args.allow_host);
    config.origins.clone_from(&args.allow_origin);
    if args.allow_remote_operators {
        config.operators = Operators::All;
    }
    config.tls =
        args.tls_cert.clone().zip(args.tls_key.clone()).map(|(certificate, key)| TlsFiles { certificate, key });
    let secure = if config.tls.is_some() { "s" } else { "" };
    let mut options = ServingOptions::new(&args.models, args.device_bytes.of(available(&args.device)?));
    (options.devices, options.host_bytes) = (args.device.clone(), args.host_bytes.of(tier::memory_bytes()));
    options.background.clone_from(&args.background);
    options.max_queued = args.max_queued as usize;
    options.worker = Some(WorkerCommand::this_program(["worker"]));
    let is_cpu = args.device.iter().all(|device| device.is_cpu());
    options.python = args.python.clone().or_else(|| is_cpu.then(python)).map(WorkerCommand::python);
    let memory = Bytes(options.memory_bytes);
    if let Some((_, name)) = model_folder(&args.models) {
        files::complain(&format!("{} is itself a model: it alone is served, as {name:?}", args.models.display()));
    }
    let serving = Arc::new(Serving::start(options, Architectures::default())?);
    let runtime = Runtime::new()?;
    let server = runtime.block_on(InferenceServer::bind(config, Arc::clone(&serving) as Arc<dyn Service>))?;
    let index = serving.index();
    let ready: Vec<&str> =
        index.iter().filter(|entry: &&IndexEntry| entry.state == ModelState::Ready).map(|entry| &*entry.name).collect();
    let url = format!("http{secure}://{}", server.address());
    let grpc = server.grpc_address();
    let said = if args.json {
        serde_json::json!({ "url": url, "grpc": grpc.map(|address| address.to_string()), "models": ready }).to_string()
    } else {
        let grpc = grpc.map(|address| format!("grpc{secure}://{address} and ")).unwrap_or_default();
        let ready = ready.len();
        let count = index.len();
        let devices = args.device.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        format!("serving {ready} of {count} models with {memory} of {devices} for weights at {grpc}{url}")
    };
    // A program that waits for this line can send requests.
    if let Err(error) = writeln!(io::stdout(), "{said}") {
        // A program that waits for JSON would wait forever. After a broken pipe the server may still get requests.
        anyhow::ensure!(!args.json || error.kind() == io::ErrorKind::BrokenPipe, "standard output: {error}");
        files::complain(&format!("standard output: {error}: {said}"));
    }
    runtime.block_on(server.run(async move { interrupted.notified().await }));
    Ok(())
}

/// Returns the Python of the active environment, or else `python3`.
fn python() -> PathBuf {
    env::var_os("VIRTUAL_ENV").map_or_else(|| "python3".into(), |folder| Path::new(&folder).join("bin/python3"))
}

/// Computes for a server.
pub(crate) fn work() -> ExitCode {
    worker::run(Architectures::default())
}

fn tokens(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(file).map_err(|error| files::about(file, error))?;
    let lines = text_without_mark(&text).lines();
    let is_token = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let tokens: Vec<String> = lines.map(str::trim).filter(is_token).map(String::from).collect();
    anyhow::ensure!(!tokens.is_empty(), "{}: no token: write one a line, or leave --tokens out", file.display());
    Ok(tokens)
}

/// Returns the fewest bytes of memory available to this program on any of the devices.
fn available(devices: &[Device]) -> anyhow::Result<u64> {
    let bytes = devices
        .iter()
        .map(|device: &Device| match device.is_cpu() {
            true => Ok(tier::memory_bytes()),
            false => Ok(platform::memory(&format!("--device {device}"), *device)?.driver().memory_info()?.free),
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(bytes.into_iter().min().unwrap_or(0))
}
