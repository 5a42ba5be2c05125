//! Descriptors that forked children close at once. A forked child inherits all descriptors of its parent, and so would
//! keep a daemon's socket, lock and connections alive after the daemon's death.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The numbers of all open [`Unforked`] descriptors.
static OPEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

thread_local! {
    /// The lock on [`OPEN`], held while this thread forks.
    static FORKING: Cell<Option<MutexGuard<'static, Vec<RawFd>>>> = const { Cell::new(None) };
}

/// A descriptor that a forked child closes at once.
#[derive(Debug)]
pub struct Unforked(OwnedFd);

impl Unforked {
    /// Opens a descriptor with `open`. No thread can fork meanwhile.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn new<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the functions belong to a library that stays loaded. If registration fails for want of memory,
            // children keep the descriptors.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
        });
        let mut descriptors = open_descriptors();
        let descriptor = open()?;
        descriptors.push(descriptor.as_raw_fd());
        Ok(Self(descriptor))
    }
}

impl AsFd for Unforked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        let own = self.0.as_raw_fd();
        open_descriptors().retain(|&descriptor| descriptor != own);
    }
}

fn open_descriptors() -> MutexGuard<'static, Vec<RawFd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before_fork() {
    // This fails only in a thread that is ending, and such a thread does not fork.
    let _ = FORKING.try_with(|forking| forking.set(Some(open_descriptors())));
}

extern "C" fn after_fork() {
    let _ = FORKING.try_with(Cell::take);
}

extern "C" fn after_fork_in_child() {
    if let Ok(Some(mut descriptors)) = FORKING.try_with(Cell::take) {
        for descriptor in descriptors.drain(..) {
            // SAFETY: its owner is on the stack of a thread that does not exist in the child.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
}
