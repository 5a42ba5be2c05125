//! Writes files atomically.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tenure::nn::checkpoint;

use crate::files;

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

/// Checks that writing `target` does not replace the file that is read.
///
/// # Errors
/// One line that names the file.
pub(crate) fn keep_input(target: &Path, input: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        canonical(target) != canonical(input),
        "{}: it is the file that is read, and would be replaced: give another name with -o",
        target.display()
    );
    Ok(())
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
