//! Atomic writes of files: after a crash, a file is either the new one or as it was before.
//!
//! Beside what libraries do for this, a file keeps its permissions, a link keeps pointing to it, and the folder is synced.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use tempfile::NamedTempFile;

/// The temporary files that are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The permissions of a new file, before the system's mask is applied.
const NEW_FILE_MODE: u32 = 0o666;
/// The permissions of a file for its owner only.
const PRIVATE_FILE_MODE: u32 = 0o600;

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
    replace(path, None, write)
}

/// Writes a file like [`write_atomically`], but only its owner can read it, from its first byte on.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_privately(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    replace(path, Some(PRIVATE_FILE_MODE), write)
}

fn replace(path: &Path, mode: Option<u32>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let target = target(path)?;
    let mut file = begin(&target, mode)?;
    let written = fill(file.as_file_mut(), write);
    end(file, |file| written.and_then(|()| Ok(file.persist(&target).map(drop)?)))?;
    sync_folder(folder(&target))
}

/// Syncs a folder, because the new name of a file is on the disk only after that. A folder that cannot be read, or is of
/// a file system that syncs no folders, is left to the system: the file is there.
fn sync_folder(folder: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};

    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.or_else(|error| match error.kind() {
        InvalidInput | PermissionDenied | Unsupported => Ok(()),
        _ => Err(error),
    })
}

/// Checks whether [`write_atomically`] could begin to write `path`, for programs that have something to write only
/// after hours.
///
/// # Errors
/// The reason why it could not. The file is as it was in any case.
pub fn check_writable(path: &Path) -> io::Result<()> {
    end(begin(&target(path)?, None)?, NamedTempFile::close)
}

/// Removes the temporary files of all writes that are under way, for a program that ends at once. As long as the
/// result lives, a thread that finishes or begins a write waits: keep it until the program has ended.
pub fn abandon_writes() -> AbandonedWrites {
    let mut unfinished = UNFINISHED.lock();
    for path in unfinished.drain(..) {
        // The program ends, so a failure cannot be reported any more.
        let _ = fs::remove_file(path);
    }
    AbandonedWrites { _unfinished: unfinished }
}

/// Keeps other threads from finishing or beginning a write: see [`abandon_writes`].
#[must_use = "it holds for as long as it lives"]
pub struct AbandonedWrites {
    _unfinished: MutexGuard<'static, Vec<PathBuf>>,
}

/// Returns the path of the file that is replaced when `path` is written.
fn target(path: &Path) -> io::Result<PathBuf> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file name"));
    };
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        target => return target,
    }
    let folder = folder(path);
    let new = folder.join(name);
    if let Ok(link) = fs::read_link(&new) {
        // Links in a circle do not come here: the system has refused them above.
        return target(&folder.join(link));
    }
    if !folder.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no folder {}", folder.display())));
    }
    Ok(new)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a temporary file beside `target`, with the permissions of `mode` or, without it, those of `target`.
fn begin(target: &Path, mode: Option<u32>) -> io::Result<NamedTempFile> {
    let permissions =
        mode.map(Permissions::from_mode).or_else(|| fs::metadata(target).ok().map(|replaced| replaced.permissions()));
    let mode = permissions.as_ref().map_or(NEW_FILE_MODE, |permissions| permissions.mode() & 0o777);
    let mut unfinished = UNFINISHED.lock();
    // A function of our own makes the file: then others than the owner can read it, and errors do not name a file that
    // the caller does not know.
    let file = tempfile::Builder::new()
        .prefix(".tenure-")
        .make_in(folder(target), |path| File::options().write(true).create_new(true).mode(mode).open(path))?;
    unfinished.push(file.path().to_owned());
    drop(unfinished);
    match permissions.map_or(Ok(()), |permissions| file.as_file().set_permissions(permissions)) {
        Ok(()) => Ok(file),
        Err(error) => end(file, NamedTempFile::close).and(Err(error)),
    }
}

fn fill(file: &mut File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.into_inner()?.sync_all()
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

    /// Returns the permissions of all files in a folder.
    fn modes(folder: &Path) -> Vec<u32> {
        let files = fs::read_dir(folder).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().permissions().mode() & 0o777).collect()
    }

    #[test]
    fn a_replaced_private_file_stays_private_from_the_first_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        write_atomically(&path, |out| {
            assert_eq!(modes(folder.path()), [0o600; 2], "the file and what replaces it");
            out.write_all(b"new")
        })
        .unwrap();
        assert_eq!((modes(folder.path()), fs::read_to_string(&path).unwrap()), (vec![0o600], "new".to_owned()));
    }

    #[test]
    fn a_private_file_stays_private_where_a_public_one_or_none_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for _ in ["none", "public"] {
            write_privately(&path, |out| out.write_all(b"new")).unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
    }

    #[test]
    fn a_link_to_a_file_that_is_not_there_yet_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, circle] = ["file", "link", "circle"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        assert!(write_atomically(&circle, |_| Ok(())).is_err() && circle.is_symlink());
    }
}
