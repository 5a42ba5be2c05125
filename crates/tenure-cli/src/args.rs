//! The command line.

use clap::{Parser, Subcommand};

use crate::commands::agent::AgentCommand;
use crate::commands::background::BackgroundArgs;
use crate::commands::bench::BenchCommand;
use crate::commands::convert::ConvertArgs;
use crate::commands::devices::DevicesArgs;
use crate::commands::embed::EmbedArgs;
use crate::commands::info::InfoArgs;
use crate::commands::memory::MemoryCommand;
use crate::commands::models::ModelsCommand;
use crate::commands::plan::PlanArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::train::TrainArgs;

/// Trains and serves models, shows how a program used its memory, and replays that on other allocators.
#[derive(Parser)]
#[command(name = "tenure", version, max_term_width = 80, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tenure train --model llama-mini --data text:README.md
  tenure replay snapshot.pickle
  tenure trace report snapshot.pickle -o report.html
  tenure plan buffers.csv --capacity 1048576
  tenure devices
  tenure models init models && tenure serve models

Record a snapshot in PyTorch, from before the first CUDA allocation:
  torch.cuda.memory._record_memory_history(max_entries=2000000, context=None)
  ...
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

#[derive(Subcommand)]
pub(crate) enum Command {
    Train(TrainArgs),
    /// Inspect memory traces, convert them, and draw them
    #[command(subcommand)]
    Trace(TraceCommand),
    Replay(ReplayArgs),
    Plan(PlanArgs),
    /// Plan for other processes in which tier their tensors live
    #[command(subcommand)]
    Agent(AgentCommand),
    Devices(DevicesArgs),
    Embed(EmbedArgs),
    /// Measure speed
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Share a device's memory between processes
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Make models to serve
    #[command(subcommand)]
    Models(ModelsCommand),
    Serve(ServeArgs),
    Background(BackgroundArgs),
    /// Compute for `tenure serve`, which starts this process
    #[command(hide = true)]
    Worker,
}

#[derive(Subcommand)]
pub(crate) enum TraceCommand {
    Info(InfoArgs),
    Convert(ConvertArgs),
    Report(ReportArgs),
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    const COLUMNS: usize = 80;

    /// Calls `check` with a command and each of its subcommands.
    fn for_each(command: &mut Command, check: &mut impl FnMut(&mut Command)) {
        check(command);
        command.get_subcommands_mut().for_each(|inner| for_each(inner, check));
    }

    fn too_long(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.chars().count() > COLUMNS).collect()
    }

    fn program() -> Command {
        let mut program = Args::command().term_width(COLUMNS);
        program.build();
        program
    }

    #[test]
    fn every_help_fits_into_the_columns_of_a_terminal() {
        for_each(&mut program(), &mut |command| {
            let help = command.render_long_help().to_string();
            assert_eq!(too_long(&help), [""; 0], "tenure {}", command.get_name());
        });
    }

    #[test]
    fn examples_are_broken_where_a_shell_goes_on() {
        for_each(&mut program(), &mut |command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.rsplit_once("Example").unwrap_or_default().1;
            let indented = too_long(examples).into_iter().filter(|line| line.starts_with("  "));
            assert_eq!(indented.collect::<Vec<_>>(), [""; 0], "tenure {}", command.get_name());
        });
    }
}
