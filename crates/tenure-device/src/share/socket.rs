//! Messages sent over a Unix socket, with descriptors.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, ReturnFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_ipc::Unforked;

use super::wire::{self, DESCRIPTORS, FRAME_BYTES, WireError};

/// One end of a connection.
pub(super) struct Socket<D = OwnedFd>(D);

/// The reason why nothing could be sent or received.
#[derive(Debug)]
pub(super) enum SocketError {
    /// The other end is closed.
    Closed,
    /// The call would have to wait, or has waited as long as it may.
    Waiting,
    /// The bytes are not a message.
    Wire(WireError),
}

impl Socket {
    /// Connects to the process that listens at `address`. No call on the connection takes longer than `timeout`.
    pub(super) fn connect(address: &SocketAddrUnix, timeout: Duration) -> Result<Self, Errno> {
        tenure_ipc::connect(address, SocketType::SEQPACKET, timeout).map(Self)
    }
}

impl Socket<Unforked> {
    /// Accepts the next connection to a listening socket. Neither this call nor calls on the connection block.
    pub(super) fn accept(listener: impl AsFd) -> Result<Self, Errno> {
        Unforked::new(|| net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)).map(Self)
    }
}

impl<D: AsFd> Socket<D> {
    /// Sets how long [`send`](Self::send) and [`receive`](Self::receive) wait; `None` for ever.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        tenure_ipc::set_timeout(&self.0, timeout)
    }

    /// Ends the connection; a thread that waits in [`receive`](Self::receive) finds it closed.
    pub(super) fn shut_down(&self) {
        // This fails only if the connection has already ended.
        let _ = net::shutdown(&self.0, Shutdown::Both);
    }

    /// Sends a message with descriptors.
    pub(super) fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        let frame = wire::encode(message)?;
        self.send_bytes(&frame, descriptors)
    }

    fn send_bytes(&self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        if descriptors.len() > DESCRIPTORS {
            return Err(WireError::Descriptors.into());
        }
        tenure_ipc::send(&self.0, &[IoSlice::new(frame)], descriptors)?;
        Ok(())
    }

    /// Receives the next message and the descriptors that came with it. If more than `descriptors` came, the message is
    /// refused and they are closed.
    pub(super) fn receive<T: DeserializeOwned>(&self, descriptors: usize) -> Result<(T, Vec<OwnedFd>), SocketError> {
        let mut frame = vec![0; FRAME_BYTES];
        let received = tenure_ipc::receive(&self.0, &mut frame, descriptors)?;
        // A closed connection reads as an empty frame, but a peer may also send an empty frame.
        if received.bytes == 0 && self.is_at_end() {
            return Err(SocketError::Closed);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(WireError::TooLong.into());
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(WireError::Descriptors.into());
        }
        Ok((wire::decode(&frame[..received.bytes])?, received.descriptors))
    }

    /// Returns whether the other end will send nothing more.
    fn is_at_end(&self) -> bool {
        tenure_ipc::wait(&self.0, PollFlags::RDHUP, Duration::ZERO).map_or(true, |found| !found.is_empty())
    }
}

impl<D: AsFd> AsFd for Socket<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<WireError> for SocketError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<Errno> for SocketError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::AGAIN => Self::Waiting,
            // No other error on a connected local socket can be recovered from.
            _ => Self::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::AddressFamily;

    use super::*;
    use crate::share::wire::{DaemonReply, DaemonRequest};

    fn pair() -> (Socket, Socket) {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Socket(a), Socket(b))
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = pair();
        a.send(&DaemonReply::Attached, &[a.as_fd(), b.as_fd()]).unwrap();
        let (reply, descriptors) = b.receive::<DaemonReply>(2).unwrap();
        assert_eq!((reply, descriptors.len()), (DaemonReply::Attached, 2));
    }

    #[test]
    fn descriptors_that_were_not_asked_for_are_closed() {
        let (a, b) = pair();
        for allowed in [0, 1] {
            let (sent, other_end) = pair();
            a.send(&DaemonRequest::Status, &[sent.as_fd(), sent.as_fd()]).unwrap();
            drop(sent);
            let error = b.receive::<DaemonRequest>(allowed).unwrap_err();
            assert!(matches!(error, SocketError::Wire(WireError::Descriptors)), "{error:?}");
            assert!(matches!(other_end.receive::<DaemonReply>(0), Err(SocketError::Closed)));
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_no_message() {
        let (a, b) = pair();
        a.send_bytes(&vec![1; FRAME_BYTES + 1], &[]).unwrap();
        let error = b.receive::<DaemonRequest>(0).unwrap_err();
        assert!(matches!(error, SocketError::Wire(WireError::TooLong)), "{error:?}");
    }

    #[test]
    fn an_empty_frame_is_no_message_and_no_end() {
        let (a, b) = pair();
        a.send_bytes(&[], &[]).unwrap();
        let error = b.receive::<DaemonRequest>(0).unwrap_err();
        assert!(matches!(error, SocketError::Wire(WireError::Short(0))), "{error:?}");
    }

    #[test]
    fn a_closed_connection_is_told_from_a_silent_one() {
        let (a, b) = pair();
        b.set_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(matches!(b.receive::<DaemonReply>(0), Err(SocketError::Waiting)));
        drop(a);
        assert!(matches!(b.receive::<DaemonReply>(0), Err(SocketError::Closed)));
        assert!(matches!(b.send(&DaemonRequest::Status, &[]), Err(SocketError::Closed)));
    }
}
