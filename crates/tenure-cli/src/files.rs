//! Reads files one after the other with a progress bar, reports bad ones in one line each, and prints results.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tenure::plan::{ReadOptions, Trace, TraceError};

use crate::progress;
use crate::values::TraceSource;

/// The exit code for bad input, the same as clap's for bad usage.
pub(crate) const BAD_INPUT: u8 = 2;

/// Prints the result of `action` for each file. A file that fails gets a line on stderr and nothing on stdout; the next
/// file follows.
pub(crate) fn for_each(files: &[PathBuf], mut action: impl FnMut(&Path) -> anyhow::Result<String>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match show(action(file)) {
            PrintOutcome::Printed => {}
            PrintOutcome::BadInput => code = ExitCode::from(BAD_INPUT),
            PrintOutcome::OutputClosed => return code,
            PrintOutcome::Failed => return ExitCode::FAILURE,
        }
    }
    code
}

/// Prints the result of a command, or one line on stderr that gives the error.
pub(crate) fn print(made: anyhow::Result<String>) -> ExitCode {
    print_each([made])
}

/// Prints results one after the other, each as soon as it is made, up to the first error.
pub(crate) fn print_each(made: impl IntoIterator<Item = anyhow::Result<String>>) -> ExitCode {
    for made in made {
        match show(made) {
            PrintOutcome::Printed => {}
            PrintOutcome::BadInput => return ExitCode::from(BAD_INPUT),
            PrintOutcome::OutputClosed => return ExitCode::SUCCESS,
            PrintOutcome::Failed => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}

/// Reads the trace that `source` selects.
///
/// # Errors
/// One line that names the file.
pub(crate) fn read(path: &Path, source: &TraceSource) -> Result<Trace, TraceError> {
    let options = ReadOptions { device: source.device, ..ReadOptions::default() };
    let name = Trace::source_of(path);
    let trace = read_with_bar(path, &name, &options).map_err(|error| error.in_file(path))?;
    for note in trace.notes() {
        complain(&format!("{}: {note}", path.display()));
    }
    Ok(trace)
}

/// Reads the trace called `name`, with a progress bar.
fn read_with_bar(path: &Path, name: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    let file = File::open(path)?;
    let bar = progress::bytes(file.metadata()?.len(), format!("reading {name}"));
    Trace::read_from(bar.wrap_read(file), name, options)
}

/// Returns the error of a library call, prefixed with the file that it concerns.
pub(crate) fn about(path: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", path.display())
}

/// The outcome of printing a text, or an error in its place.
enum PrintOutcome {
    /// The text was written to standard output.
    Printed,
    /// There was an error in place of a text, which was written to standard error.
    BadInput,
    /// The reader of stdout has closed it.
    OutputClosed,
    /// Standard output cannot be written.
    Failed,
}

/// Writes a text to standard output, or an error to standard error.
fn show(made: anyhow::Result<String>) -> PrintOutcome {
    let text = match made {
        Ok(text) => text,
        Err(error) => {
            complain(&error.to_string());
            return PrintOutcome::BadInput;
        }
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => PrintOutcome::Printed,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => PrintOutcome::OutputClosed,
        Err(error) => {
            complain(&format!("standard output: {error}"));
            PrintOutcome::Failed
        }
    }
}

/// Prints one line on stderr, even if the message contains line breaks.
pub(crate) fn complain(message: &str) {
    let line: String = message.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    // A failure to write to stderr cannot be reported.
    let _ = writeln!(io::stderr(), "tenure: {line}");
}
