//! The listener of an agent: one agent per path, for one user only.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{Mode, fchmod};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::address::Stream;
use super::connection::wait;
use super::{Address, ServeError};
use crate::lock;

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The time that another owner of the socket may take to accept a connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A listening socket. Dropping it removes its file.
pub(super) struct Listener {
    address: Address,
    socket: Socket,
}

enum Socket {
    /// A socket, the identity of its file, and the lock next to it.
    Unix {
        listener: UnixListener,
        file: (u64, u64),
        _lock: File,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`. Replaces the socket file of an agent that has ended.
    pub(super) fn bind(address: &Address) -> Result<Self, ServeError> {
        let failed = |doing| move |reason| ServeError::Socket { address: address.clone(), doing, reason };
        let (socket, address) = match address {
            Address::Unix(path) => {
                let lock = lock::try_lock_beside(path).map_err(failed("the lock beside it cannot be taken"))?;
                let lock = lock.ok_or_else(|| ServeError::AlreadyServed { address: address.clone() })?;
                remove_stale(path, address)?;
                let listener = listen(path).map_err(failed("no socket can be made here"))?;
                let file = file_identity(path).map_err(failed("its socket has gone"))?;
                (Socket::Unix { listener, file, _lock: lock }, address.clone())
            }
            Address::Tcp(wanted) if !wanted.ip().is_loopback() => return Err(ServeError::NotLoopback(*wanted)),
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(failed("it cannot be listened on"))?;
                let bound = listener.local_addr().map_err(failed("its port is not known"))?;
                (Socket::Tcp(listener), Address::Tcp(bound))
            }
        };
        let listener = Self { address, socket };
        let nonblocking = match &listener.socket {
            Socket::Unix { listener, .. } => listener.set_nonblocking(true),
            Socket::Tcp(listener) => listener.set_nonblocking(true),
        };
        nonblocking.map_err(failed("it cannot be made non-blocking"))?;
        Ok(listener)
    }

    /// Returns its address, with the actual port if port 0 was requested.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the next connection, or `None` if there is none within `timeout`.
    pub(super) fn accept(&self, timeout: Duration) -> io::Result<Option<Stream>> {
        if wait(self, PollFlags::IN, timeout)?.is_empty() {
            return Ok(None);
        }
        let accepted = match &self.socket {
            Socket::Unix { listener, .. } => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Socket::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
        };
        match accepted {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            accepted => accepted.map(Some),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix { listener, .. } => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The file may have been removed, and another agent may have made its own.
        if let (Address::Unix(path), Socket::Unix { file: ours, .. }) = (&self.address, &self.socket)
            && file_identity(path).is_ok_and(|there| there == *ours)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the identity of the file at a path. No other file has it while a socket is bound to it.
fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Makes a listening socket at a path that only this user can open.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // This precedes the name: the file gets the socket's mode, so that it is never open to other users.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file of an agent that has ended. Does not remove a socket with a live listener, or a file that is
/// not a socket.
fn remove_stale(path: &Path, address: &Address) -> Result<(), ServeError> {
    let failed = |doing| move |reason| ServeError::Socket { address: address.clone(), doing, reason };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("it cannot be looked at")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(failed("a file that is not a socket is in the way")(ErrorKind::AlreadyExists.into()));
    }
    match Stream::connect(address, ANSWER_TIMEOUT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("the file of a dead agent cannot be removed"))
        }
        // A socket of another type is in use, and so is one whose owner is too busy to answer.
        _ => Err(ServeError::AlreadyServed { address: address.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn unix(folder: &tempfile::TempDir) -> (std::path::PathBuf, Address) {
        let path = folder.path().join("agent.sock");
        (path.clone(), Address::Unix(path))
    }

    #[test]
    fn only_its_user_can_open_the_socket_and_it_goes_with_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let (path, address) = unix(&folder);
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_took_its_place_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, address) = unix(&folder);
        let listener = Listener::bind(&address).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(UnixStream::connect(path).is_ok());
    }

    #[test]
    fn a_living_agent_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, address) = unix(&folder);
        let _living = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ServeError::AlreadyServed { .. })));
        assert!(UnixStream::connect(path).is_ok());
    }

    #[test]
    fn a_dead_agents_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, address) = unix(&folder);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "dropping a plain listener leaves its file");
        let _listener = Listener::bind(&address).unwrap();
        assert!(UnixStream::connect(path).is_ok());
    }

    #[test]
    fn another_programs_socket_or_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, address) = unix(&folder);
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ServeError::AlreadyServed { .. })));
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        let error = Listener::bind(&address).err().unwrap().to_string();
        assert!(error.contains("not a socket is in the way"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn others_than_this_host_are_not_listened_to() {
        for address in ["0.0.0.0:0", "192.0.2.1:80", "[::]:0"] {
            let error = Listener::bind(&Address::Tcp(address.parse().unwrap())).err().unwrap();
            assert!(matches!(error, ServeError::NotLoopback(_)), "{error}");
        }
        let Address::Tcp(bound) =
            Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap().address().clone()
        else {
            panic!("an address of TCP")
        };
        assert!(bound.ip().is_loopback() && bound.port() != 0);
    }
}
