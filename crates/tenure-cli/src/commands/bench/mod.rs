//! `tenure bench`: measures speed.

mod alloc;
mod plain;
mod serve;
mod switch;
mod workload;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use alloc::BenchAllocArgs;
use serve::BenchServeArgs;
use switch::BenchSwitchArgs;

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    Alloc(BenchAllocArgs),
    Serve(BenchServeArgs),
    Switch(BenchSwitchArgs),
}

pub(crate) fn run(command: &BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Alloc(args) => alloc::run(args),
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Switch(args) => switch::run(args),
    }
}
