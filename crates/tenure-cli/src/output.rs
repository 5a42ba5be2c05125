//! Writes files atomically, even when the program is interrupted.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::nn::checkpoint;

use crate::files;

/// The exit code that shells report for a program ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether a program that [notes interrupts](note_interrupts) was asked to end.
static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and a request to terminate remove temporary files before the program ends.
pub(crate) fn clean_up_when_interrupted() {
    handle_interrupts(clean_up_and_exit);
}

/// Makes the first Ctrl-C or request to terminate only set [a flag](is_interrupted) and print `then`, which says what
/// follows. The next ends the program and removes temporary files.
pub(crate) fn note_interrupts(then: &'static str) {
    handle_interrupts(move || {
        if WAS_INTERRUPTED.swap(true, Ordering::Relaxed) {
            clean_up_and_exit();
        }
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "\ntenure: {then}; Ctrl-C again ends at once");
        }
    });
}

/// Returns whether the program was asked to end.
pub(crate) fn is_interrupted() -> bool {
    WAS_INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns whether a search goes on, which the user may interrupt.
pub(crate) fn going_on() -> ControlFlow<()> {
    if is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn handle_interrupts(handler: impl FnMut() + Send + 'static) {
    // Fails only if a handler is already set; this is the program's only one.
    ctrlc::set_handler(handler).expect("the first signal handler");
}

fn clean_up_and_exit() {
    checkpoint::abandon_writes();
    process::exit(INTERRUPTED.into());
}

/// Writes `content` to `path`. The file appears when it is complete.
pub(crate) fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    if is_device(path) {
        let written = File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            content(&mut out)?;
            out.flush()
        });
        return written.map_err(|error| files::about(path, error));
    }
    Ok(checkpoint::write_atomically(path, content)?)
}

/// Checks that a file can be written, so that the error comes before the work.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    if is_device(path) {
        return Ok(());
    }
    Ok(checkpoint::check_writable(path)?)
}

/// Returns the canonical path of a file, which may not exist yet.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let there = fs::canonicalize(path);
    there
        .or_else(|_| fs::canonicalize(folder).map(|folder| folder.join(path.file_name().unwrap_or_default())))
        .unwrap_or_else(|_| path.to_owned())
}

/// Returns whether the path is a device or a pipe, which is written in place.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}
