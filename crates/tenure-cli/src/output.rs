//! Files written whole or not at all, also when the program is interrupted.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

/// What shells report for a program ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// The temporary file that is being written.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Somebody asked a program that [takes note](note_interrupts) to end.
static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C and a request to terminate leave no part of a file behind.
pub(crate) fn clean_up_when_interrupted() {
    handle_interrupts(clean_up_and_exit);
}

/// From now on, the first Ctrl-C or request to terminate is only [noted](is_interrupted); the next ends the program,
/// and leaves no part of a file behind.
pub(crate) fn note_interrupts() {
    handle_interrupts(|| {
        if WAS_INTERRUPTED.swap(true, Ordering::Relaxed) {
            clean_up_and_exit();
        }
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "\ntenure: ends after this step; Ctrl-C again ends at once");
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
    // Held to the end: nothing new is begun meanwhile.
    let mut unfinished = unfinished();
    if let Some(path) = unfinished.take() {
        let _ = fs::remove_file(path);
    }
    process::exit(INTERRUPTED.into());
}

/// Writes `content` to `path`. The file appears when everything is there.
pub(crate) fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // A file that is replaced keeps its permissions. A device or a pipe is not replaced.
    let replaced = fs::metadata(path).ok();
    if replaced.as_ref().is_some_and(|replaced| !replaced.is_file()) {
        return fill(&mut File::create(path)?, content);
    }
    let mut file = begin(path)?;
    let written = fill(file.as_file_mut(), content)
        .and_then(|()| replaced.map_or(Ok(()), |replaced| file.as_file().set_permissions(replaced.permissions())));
    // Nobody is interrupted between the two.
    let mut unfinished = unfinished();
    *unfinished = None;
    written?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// A temporary file beside `path`.
fn begin(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Made by ourselves, not only for the owner's eyes, and with errors that do not name a file that nobody knows.
    let make = |path: &Path| File::options().write(true).create_new(true).open(path);
    let mut unfinished = unfinished();
    let file = tempfile::Builder::new().prefix(".tenure-").make_in(folder, make)?;
    *unfinished = Some(file.path().into());
    Ok(file)
}

fn fill(file: &mut File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
