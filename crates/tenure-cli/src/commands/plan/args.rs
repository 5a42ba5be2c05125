//! The command line of `tenure plan`.

use std::path::{Path, PathBuf};

use tenure::units::{Amount, parse_bytes};

use super::train::PlanTrainArgs;
use crate::values::{ObjectiveName, PlannerName, TraceSource, parse_seconds};

/// Plan in which tier each tensor lives, or place buffers in one range of memory
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
A problem, FILE.json, describes one iteration of a program: its kernels, its tensors, and tiers of memory \
(docs/reference/problem-format.md). A planner decides which tensors live in the first tier, which move away and back, \
and which are recomputed. A problem that names no tiers gets an H200's memory and host memory. For the score, the \
share of accessed bytes that the first tier serves, tensors stay where they are; -o writes the placement as a mapping \
(docs/reference/mapping-format.md), which `tenure train --mapping` follows. For the time they may move.

--json prints a line for each planner, when all are done: problem, planner, capacity_bytes and peak_fast_bytes (of \
the first tier), score, bound (proven) and gap ((bound - score) / bound), makespan_us and bound_makespan_us \
(simulated), seconds, evaluations (plans tried).

A memory trace, such as a PyTorch snapshot, is a problem, too: each allocation begins a kernel, and a block that is \
never freed always exists.

Buffers, FILE.csv, have a line each, after a line that names the columns (MiniMalloc's format):

  id,lower,upper,size,alignment
  a,0,3,4096,512

From the moment `lower` to the moment before `upper`, buffer a needs 4096 bytes at a multiple of \
512; `alignment` may be left out. A field with a comma stands in quotes. A buffer with a number in a column `offset` \
stays there. Buffers that are alive at once share no byte. The search is complete: given time, it fits the buffers \
into the capacity, or proves that they do not fit.

--json prints feasible (true, false, or null if it is not known), height (of the lowest packing \
found), seconds, buffers, capacity, lower_bound (proven) and nodes (places tried).

Ctrl-C ends a search with the best result so far.

Examples:
  tenure plan bert.json --fast-bytes 20%
  tenure plan bert.json --fast-bytes 8000000000 --planner all \\
    --seconds 10 --json
  tenure plan training.json --objective score -o mapping.json
  tenure plan train -o policy.safetensors --report curve.html
  tenure plan snapshot.pickle.xz --fast-bytes 50% --planner density
  tenure plan buffers.csv
  tenure plan buffers.csv --capacity 1MiB --seconds 10 -o offsets.csv")]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub(super) command: Option<PlanCommand>,
    /// A problem, a memory trace, or buffers; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) source: TraceSource,
    /// For a problem: bytes of the first tier, or a share of the problem's own peak [default: the problem's capacity]
    #[arg(long, value_name = "N|P%", conflicts_with = "capacity")]
    pub(super) fast_bytes: Option<Amount>,
    /// For a problem: the planner [default: scheduled]
    #[arg(long, value_name = "NAME", conflicts_with = "capacity")]
    pub(super) planner: Option<PlannerName>,
    /// For a problem: the policy of the planner marl, a file of `tenure plan train` [default: the built-in one]
    #[arg(long, value_name = "FILE", conflicts_with = "capacity")]
    pub(super) policy: Option<PathBuf>,
    /// For a problem: the objective [default: the time if it names tiers, otherwise the score]
    #[arg(long, value_name = "WHAT", conflicts_with = "capacity")]
    pub(super) objective: Option<ObjectiveName>,
    /// For a problem: the seed of the random numbers [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "capacity")]
    pub(super) seed: Option<u64>,
    /// For buffers: the range's size, in bytes or with a unit, as in 1MiB [default: as small as can be found]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub(super) capacity: Option<u64>,
    /// The file to write: a problem's mapping, or buffers with their offsets if they fit
    #[arg(short, long, value_name = "OUT")]
    pub(super) output: Option<PathBuf>,
    /// The time to search, in seconds
    #[arg(long, default_value_t = 60.0, value_parser = parse_seconds, value_name = "S")]
    pub(super) seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(clap::Subcommand)]
pub(super) enum PlanCommand {
    Train(PlanTrainArgs),
}

impl PlanArgs {
    /// Returns the file, which is required without a subcommand.
    pub(super) fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }
}
