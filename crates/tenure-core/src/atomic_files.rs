//! Atomic writes of files: after a crash, a file is either the new one or as it was before.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use tempfile::NamedTempFile;

/// The temporary files that are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The permissions of a new file, before the system's mask is applied.
const NEW_FILE_MODE: u32 = 0o666;

/// Writes a file atomically: `write` fills a temporary file beside `path`, which is synced to the disk and then renamed
/// to `path`. Whenever the program or the system stops, `path` is the old file or the new one. A program that is killed
/// leaves the temporary file there; one that calls [`abandon_writes`] does not. A replaced file keeps its permissions,
/// which the temporary file has before anything is written to it. If `path` is a symbolic link, the file that it points
/// to is replaced.
///
/// # Errors
/// The errors of `write` and of the system; `path` is not a file, but a device for instance. The file is then as it
/// was, unless only the last sync, that of the folder, failed.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let target = target(path)?;
    let mut file = begin(&target)?;
    let written = fill(file.as_file_mut(), write);
    end(file, |file| written.and_then(|()| file.persist(&target).map(drop).map_err(|error| error.error)))?;
    // The new name is on the disk only once the folder is synced.
    File::open(folder(&target))?.sync_all()
}

/// Checks whether [`write_atomically`] could begin to write `path`, for programs that have something to write only
/// after hours.
///
/// # Errors
/// The reason why it could not. The file is as it was in any case.
pub fn check_writable(path: &Path) -> io::Result<()> {
    end(begin(&target(path)?)?, NamedTempFile::close)
}

/// Removes the temporary files of all writes that are under way, for a program that ends at once. A thread that
/// finishes or begins a write afterwards waits until the program ends.
pub fn abandon_writes() {
    let mut unfinished = UNFINISHED.lock();
    for path in unfinished.drain(..) {
        // The program ends, so a failure cannot be reported any more.
        let _ = fs::remove_file(path);
    }
    MutexGuard::leak(unfinished);
}

/// Returns the path of the file that is replaced when `path` is written.
fn target(path: &Path) -> io::Result<PathBuf> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file that can be replaced"));
    }
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "it is no file's name");
    let name = path.file_name().ok_or_else(no_name)?;
    let target = fs::canonicalize(path).unwrap_or_else(|_| folder(path).join(name));
    let folder = folder(&target);
    if !folder.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no folder {}", folder.display())));
    }
    Ok(target)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a temporary file beside `target`, with its permissions.
fn begin(target: &Path) -> io::Result<NamedTempFile> {
    let replaced = fs::metadata(target).ok().map(|replaced| replaced.permissions());
    let mode = replaced.as_ref().map_or(NEW_FILE_MODE, |replaced| replaced.mode() & 0o777);
    // A function of our own makes the file: then others than the owner can read it, and errors do not name a file that
    // the caller does not know.
    let make = |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
    let mut unfinished = UNFINISHED.lock();
    let file = tempfile::Builder::new().prefix(".tenure-").make_in(folder(target), make)?;
    unfinished.push(file.path().to_owned());
    drop(unfinished);
    match replaced.map_or(Ok(()), |replaced| file.as_file().set_permissions(replaced)) {
        Ok(()) => Ok(file),
        Err(error) => end(file, NamedTempFile::close).and(Err(error)),
    }
}

fn fill(file: &mut File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(&mut *file);
    write(&mut out)?;
    out.flush()?;
    drop(out);
    file.sync_all()
}

/// Ends a write that [`begin`] began, by renaming the file or removing it. The lock makes [`abandon_writes`] come
/// before or after all of this.
fn end(file: NamedTempFile, end: impl FnOnce(NamedTempFile) -> io::Result<()>) -> io::Result<()> {
    let mut unfinished = UNFINISHED.lock();
    unfinished.retain(|path| path != file.path());
    end(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replaces_a_private_file_is_private_from_its_first_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let modes = || -> Vec<u32> {
            let files = fs::read_dir(folder.path()).unwrap();
            files.map(|file| file.unwrap().metadata().unwrap().permissions().mode() & 0o777).collect()
        };
        write_atomically(&path, |out| {
            assert_eq!(modes(), [0o600; 2], "the file and what replaces it");
            out.write_all(b"new")
        })
        .unwrap();
        assert_eq!((modes(), fs::read_to_string(&path).unwrap()), (vec![0o600], "new".to_owned()));
    }
}
