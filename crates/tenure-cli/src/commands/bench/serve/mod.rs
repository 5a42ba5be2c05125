//! `tenure bench serve`: measures a server under load.

mod arrivals;
mod bare;
mod client;
mod closed;
mod metrics;
mod own;
mod replay;
mod summary;
mod target;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::{Value, json};
use tenure::report::ServingReport;
use tenure::tier;
use tenure::units::{Bytes, parse_bytes};
use tokio::runtime::{Builder, Runtime};

use super::BenchFiles;
use super::workload::Workload;
use crate::platform::DeviceArgs;
use crate::values::parse_up_to_a_billion;
use crate::{files, progress, signals};
use arrivals::{Arrival, Pattern, arrivals};
use client::HttpClient;
use closed::{Closed, Rates};
use own::{OwnModels, OwnServer};
use replay::{Replayed, replay};
use summary::Summary;
use target::{Asked, ServerUnderTest};

/// Measure a server's latency and throughput under load
#[derive(clap::Args)]
#[command(after_help = "\
Without --url, this program serves models with random weights like `tenure serve`, and compares every answer with the \
model's own. Loads:

  cycles    models in turns, as PipeSwitch's authors measured: one gets requests at equal intervals, after --cycle seconds the next
  poisson   requests come at random times, for all models equally often
  zipf      the same, but model number n gets n^-exponent times as many requests as the first
  closed    each of --connections sends its next request when the last is answered, to one model; in turns with a bare server of
            the same library that reads each request and answers as many bytes

All but `closed` send each request at its time, whether or not earlier ones were answered. Latencies count from that \
time, over all requests; an unanswered one counts as infinite. The server's metrics give the phases of this time, for \
requests whose weights were resident and for those that waited for weights (switched).

Examples:
  tenure bench serve --load cycles --models 2 --cycle 5 --seconds 60
  tenure bench serve --load zipf --models 20 --rate 50 \\
    --report serve.html --figure serve.svg
  tenure bench serve --load poisson --url http://localhost:8000 --rate 10 --json
  tenure bench serve --load closed --connections 64")]
pub(crate) struct BenchServeArgs {
    /// The pattern of requests
    #[arg(long, value_enum, default_value_t = LoadName::Zipf, value_name = "NAME")]
    load: LoadName,
    /// The number of models to ask [default: 4, or all of --url]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    models: Option<u16>,
    /// A model to serve; may be repeated, and models of these kinds are made in turn [default: mlp; linear for closed]
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "url")]
    model: Vec<Workload>,
    /// The mean number of requests per second
    #[arg(long, default_value = "20", value_parser = parse_up_to_a_billion, value_name = "R")]
    rate: f64,
    /// The seconds for which requests are sent
    #[arg(long, default_value = "10", value_parser = parse_up_to_a_billion, value_name = "S")]
    seconds: f64,
    /// The seconds of a model's turn, with --load cycles
    #[arg(long, default_value = "1", value_parser = parse_up_to_a_billion, value_name = "S")]
    cycle: f64,
    /// The exponent of Zipf's law, with --load zipf: a higher one favours the first models more
    #[arg(long, default_value = "1", value_parser = parse_up_to_a_billion, value_name = "X")]
    exponent: f64,
    /// The number of connections, with --load closed
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..1024), value_name = "N")]
    connections: u16,
    /// The time in ms after which an answer is late
    #[arg(long, default_value = "1000", value_parser = parse_up_to_a_billion, value_name = "T")]
    deadline_ms: f64,
    /// The seed of random times and models
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// A running server, as http://HOST:PORT; its models get inputs of ones
    #[arg(long, value_name = "URL", conflicts_with = "device")]
    url: Option<String>,
    #[command(flatten)]
    compute: DeviceArgs,
    /// The device memory for weights [default: half of all models' weights; all of them for closed]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE", conflicts_with = "url")]
    device_bytes: Option<u64>,
    /// The host memory for weights that are not on a GPU [default: half of the memory available to this program]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE", conflicts_with = "url")]
    host_bytes: Option<u64>,
    #[command(flatten)]
    files: BenchFiles,
    /// Print JSON objects, one per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadName {
    Cycles,
    Poisson,
    Zipf,
    Closed,
}

/// The least memory for a model whose weights are smaller than a page.
const LEAST_BYTES: u64 = 64 << 10;

/// The default number of models.
const MODELS: u16 = 4;

pub(crate) fn run(args: &BenchServeArgs) -> ExitCode {
    signals::note("ending with what there is");
    let printed = files::print(measure(args));
    signals::exit_code_or(printed)
}

