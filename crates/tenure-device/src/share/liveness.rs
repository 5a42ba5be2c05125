//! The process at the other end of a connection, and whether it still runs.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::DeviceProcess;

/// The process that opened a connection.
pub(super) struct Peer {
    /// The process number as seen from this process. `None` if the process cannot be seen from here, as from another
    /// container.
    pub(super) pid: Option<u32>,
    /// The process's user when it connected.
    pub(super) uid: u32,
    /// Becomes readable when the process has exited. It cannot mean a later process of the same number.
    pub(super) exit: Option<OwnedFd>,
}

impl Peer {
    /// Identifies the process at the other end of `connection`, and opens a pidfd to watch for its exit.
    ///
    /// # Errors
    /// The process can be seen from here, and its exit cannot be watched.
    pub(super) fn of(connection: BorrowedFd<'_>) -> Result<Self, Errno> {
        let credentials = credentials(connection)?;
        let pid = Pid::from_raw(credentials.pid);
        let exit = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            None | Some(Err(Errno::SRCH)) => None,
            Some(exit) => Some(exit?),
        };
        // The number may have gone to another process before the pidfd was opened. But then the connection has closed.
        let exit = exit.filter(|_| is_open(connection));
        let pid = exit.as_ref().and(pid).map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        Ok(Self { pid, uid: credentials.uid, exit })
    }
}

/// Returns whether process `pid` still holds memory of the device, by the driver's list. `None` if the list proves
/// nothing: there is no list, or it lacks even this process (`own`), as in some containers.
pub(super) fn is_listed(processes: Option<&[DeviceProcess]>, own: u32, pid: u32) -> Option<bool> {
    let lists = |pid| processes.map(|processes| processes.iter().any(|process| process.pid == pid));
    lists(own).filter(|&trusted| trusted).and_then(|_| lists(pid))
}

/// Returns whether the other end still has the connection open, perhaps only for reading. A process may be gone only
/// once all its descriptors are closed.
fn is_open(connection: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && !polled[0].revents().contains(PollFlags::HUP)
}

/// Reads `SO_PEERCRED`. A process that cannot be seen from here has number 0, which rustix's own function cannot
/// represent.
pub(super) fn credentials(connection: BorrowedFd<'_>) -> Result<libc::ucred, Errno> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a `ucred` and its size, which the call fills in and does not keep.
    let result = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the struct holds three integers, for which any bits are valid, and was zeroed before the call wrote them.
    Ok(unsafe { credentials.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_is_this_process_while_it_is_connected() {
        let (a, b) = UnixStream::pair().unwrap();
        let peer = Peer::of(a.as_fd()).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(std::process::id()), rustix::process::getuid().as_raw()));
        assert!(peer.exit.is_some());
        b.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(Peer::of(a.as_fd()).unwrap().exit.is_some(), "it runs, and may read");
        drop(b);
        let peer = Peer::of(a.as_fd()).unwrap();
        assert!(peer.pid.is_none() && peer.exit.is_none());
    }

    #[test]
    fn a_list_without_this_process_proves_nothing() {
        let process = |pid| DeviceProcess { pid, bytes: None };
        assert_eq!(is_listed(None, 1, 2), None);
        assert_eq!(is_listed(Some(&[]), 1, 2), None);
        assert_eq!(is_listed(Some(&[process(2)]), 1, 2), None);
        assert_eq!(is_listed(Some(&[process(1)]), 1, 2), Some(false));
        assert_eq!(is_listed(Some(&[process(1), process(2)]), 1, 2), Some(true));
    }
}
