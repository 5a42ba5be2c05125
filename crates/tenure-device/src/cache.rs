//! Files in the user's cache: results that take long to compute again.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use sha2::{Digest, Sha256};
use tenure_core::atomic_files::write_atomically;

/// Returns the folder for results of a kind: in `$TENURE_CACHE`, or `$XDG_CACHE_HOME/tenure`, or `$HOME/.cache/tenure`.
/// Returns `None` if none of these is set to an absolute path.
pub fn folder(kind: &str) -> Option<PathBuf> {
    let folder = path_in("TENURE_CACHE")
        .or_else(|| Some(path_in("XDG_CACHE_HOME")?.join("tenure")))
        .or_else(|| Some(path_in("HOME")?.join(".cache/tenure")))?;
    folder.is_absolute().then(|| folder.join(kind))
}

/// Returns the path in an environment variable, if it is set and not empty.
fn path_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns a file name of 32 letters that depends on `parts` and on nothing else.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file, and creates the folders above it. Readers see the old file or the whole new one.
///
/// # Errors
/// The file cannot be written. No partial file is left then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    write_atomically(path, |file| file.write_all(bytes))
}
