//! Files: read with a progress bar, one after the other, a bad one with one line of complaint. And what is printed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tenure::plan::{ReadOptions, Trace, TraceError};

use crate::args::Source;
use crate::progress;

/// The exit code for bad input, which is clap's for bad usage.
pub(crate) const BAD_INPUT: u8 = 2;

/// Prints what `action` makes of each file. A file that it cannot use gets a line on stderr and leaves nothing on
/// stdout, and the next has its turn.
pub(crate) fn for_each(files: &[PathBuf], mut action: impl FnMut(&Path) -> anyhow::Result<String>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match show(action(file)) {
            Shown::Text => {}
            Shown::Complaint => code = ExitCode::from(BAD_INPUT),
            Shown::NobodyReads => return code,
            Shown::Failed => return ExitCode::FAILURE,
        }
    }
    code
}

/// Prints what a command made that is not about files, or one line on stderr that says why it could not.
pub(crate) fn print(made: anyhow::Result<String>) -> ExitCode {
    print_each([made])
}

/// Prints one after the other, each when it is made, up to the first that could not be.
pub(crate) fn print_each(made: impl IntoIterator<Item = anyhow::Result<String>>) -> ExitCode {
    for made in made {
        match show(made) {
            Shown::Text => {}
            Shown::Complaint => return ExitCode::from(BAD_INPUT),
            Shown::NobodyReads => return ExitCode::SUCCESS,
            Shown::Failed => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}

/// Reads the trace that `source` asks for.
///
/// # Errors
/// One line that names the file.
pub(crate) fn read(path: &Path, source: &Source) -> Result<Trace, TraceError> {
    let options = ReadOptions { device: source.device, ..ReadOptions::default() };
    let name = Trace::source_of(path);
    let read = || {
        let file = File::open(path)?;
        let bar = progress::bytes(file.metadata()?.len(), format!("reading {name}"));
        Trace::read_from(bar.wrap_read(file), &name, &options)
    };
    let trace = read().map_err(|error| error.in_file(path))?;
    for note in trace.notes() {
        complain(&format!("{}: {note}", path.display()));
    }
    Ok(trace)
}

/// An error of a library call, with the file that it is about in front.
pub(crate) fn about(path: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", path.display())
}

/// What became of a text, or of an error in its place.
enum Shown {
    Text,
    Complaint,
    /// Whoever read stdout has seen enough.
    NobodyReads,
    /// Standard output cannot be written.
    Failed,
}

fn show(made: anyhow::Result<String>) -> Shown {
    let text = match made {
        Ok(text) => text,
        Err(error) => {
            complain(&error.to_string());
            return Shown::Complaint;
        }
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Shown::Text,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Shown::NobodyReads,
        Err(error) => {
            complain(&format!("standard output: {error}"));
            Shown::Failed
        }
    }
}

/// One line on stderr, whatever the names in it hold.
pub(crate) fn complain(message: &str) {
    let line: String = message.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    // Nobody is left to tell of a failure here.
    let _ = writeln!(io::stderr(), "tenure: {line}");
}
