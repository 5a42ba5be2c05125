//! Lock files, by which only one agent uses a file. A lock ends with its process, however that ends.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Locks the file `path.lock` until the returned file is dropped. Returns `None` if another process has locked it. The
/// lock's file stays: removing it would race with another process that takes it.
pub(crate) fn try_lock_beside(path: &Path) -> io::Result<Option<File>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = File::options();
    // Does not follow a link, and does not wait for a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits() as i32);
    let file = options.open(&name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(reason)) => Err(reason),
    }
}
