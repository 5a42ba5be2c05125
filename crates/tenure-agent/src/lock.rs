//! Locks beside files: one agent for each, however it ends.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Takes the lock `path.lock`, which is held until the returned file is dropped; none if another process has it. The lock's
/// file stays: removing one races with taking it.
pub(crate) fn take_beside(path: &Path) -> io::Result<Option<File>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = File::options();
    // Nobody's link, and no pipe to wait for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits() as i32);
    let file = options.open(&name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(reason)) => Err(reason),
    }
}
