//! Locks beside files, which end with their process, however that ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, getuid, test_kill_process};

use crate::Unforked;

/// The reason why a process cannot have a path to itself.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process has it.
    #[error("{} is in use by {by}", .path.display())]
    Taken {
        /// The path.
        path: PathBuf,
        /// A description of the process that has it.
        by: String,
    },
    /// A step failed.
    #[error("{}: {doing}: {reason}", .path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// The step.
        doing: &'static str,
        /// The reason.
        reason: io::Error,
    },
}

impl ClaimError {
    /// Makes the error of a step from its reason.
    pub(crate) fn failed<E: Into<io::Error>>(path: &Path, doing: &'static str) -> impl FnOnce(E) -> Self {
        move |reason| Self::Failed { path: path.into(), doing, reason: reason.into() }
    }
}

/// A lock on a path, held until it is dropped or the process ends. The lock's file stays: removing it would race with a
/// process that is taking the lock.
#[derive(Debug)]
pub struct Lock(Unforked);

impl Lock {
    /// Takes the lock of `path`, the file `path.lock`, and writes this process's number into it if the file is this
    /// user's.
    ///
    /// # Errors
    /// Another process has the lock; the file cannot be opened, or belongs to another user who holds the lock.
    pub fn beside(path: &Path) -> Result<Self, ClaimError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock_path = Path::new(&name);
        // Does not follow a link, and does not wait for a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits() as i32);
        let held = Unforked::new(|| options.open(lock_path).map(OwnedFd::from)).map_err(ClaimError::failed(
            lock_path,
            "the lock cannot be opened: another user's file may be in the way",
        ))?;
        // A second descriptor of the same file, for reading and writing.
        let file = held.as_fd().try_clone_to_owned();
        let mut file = File::from(file.map_err(ClaimError::failed(lock_path, "the lock cannot be read"))?);
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(path, lock_path, &mut file)),
            Err(error) => return Err(ClaimError::failed(lock_path, "the lock cannot be taken")(error)),
        }
        let lock = Self(held);
        // Root does not write what another user has put there: it may be a link to another file.
        if file.metadata().is_ok_and(|found| found.uid() == getuid().as_raw()) {
            file.set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()))
                .map_err(ClaimError::failed(lock_path, "the lock cannot be written"))?;
        }
        Ok(lock)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread is starting holds it open too, for a
        // moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Returns the error for a lock that is held, by the process whose number is in its file.
fn taken(path: &Path, lock_path: &Path, file: &mut File) -> ClaimError {
    let owner = file.metadata().map_or(0, |found| found.uid());
    if owner != getuid().as_raw() && owner != 0 {
        let reason = format!("it belongs to user {owner}: remove it, or choose another folder");
        let reason = io::Error::new(io::ErrorKind::PermissionDenied, reason);
        return ClaimError::failed(lock_path, "the lock is not to be trusted")(reason);
    }
    let mut pid = String::new();
    // The process number only improves the message.
    let _ = file.read_to_string(&mut pid);
    let pid = pid.trim();
    let by = match pid.parse().ok().and_then(Pid::from_raw).map(test_kill_process) {
        Some(Err(Errno::SRCH)) => format!("what process {pid}, which has ended, has left behind: end its children"),
        _ => format!("process {pid}"),
    };
    ClaimError::Taken { path: path.into(), by }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::fs::{Uid, chown};

    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_named_as_the_one_that_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        let lock = folder.path().join("memory.sock.lock");
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        fs::write(&lock, ended.id().to_string()).unwrap();
        let held = File::open(&lock).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = Lock::beside(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}, which has ended", ended.id())), "{error}");
    }

    #[test]
    fn a_lock_of_another_user_is_refused_by_name() {
        if !getuid().is_root() {
            eprintln!("skipped: only root can make another user's file");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("memory.sock.lock");
        let foreign = File::create(&lock).unwrap();
        chown(&lock, Some(Uid::from_raw(65534)), None).unwrap();
        flock(&foreign, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = Lock::beside(&folder.path().join("memory.sock")).unwrap_err().to_string();
        assert!(error.contains(lock.to_str().unwrap()) && error.contains("user 65534"), "{error}");
        // A lock that is left behind is taken, and not written.
        drop(foreign);
        let _taken = Lock::beside(&folder.path().join("memory.sock")).unwrap();
        assert_eq!(fs::read(&lock).unwrap(), b"");
    }
}
