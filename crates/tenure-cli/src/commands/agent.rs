//! The commands `tenure agent serve` and `tenure agent ask`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tenure::plan::planner::Scheduled;
use tenure::plan::{Planner, Problem};
use tenure::units::{Amount, Count, Micros};
use tenure_agent::serve::{
    Address, AgentClient, AgentOptions, AgentRequest, AgentServer, Answer, ServeError, ServerConfig,
};
use tenure_agent::{Learner, Marl};

use crate::values::PlannerName;
use crate::{files, planners, progress, signals};

/// The time between updates of the status line on a terminal.
const UPDATE: Duration = Duration::from_millis(100);

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    Serve(AgentServeArgs),
    Ask(AskArgs),
}

/// Plan for other processes in which tier their tensors live, until interrupted
#[derive(clap::Args)]
#[command(override_usage = "\
tenure agent serve [OPTIONS] --results <DIR>
       <--socket <PATH>|--tcp <ADDRESS:PORT>>")]
#[command(after_help = "\
Clients send requests over a socket, and get a mapping in a file that any number of processes may read. \
docs/reference/agent-protocol.md describes the protocol, and the resources that clients may use up; with --tcp, \
clients of every user may. Files of earlier answers are kept.

Planners are those of `tenure plan` for the score; the default is scheduled. With --learn the default is marl, which \
learns from the access times that clients report.

Examples:
  tenure agent serve --socket /run/user/1000/agent.sock \\
    --results /dev/shm/mappings
  tenure agent serve --tcp 127.0.0.1:7007 --results /dev/shm/mappings")]
pub(crate) struct AgentServeArgs {
    #[command(flatten)]
    address: AddressArgs,
    /// The folder for mappings, which must exist; best in memory, as under /dev/shm
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// Learn from measured times that clients report, and keep the results in this file
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// The largest number of connections at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    clients: u16,
}

/// Ask an agent in which tier each tensor of a problem should live
#[derive(clap::Args)]
#[command(override_usage = "\
tenure agent ask [OPTIONS] <--socket <PATH>|--tcp <ADDRESS:PORT>>
       <FILE.json>")]
#[command(after_help = "\
The answer's mapping is read, matched with the problem by key, and simulated here; the simulator's figures are \
printed.

--json prints mapping (its file), planner, score, makespan_us, evaluations, seconds, and the keys that did not match: \
unplaced (of the problem; they live in the first tier) and unknown (of the mapping).

Examples:
  tenure agent ask problem.json --socket /run/user/1000/agent.sock
  tenure agent ask bert.json --tcp 127.0.0.1:7007 --fast-bytes 20% \\
    --planner evolutionary --json")]
pub(crate) struct AskArgs {
    /// The problem, or a kernel trace (docs/reference/problem-format.md)
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
    #[command(flatten)]
    address: AddressArgs,
    /// The planner [default: the agent's preferred one]
    #[arg(long, value_name = "NAME")]
    planner: Option<String>,
    /// The time to search, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    seconds: f64,
    /// The seed of the random numbers
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// The largest number of plans to try
    #[arg(long, value_name = "N")]
    evaluations: Option<u64>,
    /// Bytes of the first tier, or a share of the problem's own peak [default: the problem's capacity]
    #[arg(long, value_name = "N|P%")]
    fast_bytes: Option<Amount>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options that give the agent's address.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct AddressArgs {
    /// Its socket, open to this user's processes
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Its address on this host, open to every user's processes
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<SocketAddr>,
}

impl AddressArgs {
    fn parsed(&self) -> Address {
        match (&self.socket, self.tcp) {
            (_, Some(address)) => Address::Tcp(address),
            (path, None) => Address::Unix(path.clone().unwrap_or_default()),
        }
    }
}

pub(crate) fn run(command: &AgentCommand) -> ExitCode {
    match command {
        AgentCommand::Serve(args) => serve(args),
        AgentCommand::Ask(args) => files::print(ask(args)),
    }
}

