//! The command line.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Parser, Subcommand, ValueEnum};
use tenure::replay::AllocatorKind;
use tenure::tensor::Device;
use tenure::units::parse_bytes;

use crate::commands::agent::AgentCommand;
use crate::commands::background::BackgroundArgs;
use crate::commands::bench::BenchCommand;
use crate::commands::memory::MemoryCommand;
use crate::commands::models::ModelsCommand;
use crate::commands::plan::PlanArgs;
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

/// Summarize a trace: counts, the peak, sizes
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tenure trace info snapshot.pickle.xz")]
pub(crate) struct InfoArgs {
    /// PyTorch memory snapshots (.pickle, also as .xz or .gz) or compact traces (.ttrace), detected by content
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) source: Source,
}

/// Write a trace in another format: PyTorch's, or Tenure's compact one
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure trace convert snapshot.pickle -o small.ttrace
  tenure trace convert small.ttrace -o for_memory_viz.pickle")]
pub(crate) struct ConvertArgs {
    /// A PyTorch memory snapshot or a compact trace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The file to write; its extension chooses the format: .ttrace, .pickle, .pickle.xz or .pickle.gz
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) source: Source,
}

/// Draw a trace, and every allocator's replay of it, as one HTML file
#[derive(clap::Args)]
#[command(after_help = "\
The page shows every block over time with its stack, and the segments at any moment. It works in any browser of 2023 \
or later, without a network. Stacks are those of PyTorch snapshots; compact traces have none. If the blocks do not \
fit into the page, those with most bytes × events are shown one by one, and the others are summed.

Examples:
  tenure trace report snapshot.pickle
  tenure trace report snapshot.pickle -o report.html --svg comparison.svg
  tenure trace report snapshot.pickle --from 1000000 --to 1200000")]
pub(crate) struct ReportArgs {
    /// A PyTorch memory snapshot or a compact trace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The file to write [default: FILE's name with .html, in the current directory]
    #[arg(short, long, value_name = "OUT.html")]
    pub(crate) output: Option<PathBuf>,
    /// Also write the chart that compares the allocators, as a separate picture
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// Show blocks from this event on. The first event of the trace is 0; if blocks or segments existed before the
    /// history, the events that recreate them come first and count
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "EVENT")]
    pub(crate) from: usize,
    /// Show blocks before this event [default: to the end]
    #[arg(long, allow_negative_numbers = true, value_name = "EVENT")]
    pub(crate) to: Option<usize>,
    /// The largest size of the page; charts and tables take up to half a megabyte of it
    #[arg(long, default_value = "4MB", value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) page_size: u64,
    #[command(flatten)]
    pub(crate) source: Source,
}

/// Replay a trace's allocations on another allocator, and report the memory and time
#[derive(clap::Args)]
#[command(after_help = "\
After each pass the blocks still live are freed in address order, and all streams complete.

On a real device (--driver cuda) memory and mappings are real: every block is written at both ends, the allocator's \
calls are timed and compared with the model, and the device's own count of used memory is compared with the \
allocator's. Use a device that no other process uses: its allocations and frees would be counted too. The device \
chooses the addresses of blocks, so they are not compared with the recorded ones.

Examples:
  tenure replay snapshot.pickle
  tenure replay *.pickle.xz --allocator paged --repeat 3 --lag-us 10000 --json
  tenure replay snapshot.pickle --driver cuda --allocator paged")]
pub(crate) struct ReplayArgs {
    /// PyTorch memory snapshots (.pickle, also as .xz or .gz) or compact traces (.ttrace), detected by content
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The allocator to replay on
    #[arg(long, value_enum, default_value_t = Allocators::All, value_name = "NAME")]
    pub(crate) allocator: Allocators,
    /// The number of times to play each trace, one after the other on the same allocator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) repeat: u32,
    /// The time after a block's free at which the simulated device completes its work on the block, in µs of the trace
    #[arg(long, default_value_t = 0, value_name = "L")]
    pub(crate) lag_us: u64,
    /// The driver to use
    #[arg(long, value_enum, default_value_t = DriverKind::Sim, value_name = "NAME")]
    pub(crate) driver: DriverKind,
    /// The number of the device to replay on, with --driver cuda
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) on_device: u8,
    /// Print one JSON object per line for each file and allocator
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) source: Source,
}

/// List the devices, or say why there are none
#[derive(clap::Args)]
#[command(after_help = "\
Memory and processes are listed for devices that could be started; starting one takes a moment and some of its \
memory.

Examples:
  tenure devices
  tenure devices --json")]
pub(crate) struct DevicesArgs {
    /// The driver whose devices are listed
    #[arg(long, value_enum, default_value_t = DriverKind::Cuda, value_name = "NAME")]
    pub(crate) driver: DriverKind,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a vector for each text: one JSON list of numbers per line
#[derive(clap::Args)]
#[command(after_help = "\
DIR is a sentence encoder in Hugging Face's layout: config.json, tokenizer.json, model.safetensors. The model is a \
BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT or ModernBERT. modules.json says how the vectors of tokens \
become the vector of a text. Without it the mean is taken and scaled to length 1, so that the product of two vectors \
measures how similar the texts are.

Examples:
  tenure embed --weights all-MiniLM-L6-v2 \"a cat on a mat\" \"a dog on a rug\"
  tenure embed --weights all-MiniLM-L6-v2 <sentences.txt >vectors.jsonl")]
pub(crate) struct EmbedArgs {
    /// The encoder's folder
    #[arg(long, value_name = "DIR")]
    pub(crate) weights: PathBuf,
    /// Texts [default: the lines of standard input]
    #[arg(value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// The device to compute on: cpu, cuda, or cuda:N
    #[arg(long, default_value_t = Device::CPU, value_name = "DEVICE")]
    pub(crate) device: Device,
    /// The number of texts to compute at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    pub(crate) batch_size: u16,
}

/// The options that choose a trace of a file.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// The device to read, if the snapshot has several [default: the one with the most bytes]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
}

/// The driver to use.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DriverKind {
    /// A simulated device
    Sim,
    /// NVIDIA's driver, on real devices
    Cuda,
}

/// The allocators to replay on.
#[derive(Clone, Copy)]
pub(crate) enum Allocators {
    One(AllocatorKind),
    All,
}

impl Allocators {
    pub(crate) fn kinds(self) -> Vec<AllocatorKind> {
        match self {
            Self::One(kind) => vec![kind],
            Self::All => AllocatorKind::ALL.to_vec(),
        }
    }
}

impl ValueEnum for Allocators {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Allocators; 1 + AllocatorKind::ALL.len()] = {
            let mut all = [Allocators::All; 1 + AllocatorKind::ALL.len()];
            let mut index = 0;
            while index < AllocatorKind::ALL.len() {
                all[index] = Allocators::One(AllocatorKind::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::One(kind) => kind.name(),
            Self::All => "all",
        }))
    }
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
