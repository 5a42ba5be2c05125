//! Files written whole or not at all, also when the program is interrupted.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::nn::checkpoint;

use crate::files;

/// What shells report for a program ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Somebody asked a program that [takes note](note_interrupts) to end.
static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C and a request to terminate leave no part of a file behind.
pub(crate) fn clean_up_when_interrupted() {
    handle_interrupts(clean_up_and_exit);
}

/// From now on, the first Ctrl-C or request to terminate is only [noted](is_interrupted), and `then`, what follows, is
/// said; the next ends the program, and leaves no part of a file behind.
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

/// Whether the program was asked to end.
pub(crate) fn is_interrupted() -> bool {
    WAS_INTERRUPTED.load(Ordering::Relaxed)
}

fn handle_interrupts(handler: impl FnMut() + Send + 'static) {
    // Fails only where a handler is set already; this is the program's only one.
    ctrlc::set_handler(handler).expect("the first signal handler");
}

fn clean_up_and_exit() {
    checkpoint::abandon_writes();
    process::exit(INTERRUPTED.into());
}

/// Writes `content` to `path`. The file appears when everything is there.
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

/// That a file cannot be written at the end is said at the beginning.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    if is_device(path) {
        return Ok(());
    }
    Ok(checkpoint::check_writable(path)?)
}

/// The one name of a file, which may not be there yet.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let there = fs::canonicalize(path);
    let not_there = |_| fs::canonicalize(folder).map(|folder| folder.join(path.file_name().unwrap_or_default()));
    there.or_else(not_there).unwrap_or_else(|_| path.to_owned())
}

/// A device or a pipe is not replaced.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}