fn serve(args: &AgentServeArgs) -> ExitCode {
    signals::note("ends when what is being planned is answered");
    let mut planners = match planners::named(PlannerName::All, None) {
        Ok(planners) => planners,
        Err(error) => return files::print(Err(error)),
    };
    // The first planner is used if a request names none.
    planners.sort_by_key(|planner| planner.name() != Scheduled.name());
    let config = ServerConfig { connections: args.clients.into(), ..ServerConfig::new(&args.results) };
    let server = match bind(args, config, planners) {
        Ok(server) => server,
        Err(error) => return files::print(Err(error)),
    };
    let said =
        files::print(Ok(format!("serving at {}, results in {}\n", server.address(), server.results().display())));
    if said != ExitCode::SUCCESS {
        return said;
    }
    let line = progress::line();
    server.run(|serving| {
        line.set_message(format!("{} connections, {} answered", serving.connections, Count(serving.answered)));
        line.tick();
        signals::going_on()
    });
    line.finish_and_clear();
    ExitCode::SUCCESS
}

/// Starts to listen, with the learned times from the file if there is one.
fn bind(
    args: &AgentServeArgs,
    config: ServerConfig,
    planners: Vec<Box<dyn Planner + Send + Sync>>,
) -> anyhow::Result<AgentServer> {
    let learner = args.learn.as_ref().map(|path| anyhow::Ok(Learner::open(Marl::trained()?, path)?)).transpose()?;
    let server = AgentServer::bind(&args.address.parsed(), config, planners)?;
    Ok(match learner {
        Some(learner) => server.with_learner(learner),
        None => server,
    })
}

/// The JSON output of `ask`.
#[derive(Serialize)]
struct Printed<'a> {
    mapping: &'a str,
    planner: &'a str,
    score: f64,
    makespan_us: f64,
    evaluations: u64,
    seconds: f64,
    unplaced: &'a [String],
    unknown: &'a [String],
}

fn ask(args: &AskArgs) -> anyhow::Result<String> {
    let problem = Problem::read(&args.file)?;
    let named = args.fast_bytes.is_some() || !problem.tiers().is_empty();
    anyhow::ensure!(named, "{}: it names no tiers: say with --fast-bytes how large the first is", args.file.display());
    let options = AgentOptions {
        planner: args.planner.clone(),
        seconds: args.seconds,
        seed: args.seed,
        evaluations: args.evaluations,
        fast_bytes: args.fast_bytes.map(|fast_bytes| fast_bytes.of(problem.peak_bytes())),
    };
    let request = AgentRequest::new(problem, options)?;
    let answer = wait(&request, &args.address.parsed())?;
    let Answer { placed, score, makespan_us, unplaced, unknown, .. } = &answer;
    // The path came as text, so nothing is lost.
    let mapping = &*placed.mapping.to_string_lossy();
    if args.json {
        let evaluations = placed.evaluations;
        let seconds = placed.seconds;
        let planner = &*placed.planner;
        let score = *score;
        let makespan_us = *makespan_us;
        let printed = Printed { mapping, planner, score, makespan_us, evaluations, seconds, unplaced, unknown };
        return Ok(serde_json::to_string(&printed)? + "\n");
    }
    let mut facts = vec![
        ("mapping", mapping.to_owned()),
        ("planner", placed.planner.clone()),
        ("score", format!("{score:.4}")),
        ("takes", Micros(*makespan_us).to_string()),
        ("search", format!("{} plans in {}", Count(placed.evaluations), Micros(placed.seconds * 1e6))),
    ];
    for (name, keys) in [("without place", unplaced), ("of no tensor", unknown)] {
        if let Some(first) = keys.first() {
            facts.push((name, format!("{} keys, such as {first:?}", Count(keys.len() as u64))));
        }
    }
    let facts: String = facts.iter().map(|(name, value)| format!("  {name:<14} {value}\n")).collect();
    Ok(format!("{}\n{facts}", request.problem().name()))
}

/// Sends the request, and shows on a terminal that the answer is awaited.
fn wait(request: &AgentRequest, address: &Address) -> Result<Answer, ServeError> {
    let line = progress::line();
    line.set_message(format!("asking the agent at {address}"));
    line.enable_steady_tick(UPDATE);
    let answer = AgentClient::connect(address).and_then(|mut client| client.ask(request));
    line.finish_and_clear();
    answer
}
