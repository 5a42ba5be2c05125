//! Models over HTTP.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::prelude::*;
use tenure::tier;
use tenure_nn::networks::Architectures;
use tenure_serve::http::{Config, Limits, Server, Service};
use tenure_serve::protocol::ModelState;
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_serve::worker::{self, WorkerCommand};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::memory::parse_bytes;
use crate::{files, output};

/// Answer requests to the models of a folder over HTTP (Open Inference Protocol v2), until interrupted
#[derive(clap::Args)]
#[command(after_help = "\
DIR has a folder for each model, with a config.toml and weights as safetensors; `tenure models init DIR` writes some to begin
with. Folders that come, change or go are noticed. Weights that do not all fit into --memory come from the disk when they are
asked for, and those that are worth least leave. Models are computed by processes of their own: one that ends is replaced, and fails
no more than the batch that it computed. At / is a page that shows what goes on, at /metrics the same for Prometheus.

Examples:
  tenure models init models && tenure serve models
  tenure serve models --memory 4GiB --port 0
  tenure serve models --address 0.0.0.0 --tokens tokens.txt

  curl localhost:8000/v2/models/next-byte/infer -d \\
    '{\"inputs\": [{\"name\": \"tokens\", \"datatype\": \"INT64\", \"shape\": [1, 3], \"data\": [72, 101, 108]}]}'")]
pub(crate) struct ServeArgs {
    /// The folder of models
    #[arg(value_name = "DIR")]
    models: PathBuf,
    /// Where to listen; others than this host reach the server only if this says so
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    address: IpAddr,
    /// The port; 0 is any that is free, which is printed
    #[arg(long, default_value_t = 8000, value_name = "N")]
    port: u16,
    /// A file with tokens, one a line: each request must have one of them, as `Authorization: Bearer TOKEN`
    /// [default: everybody who reaches the server]
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Memory for weights: a size, or a share of what this program may use
    #[arg(long, default_value = "50%", value_parser = parse_memory, value_name = "SIZE|P%")]
    memory: u64,
    /// Requests that may wait for one model; others are told to come again
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    max_queued: u32,
    /// The longest body of a request; a size is a number of bytes, or has a unit such as MiB or GB
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes, value_name = "SIZE")]
    max_body: u64,
}

pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    files::print(serve(args).map(|()| String::new()))
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let interrupted = interruption()?;
    let mut config = Config { address: SocketAddr::new(args.address, args.port), ..Config::default() };
    config.limits.body_bytes = usize::try_from(args.max_body)?;
    config.limits.all_body_bytes = Limits::default().all_body_bytes.max(config.limits.body_bytes);
    if let Some(file) = &args.tokens {
        config.tokens = tokens(file)?;
    }
    let mut options = ServingOptions::new(&args.models, args.memory);
    options.max_queued = args.max_queued as usize;
    options.worker = Some(WorkerCommand::this_program(["worker"]));
    let memory = Bytes(options.memory_bytes);
    let serving = Arc::new(Serving::start(options, Architectures::default())?);
    let runtime = Runtime::new()?;
    let server = runtime.block_on(Server::bind(config, Arc::clone(&serving) as Arc<dyn Service>))?;
    let index = serving.index();
    let ready = index.iter().filter(|entry| entry.state == ModelState::Ready).count();
    // Whoever waits for this line can ask. Nobody has to read it.
    let said =
        format!("serving {ready} of {} models with {memory} for weights at http://{}", index.len(), server.address());
    let _ = writeln!(io::stdout(), "{said}");
    runtime.block_on(server.run(async move { interrupted.notified().await }));
    Ok(())
}

/// Computes for a server.
pub(crate) fn work() -> ExitCode {
    worker::run(Architectures::default())
}

/// Told of the first request to end, after which what has begun is answered; the second ends the program at once.
fn interruption() -> anyhow::Result<Arc<Notify>> {
    let (interrupted, was_before) = (Arc::new(Notify::new()), AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    ctrlc::set_handler(move || {
        if was_before.swap(true, Ordering::Relaxed) {
            process::exit(output::INTERRUPTED.into());
        }
        told.notify_one();
    })?;
    Ok(interrupted)
}

fn tokens(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(file).map_err(|error| files::about(file, error))?;
    let tokens: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
    anyhow::ensure!(!tokens.is_empty(), "{}: no token: write one a line, or leave --tokens out", file.display());
    Ok(tokens)
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let Some(percent) = text.strip_suffix('%') else { return parse_bytes(text) };
    let percent = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let percent: f64 = percent.ok_or("expected a size, or a share from 0% to 100%")?;
    Ok((tier::memory_bytes() as f64 * percent / 100.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!(parse_memory("3MiB"), Ok(3 << 20));
        assert_eq!(parse_memory("100%"), Ok(tier::memory_bytes()));
        assert_eq!(parse_memory("0%"), Ok(0));
        for text in ["-1%", "101%", "NaN%", "half", "%"] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }
}
