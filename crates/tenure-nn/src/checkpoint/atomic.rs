//! Files that are there whole, or as they were before.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::CheckpointError;

/// Lets `write` write a temporary file beside `path`, brings it to the disk, and gives it the name. Whenever the
/// program or the system stops, `path` is the old file or the new one; a program that is killed leaves the temporary
/// file behind. Of a symbolic link, what it points at is replaced.
///
/// # Errors
/// Those of `write`, and of the system; `path` is no file, but a device for instance. It is then as it was.
pub fn write_atomically(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), CheckpointError> {
    let error = CheckpointError::io(path);
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "it is no file that can be replaced")));
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}.");
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What any file that is made has, less the process's mask.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(folder).map_err(&error)?.into_temp_path();
    // `write` may put another file in its place, with what rights it likes.
    let permissions = fs::metadata(&temporary).map_err(&error)?.permissions();
    write(&temporary).map_err(&error)?;
    fs::set_permissions(&temporary, permissions).map_err(&error)?;
    File::open(&temporary).and_then(|file| file.sync_all()).map_err(&error)?;
    temporary.persist(path).map_err(|failed| error(failed.error))?;
    // The name too is on the disk when its folder is.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(&error)
}
