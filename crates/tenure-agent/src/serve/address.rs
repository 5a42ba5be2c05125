//! Addresses of agents, and connections to them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, SendFlags, Shutdown, SocketAddrUnix, SocketType};

/// The address of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket, for processes of one user.
    Unix(PathBuf),
    /// A loopback address, for all users of this host.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// A connection to an address of either kind.
#[derive(Debug)]
pub(super) struct Stream(pub(super) OwnedFd);

impl Stream {
    /// Connects. Waits at most `timeout` for room in the listener's backlog.
    pub(super) fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                Ok(Self(tenure_ipc::connect(&SocketAddrUnix::new(path)?, SocketType::STREAM, timeout)?))
            }
            Address::Tcp(address) => Ok(Self(TcpStream::connect_timeout(address, timeout)?.into())),
        }
    }

    /// Sets how long a write may wait.
    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(timeout))?)
    }

    /// Signals the end of the data to the other end.
    pub(super) fn end_writing(&self) -> io::Result<()> {
        Ok(net::shutdown(&self.0, Shutdown::Write)?)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
