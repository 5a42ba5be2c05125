//! Standard input and named pipes as files that can be read more than once.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The path of standard input, which errors show.
const STANDARD_INPUT: &str = "/dev/stdin";

/// Returns a path that can be read more than once: `path` itself, unless it is `-` or a pipe. The contents of these are
/// copied to a temporary file without a name, which becomes the standard input.
///
/// # Errors
/// The contents cannot be read or copied.
pub(super) fn rereadable(path: &Path) -> io::Result<PathBuf> {
    if path == "-" {
        return spool(io::stdin().lock());
    }
    // An error of a path that is not there is reported by its reader.
    match fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        true => spool(File::open(path)?),
        false => Ok(path.to_owned()),
    }
}

fn spool(mut contents: impl Read) -> io::Result<PathBuf> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut contents, &mut file)?;
    file.rewind()?;
    rustix::stdio::dup2_stdin(&file)?;
    Ok(STANDARD_INPUT.into())
}
