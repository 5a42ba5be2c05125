//! Descriptors that end with their process even if it was forked. A forked child inherits all descriptors of its
//! parent, and so would keep a daemon's socket, lock and connections alive after the daemon's death.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// All open descriptors of this kind.
static OPEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

thread_local! {
    /// Locked while this thread forks.
    static FORKING: Cell<Option<MutexGuard<'static, Vec<RawFd>>>> = const { Cell::new(None) };
}

/// A descriptor that a forked child closes at once.
pub(super) struct Unforked(OwnedFd);

impl Unforked {
    /// Opens a descriptor with `open`. No thread can fork meanwhile.
    pub(super) fn new<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the functions belong to a library that stays loaded. If registration fails for want of memory,
            // children keep the descriptors.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
        });
        let mut all = all();
        let descriptor = open()?;
        all.push(descriptor.as_raw_fd());
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
        all().retain(|&descriptor| descriptor != own);
    }
}

fn all() -> MutexGuard<'static, Vec<RawFd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before_fork() {
    // A thread that is ending does not fork.
    let _ = FORKING.try_with(|forking| forking.set(Some(all())));
}

extern "C" fn after_fork() {
    let _ = FORKING.try_with(Cell::take);
}

extern "C" fn after_fork_in_child() {
    if let Ok(Some(mut all)) = FORKING.try_with(Cell::take) {
        // SAFETY: their owners are on the stacks of threads that do not exist in the child.
        all.drain(..).for_each(|descriptor| drop(unsafe { OwnedFd::from_raw_fd(descriptor) }));
    }
}