fn measure(args: &BenchServeArgs) -> anyhow::Result<String> {
    let is_closed = args.load == LoadName::Closed;
    anyhow::ensure!(!is_closed || args.url.is_none(), "--load closed serves a model of its own: leave --url out");
    anyhow::ensure!(
        !is_closed || (args.files.figure.is_none() && args.files.report.is_none()),
        "--load closed has no latencies over time: leave --figure and --report out"
    );
    args.files.check()?;
    // One thread sends, so that the other cores are left to the server; the same for all servers.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    if let Some(url) = &args.url {
        let target = runtime.block_on(ServerUnderTest::at(url, args.models.map(usize::from)))?;
        return open(args, &runtime, target, format!("models of {url}"));
    }
    let device = args.compute.device;
    args.compute.open()?;
    let folder = args.files.make_folder()?;
    let workloads = match (&args.model[..], is_closed) {
        ([], true) => &[Workload::Linear],
        ([], false) => &[Workload::Mlp][..],
        (workloads, _) => workloads,
    };
    let count = if is_closed { 1 } else { usize::from(args.models.unwrap_or(MODELS)) };
    let connections = usize::from(args.connections);
    let bar = progress::steps(0, count as u64);
    let models = OwnModels::write(workloads, count, is_closed.then_some(connections), device, folder, &bar)?;
    bar.finish_and_clear();
    let bytes = if is_closed { models.bytes * 2 } else { models.bytes.div_ceil(2) };
    let device_bytes = args.device_bytes.unwrap_or(bytes.max(LEAST_BYTES));
    let host_bytes = args.host_bytes.unwrap_or(tier::memory_bytes() / 2);
    let server = OwnServer::start(models.folder.path(), device, device_bytes, host_bytes)?;
    let there = Bytes(device_bytes.min(models.bytes));
    let what = format!("{count} models, {there} of {} on {device}", Bytes(models.bytes));
    if is_closed {
        let load = Closed { connections, time: Duration::from_secs_f64(args.seconds) };
        return closed(args, &runtime, &server, models.asked, &load);
    }
    let asked = models.asked.into_iter().map(|[binary, _]| binary).collect();
    // The server ends before the folder of its models is removed.
    open(args, &runtime, ServerUnderTest { client: HttpClient::new(&server.url)?, models: asked }, what)
}

/// Measures an open load, which does not wait for answers.
fn open(args: &BenchServeArgs, runtime: &Runtime, target: ServerUnderTest, what: String) -> anyhow::Result<String> {
    let pattern = match args.load {
        LoadName::Cycles => Pattern::Cycles(args.cycle),
        LoadName::Zipf => Pattern::Poisson { exponent: args.exponent },
        LoadName::Poisson | LoadName::Closed => Pattern::Poisson { exponent: 0.0 },
    };
    let target = Arc::new(target);
    let arrivals: Vec<Arrival> = arrivals(pattern, target.models.len(), args.rate, args.seconds, args.seed);
    let bar = progress::time(Duration::from_secs_f64(args.seconds));
    let replayed = replay(runtime, &target, &arrivals, &bar);
    bar.finish_and_clear();
    if let Some(error) = &replayed.error {
        files::complain(&format!("a request failed: {error}"));
    }
    let summary = Summary::of(&replayed, Duration::from_secs_f64(args.deadline_ms / 1e3));
    draw(args, &target, &replayed, &what)?;
    if args.json {
        let mut line = json!({
            "load": args.load.name(), "models": target.models.len(), "rate": args.rate, "seed": args.seed, "interrupted": signals::was_received(),
        });
        if let (Value::Object(line), Value::Object(figures)) = (&mut line, serde_json::to_value(&summary)?) {
            line.extend(figures);
        }
        return Ok(format!("{line}\n"));
    }
    Ok(format!("{} at {} a second: {what}\n{}", args.load.name(), args.rate, summary.describe()))
}

/// Measures a closed load, which waits for answers.
fn closed(
    args: &BenchServeArgs,
    runtime: &Runtime,
    server: &OwnServer,
    asked: Vec<[Asked; 2]>,
    load: &Closed,
) -> anyhow::Result<String> {
    let [binary, json] = asked.into_iter().next().context("no model was made")?;
    let bar = progress::steps(0, closed::STEPS);
    let rates = closed::measure(runtime, server, [("json", json), ("binary", binary)], load, &bar)?;
    bar.finish_and_clear();
    if args.json {
        return rates.iter().map(|rates| Ok(serde_json::to_string(rates)? + "\n")).collect();
    }
    Ok(format!("{} connections\n\n{}", load.connections, Rates::describe(&rates)))
}

fn draw(args: &BenchServeArgs, target: &ServerUnderTest, replayed: &Replayed, what: &str) -> anyhow::Result<()> {
    let names: Vec<&str> = target.models.iter().map(|model| &*model.name).collect();
    let models = summary::by_model(&replayed.samples, &names);
    let switches = summary::switches(replayed);
    let facts = [("load", args.load.name()), ("requests a second", args.rate.to_string()), ("models", what.to_owned())];
    let title = format!("{} requests: {}", replayed.samples.len(), args.load.name());
    let report = ServingReport::new(&title, &facts, &models, &switches);
    args.files.write(&report.svg(), &report.html())
}

impl LoadName {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}
