//! `tenure plan`: plans in which tier each tensor lives, or packs buffers.

mod args;
mod packing;
mod placement;
mod spool;
mod train;

use std::io::{self, BufRead};
use std::path::Path;
use std::process::ExitCode;

use serde::de::IgnoredAny;
use tenure::plan::Problem;
use tenure_core::user_files::{expect_no_utf_16, open_unpacked, without_mark};

pub(crate) use args::PlanArgs;

use crate::files;
use crate::values::PlannerName;
use args::PlanCommand;

pub(crate) fn run(mut args: PlanArgs) -> ExitCode {
    if let Some(PlanCommand::Train(args)) = &args.command {
        return train::run(args);
    }
    // The file is read once to detect its content, and once more for the content.
    match spool::rereadable(args.file()) {
        Ok(path) => args.file = Some(path),
        Err(error) => return files::print(Err(files::about(args.file(), error))),
    }
    plan(&args)
}

fn plan(args: &PlanArgs) -> ExitCode {
    let content = match content(args.file()) {
        Ok(content) => content,
        Err(error) => return files::print(Err(files::about(args.file(), error))),
    };
    let is_problem = content != Content::Buffers;
    let of_other = match (is_problem, args) {
        _ if content != Content::Trace && args.source.device.is_some() => {
            Some("--device is for memory traces, and this is not one")
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

/// The error for JSON that is not an object.
const OTHER_JSON: &str = "it is JSON but no problem: expected an object that begins with {, with kernels and tensors \
                          (docs/reference/problem-format.md), or CSV of buffers";

/// Returns the content of a file. Problems are JSON, and traces are not text. Skips a byte order mark, and decompresses
/// what is compressed.
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
            b'[' => return Err(io::Error::other(OTHER_JSON)),
            // A quoted text may begin a line of buffers.
            byte if byte != b'"' && serde_json::from_slice::<IgnoredAny>(&buffer[at..]).is_ok() => {
                return Err(io::Error::other(OTHER_JSON));
            }
            _ => Content::Buffers,
        });
    }
}

fn is_of_no_text(byte: u8) -> bool {
    byte.is_ascii_control() && !byte.is_ascii_whitespace()
}
