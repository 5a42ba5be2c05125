//! Listening sockets: one process for each path, accessible to one user only.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, SocketAddrUnix, SocketType};

use crate::socket::unconnected;
use crate::{ClaimError, Lock, Unforked, connect};

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long a socket's owner has to answer before it counts as busy.
const PROBE: Duration = Duration::from_millis(100);

/// A listening socket at a path. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: Unforked,
    path: PathBuf,
    /// The identity of its file.
    file: (u64, u64),
    _lock: Lock,
}

impl Listener {
    /// Listens at `path` for processes of this user. Replaces the socket file of a process that has died.
    /// Accepting does not wait.
    ///
    /// # Errors
    /// Another process listens there or has the lock beside it; a file that is not a socket is there; no socket can be
    /// made there.
    pub fn bind(path: &Path, kind: SocketType) -> Result<Self, ClaimError> {
        let lock = Lock::beside(path)?;
        let address = SocketAddrUnix::new(path).map_err(ClaimError::failed(path, "no socket can have this path"))?;
        remove_stale(path, &address, kind)?;
        let socket = listen(&address, kind).map_err(ClaimError::failed(path, "no socket can be made here"))?;
        let file = file_identity(path).map_err(ClaimError::failed(path, "its socket has gone"))?;
        Ok(Self { socket, path: path.into(), file, _lock: lock })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The file may have been removed, and another process may have made its own.
        if file_identity(&self.path).is_ok_and(|there| there == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `address`, for this user if it is a path. Accepting does not wait.
///
/// # Errors
/// The address is in use, or the system refuses.
pub fn listen(address: &SocketAddrUnix, kind: SocketType) -> Result<Unforked, Errno> {
    let socket = Unforked::new(|| unconnected(kind))?;
    // This precedes the name: the file gets the socket's mode, so that it is never open to other users.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, address)?;
    ioctl_fionbio(&socket, true)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns the identity of the file at a path. No other file has it while a socket is bound to it.
fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Removes the socket file of a process that has ended. Does not remove a socket with a live listener, or a file that
/// is not a socket.
fn remove_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> Result<(), ClaimError> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(ClaimError::failed(path, "it cannot be looked at"))?,
    };
    if !found.file_type().is_socket() {
        let reason = io::Error::new(ErrorKind::AlreadyExists, "choose another path");
        return Err(ClaimError::failed(path, "a file that is not a socket is in the way")(reason));
    }
    match connect(address, kind, PROBE) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(ClaimError::failed(path, "the file of a dead process cannot be removed"))
        }
        // A socket of another type is in use, and so is one whose owner is too busy to answer.
        _ => Err(ClaimError::Taken { path: path.into(), by: "another program".into() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn socket() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        (folder, path)
    }

    fn bind(path: &Path) -> Result<Listener, ClaimError> {
        Listener::bind(path, SocketType::STREAM)
    }

    #[test]
    fn only_its_user_can_open_the_socket_and_it_goes_with_its_listener() {
        let (_folder, path) = socket();
        let listener = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
        bind(&path).unwrap();
    }

    #[test]
    fn a_socket_that_took_its_place_is_left_alone() {
        let (_folder, path) = socket();
        let listener = bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(UnixStream::connect(path).is_ok());
    }

    #[test]
    fn a_live_listener_is_not_replaced() {
        let (_folder, path) = socket();
        let _live = bind(&path).unwrap();
        let Err(ClaimError::Taken { by, .. }) = bind(&path) else { panic!("it is taken") };
        assert_eq!(by, format!("process {}", std::process::id()));
        assert!(UnixStream::connect(path).is_ok());
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced() {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let (_folder, path) = socket();
            drop(UnixListener::bind(&path).unwrap());
            assert!(path.exists(), "dropping a plain listener leaves its file");
            let _listener = Listener::bind(&path, kind).unwrap();
            connect(&SocketAddrUnix::new(&path).unwrap(), kind, PROBE).unwrap();
        }
    }

    #[test]
    fn the_socket_and_file_of_another_program_are_left_alone() {
        let (folder, path) = socket();
        let other = UnixListener::bind(&path).unwrap();
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            assert!(matches!(Listener::bind(&path, kind), Err(ClaimError::Taken { .. })));
        }
        drop(other);
        let file = folder.path().join("file");
        fs::write(&file, "mine").unwrap();
        let error = bind(&file).unwrap_err().to_string();
        assert!(error.contains("not a socket is in the way"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert!(path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = bind(&folder.path().join("x".repeat(120))).unwrap_err();
        assert!(error.to_string().contains("no socket can have this path"), "{error}");
    }
}
