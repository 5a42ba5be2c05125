//! The program `tenure`: trains and serves models, shows how a program used its GPU memory, and replays that on other
//! allocators.
//!
//! Exit codes: 0, everything done; 1, standard output could not be written; 2, bad usage, a file that could not be read
//! or written, a device that does not exist or failed, or a training run that could not go on; 128 and the number of the signal
//! that ended it: 129 for SIGHUP, 130 for SIGINT (Ctrl-C), 143 for SIGTERM. A server that a first signal ends in order
//! exits with 0.
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![forbid(unsafe_code)]

mod args;
mod commands;
#[cfg(test)]
mod documents;
mod figures;
mod files;
mod logging;
mod output;
mod planners;
mod platform;
mod progress;
mod resident;
mod signals;
mod values;

use std::process::ExitCode;

use args::{Args, Command, TraceCommand};
use clap::Parser;
use logging::LogFormat;

fn main() -> ExitCode {
    let args = Args::parse();
    let requests = if let Command::Serve(args) = &args.command { args.log } else { LogFormat::Off };
    logging::begin(requests);
    // `background` passes signals on to its command, and a worker ends with its server.
    if !matches!(args.command, Command::Background(_) | Command::Worker)
        && let Err(error) = signals::watch()
    {
        return files::print(Err(error.into()));
    }
    match args.command {
        Command::Train(args) => commands::train::run(&args),
        Command::Trace(TraceCommand::Info(args)) => commands::info::run(&args),
        Command::Trace(TraceCommand::Convert(args)) => commands::convert::run(&args),
        Command::Trace(TraceCommand::Report(args)) => commands::report::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Agent(command) => commands::agent::run(&command),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Memory(command) => commands::memory::run(&command),
        Command::Models(command) => commands::models::run(&command),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Background(args) => commands::background::run(&args),
        Command::Worker => commands::serve::work(),
        Command::Embed(args) => commands::embed::run(args),
        Command::Bench(command) => commands::bench::run(&command),
    }
}
