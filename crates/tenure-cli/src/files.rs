//! Reads files one after the other with a progress bar, reports bad ones in one line each, and prints results.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use tenure::plan::{ReadOptions, Trace, TraceError};

use crate::progress;
use crate::values::TraceSource;

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

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
    read_named(path, source_of(path), source)
}

/// Reads the trace that `source` selects, from standard input if the path is `-`. A snapshot, which has no name of its own,
/// is called `name`.
///
/// # Errors
/// One line that names the file.
pub(crate) fn read_named(path: &Path, name: String, source: &TraceSource) -> Result<Trace, TraceError> {
    let options = ReadOptions { device: source.device, ..ReadOptions::default() };
    let trace = read_with_bar(path, &name, &options).map_err(|error| error.in_file(path))?;
    for note in trace.notes() {
        complain(&format!("{}: {note}", path.display()));
    }
    Ok(trace)
}

/// Returns the name of the snapshot at `path`.
fn source_of(path: &Path) -> String {
    if path == STANDARD_INPUT { "stdin".into() } else { Trace::source_of(path) }
}

/// Returns a name for each file that no other file has: its own without the format's extension, after as many folders as
/// tell it apart, such as `rank0/snapshot`. Files that differ in their extensions only, and a file that is given twice,
/// keep their whole names.
pub(crate) fn distinct_names(files: &[PathBuf]) -> Vec<String> {
    let names: Vec<Vec<String>> = files.iter().map(|file| suffixes(file)).collect();
    let mut counts = HashMap::new();
    for name in names.iter().flatten() {
        *counts.entry(name.as_str()).or_insert(0) += 1;
    }
    let shortest = names.iter().map(|own| own.iter().find(|name| counts[name.as_str()] == 1).or(own.last()));
    shortest.flatten().cloned().collect()
}

/// Returns the ends of a path without the format's extension, the shortest first, and then the whole path.
fn suffixes(file: &Path) -> Vec<String> {
    let mut name = source_of(file);
    let mut names = vec![name.clone()];
    for folder in file.parent().into_iter().flat_map(Path::components).rev() {
        if let Component::Normal(folder) = folder {
            name = format!("{}/{name}", folder.to_string_lossy());
            names.push(name.clone());
        }
    }
    let whole = file.display().to_string();
    if name != whole {
        names.push(whole);
    }
    names
}

/// Reads the trace called `name`, with a progress bar.
fn read_with_bar(path: &Path, name: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    if path == STANDARD_INPUT {
        return Trace::read_from(io::stdin().lock(), name, options);
    }
    let file = File::open(path)?;
    let bar = progress::bytes(file.metadata()?.len(), format!("reading {name}"));
    Trace::read_from(bar.wrap_read(file), name, options)
}

/// Returns the error of a library call, prefixed with the file that it concerns.
pub(crate) fn about(path: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", path.display())
}

/// The error for numbers that JSON cannot express. The input can be read, so the exit code is that of a failure.
#[derive(Debug, thiserror::Error)]
#[error("the model's answer contains a NaN or an infinity, so its weights may be damaged: nothing is printed")]
pub(crate) struct NotFinite;

/// The outcome of printing a text, or an error in its place.
enum PrintOutcome {
    /// The text was written to standard output.
    Printed,
    /// There was an error of the input in place of a text, which was written to standard error.
    BadInput,
    /// The reader of stdout has closed it.
    OutputClosed,
    /// Standard output cannot be written, or the numbers to print are not finite.
    Failed,
}

/// Writes a text to standard output, or an error to standard error.
fn show(made: anyhow::Result<String>) -> PrintOutcome {
    let text = match made {
        Ok(text) => text,
        Err(error) => {
            complain(&error.to_string());
            return if error.is::<NotFinite>() { PrintOutcome::Failed } else { PrintOutcome::BadInput };
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
    // A failure to write to stderr cannot be reported.
    let _ = writeln!(io::stderr(), "tenure: {}", on_one_line(message));
}

/// Returns a text without line breaks and other control characters.
pub(crate) fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        distinct_names(&files.iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_file_alone_is_named_without_its_folder() {
        assert_eq!(names(&["runs/a/snapshot.pickle.xz"]), ["snapshot"]);
        assert_eq!(names(&["a/first.pickle", "b/second.pickle"]), ["first", "second"]);
    }

    #[test]
    fn files_of_one_name_are_told_apart_by_the_nearest_folders() {
        assert_eq!(names(&["rank0/snapshot.pickle", "rank1/snapshot.pickle"]), ["rank0/snapshot", "rank1/snapshot"]);
        assert_eq!(
            names(&["/x/a/run/s.pickle", "/x/b/run/s.pickle", "/x/b/other.pickle"]),
            ["a/run/s", "b/run/s", "other"]
        );
        assert_eq!(names(&["s.pickle", "a/s.pickle"]), ["s.pickle", "a/s"]);
    }

    #[test]
    fn files_that_differ_in_their_extensions_keep_them() {
        assert_eq!(names(&["a/s.pickle", "a/s.ttrace"]), ["a/s.pickle", "a/s.ttrace"]);
    }
}
