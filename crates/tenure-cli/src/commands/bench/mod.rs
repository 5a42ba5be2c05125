//! Measures how fast something is.

mod alloc;
mod switch;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use alloc::BenchAllocArgs;
use switch::BenchSwitchArgs;

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    Alloc(BenchAllocArgs),
    Switch(BenchSwitchArgs),
}

impl BenchCommand {
    /// Whether Ctrl-C is noted, and not the end of the program.
    pub(crate) fn has_own_end(&self) -> bool {
        matches!(self, Self::Switch(_))
    }
}

pub(crate) fn run(command: &BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Alloc(args) => alloc::run(args),
        BenchCommand::Switch(args) => switch::run(args),
    }
}
