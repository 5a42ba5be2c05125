//! Frames and descriptors sent over a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::unforked::Unforked;
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
    /// Creates a socket that a daemon can listen on or a client can connect.
    pub(super) fn unconnected() -> Result<OwnedFd, Errno> {
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
    }

    /// Connects to the process that listens at `path`. No call on the connection takes longer than `timeout`.
    pub(super) fn connect(path: &Path, timeout: Duration) -> Result<Self, Errno> {
        Self::connect_to(&SocketAddrUnix::new(path)?, timeout)
    }

    /// Connects to an address of any kind, as [`connect`](Self::connect) does.
    pub(super) fn connect_to(address: &SocketAddrUnix, timeout: Duration) -> Result<Self, Errno> {
        let socket = Self(Self::unconnected()?);
        socket.set_timeout(Some(timeout))?;
        net::connect(&socket.0, address)?;
        Ok(socket)
    }
}

impl Socket<Unforked> {
    /// Accepts the next connection to a listening socket. Neither this call nor calls on the connection block.
    pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<Self, Errno> {
        Unforked::new(|| net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)).map(Self)
    }
}

impl<D: AsFd> Socket<D> {
    /// Sets how long [`send`](Self::send) and [`receive`](Self::receive) wait; `None` for ever.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        set_socket_timeout(&self.0, Timeout::Recv, timeout)?;
        set_socket_timeout(&self.0, Timeout::Send, timeout)
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
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(WireError::Descriptors.into());
        }
        retry(|| net::sendmsg(&self.0, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL)).map(drop)
    }

    /// Receives the next message and the descriptors that came with it. If more than `descriptors` came, the message is
    /// refused and they are closed.
    pub(super) fn receive<T: DeserializeOwned>(&self, descriptors: usize) -> Result<(T, Vec<OwnedFd>), SocketError> {
        let mut frame = vec![0; FRAME_BYTES];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        // Without room for them the kernel passes no descriptors on.
        let room = if descriptors == 0 { 0 } else { space.len() };
        let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
        let received =
            retry(|| net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut frame)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
        let mut received_descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                received_descriptors.extend(fds);
            }
        }
        // A closed connection reads as an empty frame, but a peer may also send an empty frame.
        if received.bytes == 0 && self.is_at_end() {
            return Err(SocketError::Closed);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(WireError::TooLong.into());
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || received_descriptors.len() > descriptors {
            return Err(WireError::Descriptors.into());
        }
        Ok((wire::decode(&frame[..received.bytes])?, received_descriptors))
    }

    /// Returns whether the other end will send nothing more.
    fn is_at_end(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_err() || !polled[0].revents().is_empty()
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

/// Makes a system call, again if a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, SocketError> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(SocketError::Waiting),
            // No other error on a connected local socket can be recovered from.
            Err(_) => return Err(SocketError::Closed),
        }
    }
}

#[cfg(test)]
mod tests {
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
