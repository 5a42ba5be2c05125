//! Files that are there whole, or as they were before.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use tempfile::NamedTempFile;

/// The temporary files that are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// What the system's mask leaves of this, a new file has.
const NEW_FILE_MODE: u32 = 0o666;

/// Lets `write` fill a temporary file beside `path`, brings it to the disk, and gives it the name. Whenever the program
/// or the system stops, `path` is the old file or the new one; a program that is killed leaves the temporary file
/// behind, one that calls [`abandon_writes`] does not. A file that is replaced keeps its permissions, which the temporary
/// file has before anything is in it. Of a symbolic link, what it points at is replaced.
///
/// # Errors
/// Those of `write`, and of the system; `path` is no file, but a device for instance. It is then as it was.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let target = target(path)?;
    let mut file = begin(&target)?;
    let written = fill(file.as_file_mut(), write);
    end(file, |file| written.and_then(|()| file.persist(&target).map(drop).map_err(|error| error.error)))?;
    // The name too is on the disk when its folder is.
    File::open(folder(&target))?.sync_all()
}

/// Whether [`write_atomically`] could begin to write `path`: for a program that has something to write only after hours.
///
/// # Errors
/// Why it could not. The file is as it was in any case.
pub fn check_writable(path: &Path) -> io::Result<()> {
    end(begin(&target(path)?)?, NamedTempFile::close)
}

/// For a program that ends at once: removes the temporary files of all writes that are going on. A thread that finishes a
/// write or begins one afterwards waits for that end.
pub fn abandon_writes() {
    let mut unfinished = UNFINISHED.lock();
    for path in unfinished.drain(..) {
        // Nobody is left to tell of a failure here.
        let _ = fs::remove_file(path);
    }
    MutexGuard::leak(unfinished);
}

/// What is replaced when `path` is written.
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

/// A temporary file beside `target`, with its permissions.
fn begin(target: &Path) -> io::Result<NamedTempFile> {
    let replaced = fs::metadata(target).ok().map(|replaced| replaced.permissions());
    let mode = replaced.as_ref().map_or(NEW_FILE_MODE, |replaced| replaced.mode() & 0o777);
    // Made by ourselves, not only for the owner's eyes, and with errors that do not name a file that nobody knows.
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

/// Ends what [`begin`] began, by giving the file its name or removing it: [`abandon_writes`] comes before or after both.
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
