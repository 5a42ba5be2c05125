//! `tenure plan`: plans in which tier each tensor lives, or packs buffers.

mod packing;
mod placement;
mod train;

use std::io::{self, BufRead};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tenure::plan::Problem;
use tenure::units::Amount;
use tenure_core::user_files::{expect_no_utf_16, open_unpacked, without_mark};

use crate::args::Source;
use crate::{files, output};
use placement::ObjectiveName;
pub(crate) use placement::{PlannerName, milp};

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
512; `alignment` may be left out. A buffer with a number in a column `offset` stays there. Buffers that are alive at once \
share no byte. The search is \
complete: given time, it fits the buffers into the capacity, or proves that they do not fit.

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
  tenure plan buffers.csv --capacity 1048576 --seconds 10 -o offsets.csv")]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    /// A problem, a memory trace, or buffers
    #[arg(value_name = "FILE", required = true)]
    file: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
    /// For a problem: bytes of the first tier, or a share of the problem's own peak [default: the problem's capacity]
    #[arg(long, value_name = "N|P%", conflicts_with = "capacity")]
    fast_bytes: Option<Amount>,
    /// For a problem: the planner [default: scheduled]
    #[arg(long, value_name = "NAME", conflicts_with = "capacity")]
    planner: Option<PlannerName>,
    /// For a problem: the policy of the planner marl, a file of `tenure plan train` [default: the built-in one]
    #[arg(long, value_name = "FILE", conflicts_with = "capacity")]
    policy: Option<PathBuf>,
    /// For a problem: the objective [default: the time if it names tiers, otherwise the score]
    #[arg(long, value_name = "WHAT", conflicts_with = "capacity")]
    objective: Option<ObjectiveName>,
    /// For a problem: the seed of the random numbers [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "capacity")]
    seed: Option<u64>,
    /// For buffers: the range's size in bytes [default: as small as can be found]
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// The file to write: a problem's mapping, or buffers with their offsets if they fit
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// The time to search, in seconds
    #[arg(long, default_value_t = 60.0, value_parser = parse_seconds, value_name = "S")]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum PlanCommand {
    Train(train::PlanTrainArgs),
}

impl PlanArgs {
    /// Returns the file, which is required without a subcommand.
    fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }
}

pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    if let Some(PlanCommand::Train(args)) = &args.command {
        return train::run(args);
    }
    output::note_interrupts("answers with the best so far");
    let content = match content(args.file()) {
        Ok(content) => content,
        Err(error) => return files::print(Err(files::about(args.file(), error))),
    };
    let is_problem = content != Content::Buffers;
    let of_other = match (is_problem, args) {
        _ if content != Content::Trace && args.source.device.is_some() => {
            Some("--device is of memory traces, and this is none")
        }
        (true, PlanArgs { capacity: Some(_), .. }) => Some("--capacity is of buffers: a problem has --fast-bytes"),
        (true, PlanArgs { output: Some(_), planner: Some(PlannerName::All), .. }) => {
            Some("a mapping is one planner's: say with --planner whose")
        }
        (false, PlanArgs { fast_bytes: Some(_), .. }) => Some("--fast-bytes is of problems: buffers have --capacity"),
        (false, PlanArgs { planner: Some(_), .. }) => Some("--planner is of problems, and these are buffers"),
        (false, PlanArgs { policy: Some(_), .. }) => Some("--policy is of problems, and these are buffers"),
        (false, PlanArgs { objective: Some(_), .. }) => Some("--objective is of problems, and these are buffers"),
        (false, PlanArgs { seed: Some(_), .. }) => Some("--seed is of problems, and these are buffers"),
        _ => None,
    };
    if let Some(complaint) = of_other {
        return files::print(Err(files::about(args.file(), complaint)));
    }
    match content {
        Content::Problem => placement::run(args, |path| Ok(Problem::read(path)?)),
        Content::Trace => placement::run(args, |path| Ok(Problem::of_trace(&files::read(path, &args.source)?)?)),
        Content::Buffers => packing::run(args),
    }
}

/// The content of a file.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Problem,
    Trace,
    Buffers,
}

/// Returns the content of a file. Problems are JSON, and traces are not text. Skips a byte order mark, and decompresses
/// gzip.
fn content(path: &Path) -> io::Result<Content> {
    let mut file = open_unpacked(path)?;
    let beginning = file.fill_buf()?;
    expect_no_utf_16(beginning)?;
    let mark_bytes = beginning.len() - without_mark(beginning).len();
    file.consume(mark_bytes);
    loop {
        let buffer = file.fill_buf()?;
        let Some(at) = buffer.iter().position(|byte| !byte.is_ascii_whitespace()) else {
            let read = buffer.len();
            if read == 0 {
                return Ok(Content::Buffers);
            }
            file.consume(read);
            continue;
        };
        let is_binary = !buffer[at].is_ascii() || buffer[at..].iter().take(64).any(|&byte| is_of_no_text(byte));
        return Ok(match buffer[at] {
            _ if is_binary => Content::Trace,
            b'{' => Content::Problem,
            _ => Content::Buffers,
        });
    }
}

fn is_of_no_text(byte: u8) -> bool {
    byte.is_ascii_control() && !byte.is_ascii_whitespace()
}

/// Returns whether a search goes on.
fn going_on() -> ControlFlow<()> {
    if output::is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    // The limit is some thirty years.
    if (0.0..1e9).contains(&seconds) { Ok(seconds) } else { Err("expected from 0 to 1e9 seconds".into()) }
}
