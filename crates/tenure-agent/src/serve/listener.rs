//! The listener of an agent: one agent per path, for one user only.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use tenure_ipc::{ClaimError, wait};

use super::address::Stream;
use super::{Address, ServeError};

/// A listening socket. Dropping it removes its file.
pub(super) struct Listener {
    address: Address,
    socket: Socket,
}

enum Socket {
    Unix(tenure_ipc::Listener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`. Replaces the socket file of an agent that has ended.
    pub(super) fn bind(address: &Address) -> Result<Self, ServeError> {
        let failed = |doing| move |reason| ServeError::Socket { address: address.clone(), doing, reason };
        match address {
            Address::Unix(path) => match tenure_ipc::Listener::bind(path, SocketType::STREAM) {
                Ok(listener) => Ok(Self { address: address.clone(), socket: Socket::Unix(listener) }),
                Err(ClaimError::Taken { .. }) => Err(ServeError::AlreadyServed { address: address.clone() }),
                Err(ClaimError::Failed { doing, reason, .. }) => Err(failed(doing)(reason)),
            },
            Address::Tcp(wanted) if !wanted.ip().is_loopback() => Err(ServeError::NotLoopback(*wanted)),
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(failed("it cannot be listened on"))?;
                let bound = listener.local_addr().map_err(failed("its port is not known"))?;
                listener.set_nonblocking(true).map_err(failed("it cannot be made non-blocking"))?;
                Ok(Self { address: Address::Tcp(bound), socket: Socket::Tcp(listener) })
            }
        }
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
        match accept_with(self, SocketFlags::CLOEXEC) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            accepted => Ok(Some(Stream(accepted?))),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(listener) => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_path_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let address = Address::Unix(path.clone());
        let living = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ServeError::AlreadyServed { .. })));
        assert!(Stream::connect(&address, Duration::from_secs(1)).is_ok());
        drop(living);
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ServeError::Socket { .. })));
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
