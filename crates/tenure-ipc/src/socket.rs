//! Connections, and the file descriptors that come with their bytes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The most descriptors that come with a message.
pub const MAX_DESCRIPTORS: usize = 64;

/// The bytes and file descriptors that one call received.
#[derive(Debug)]
pub struct Received {
    /// The number of bytes.
    pub bytes: usize,
    /// The descriptors that came with the bytes.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the rest of a longer packet is lost ([`ReturnFlags::TRUNC`]), or descriptors are
    /// ([`ReturnFlags::CTRUNC`]).
    pub flags: ReturnFlags,
}

pub(crate) fn unconnected(kind: SocketType) -> Result<OwnedFd, Errno> {
    net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

/// Connects to an address. Neither this call nor one on the connection waits longer than `timeout`.
///
/// # Errors
/// Nothing listens there, or its backlog stays full.
pub fn connect(address: &SocketAddrUnix, kind: SocketType, timeout: Duration) -> Result<OwnedFd, Errno> {
    let socket = unconnected(kind)?;
    set_timeout(&socket, Some(timeout))?;
    net::connect(&socket, address)?;
    Ok(socket)
}

/// Sets how long calls on a socket wait; `None` for ever.
///
/// # Errors
/// The time is 0, or the descriptor is not a socket.
pub fn set_timeout(socket: impl AsFd, timeout: Option<Duration>) -> Result<(), Errno> {
    set_socket_timeout(&socket, Timeout::Recv, timeout)?;
    // On Linux, this also limits how long connecting waits.
    set_socket_timeout(&socket, Timeout::Send, timeout)
}

/// Sends bytes, and descriptors with the first of them. Returns how many bytes the system took.
///
/// # Errors
/// The other end is closed, the call would wait for too long, or there are more than [`MAX_DESCRIPTORS`].
pub fn send(socket: impl AsFd, parts: &[IoSlice<'_>], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let is_full = !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors));
    // Padding may leave room for one more.
    if is_full || descriptors.len() > MAX_DESCRIPTORS {
        return Err(Errno::TOOMANYREFS);
    }
    retry_on_intr(|| net::sendmsg(&socket, parts, &mut control, SendFlags::NOSIGNAL))
}

/// Receives bytes, and up to `descriptors` descriptors that came with them; more are closed.
///
/// # Errors
/// The connection failed, or nothing came in time.
pub fn receive(socket: impl AsFd, into: &mut [u8], descriptors: usize) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    // Without room for them the kernel passes no descriptors on.
    let room = if descriptors == 0 { 0 } else { space.len() };
    let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
    let received =
        retry_on_intr(|| net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut received_descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            received_descriptors.extend(some);
        }
    }
    let mut flags = received.flags;
    if received_descriptors.len() > descriptors {
        received_descriptors.truncate(descriptors);
        flags |= ReturnFlags::CTRUNC;
    }
    Ok(Received { bytes: received.bytes, descriptors: received_descriptors, flags })
}

/// Waits up to `timeout` for events. Returns those of `wanted` that occurred, and hang-ups.
///
/// # Errors
/// The system is short of memory.
pub fn wait(descriptor: impl AsFd, wanted: PollFlags, timeout: Duration) -> Result<PollFlags, Errno> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut polled = [PollFd::new(&descriptor, wanted)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_descriptors_are_not_sent() {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let sent = send(&a, &[IoSlice::new(b"x")], &[b.as_fd(); MAX_DESCRIPTORS + 1]);
        assert_eq!(sent, Err(Errno::TOOMANYREFS));
    }

    #[test]
    fn connecting_to_a_full_backlog_ends_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(folder.path().join("a.sock")).unwrap();
        let listener = unconnected(SocketType::STREAM).unwrap();
        net::bind(&listener, &address).unwrap();
        net::listen(&listener, 0).unwrap();
        let connected: Result<Vec<OwnedFd>, Errno> =
            (0..10).map(|_| connect(&address, SocketType::STREAM, Duration::from_millis(50))).collect();
        assert_eq!(connected.unwrap_err(), Errno::AGAIN);
    }
}
