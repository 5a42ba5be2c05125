//! The process at the other end of a connection, and whether it still runs.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::wait;

/// The process that opened a connection.
#[derive(Debug)]
pub struct Peer {
    /// The process number as seen from this process. `None` if the process cannot be seen from here, as from another
    /// container.
    pub pid: Option<u32>,
    /// The process's user when it connected.
    pub uid: u32,
    /// Becomes readable when the process has exited. It cannot mean a later process of the same number.
    pub exit: Option<OwnedFd>,
}

impl Peer {
    /// Identifies the process at the other end of `connection`, and opens a pidfd to watch for its exit.
    ///
    /// # Errors
    /// The process can be seen from here, and its exit cannot be watched.
    pub fn of(connection: BorrowedFd<'_>) -> Result<Self, Errno> {
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

/// Returns whether the other end still has the connection open, perhaps only for reading. A process may be gone only
/// once all its descriptors are closed.
fn is_open(connection: BorrowedFd<'_>) -> bool {
    wait(connection, PollFlags::empty(), Duration::ZERO).is_ok_and(|found| !found.contains(PollFlags::HUP))
}

/// Reads `SO_PEERCRED`. A process that cannot be seen from here has number 0, which rustix's own function cannot
/// represent.
///
/// # Errors
/// The descriptor is not a connected socket.
pub fn credentials(connection: BorrowedFd<'_>) -> Result<libc::ucred, Errno> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a `ucred` and its size, which the call fills in and does not keep.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
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
