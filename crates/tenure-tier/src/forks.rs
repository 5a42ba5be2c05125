//! Files that are mapped are shared with forked children, unlike all other memory of a process: what a child writes into a
//! tensor would be written into its parent's. So a child maps them anew, as copies that are made when they are written to.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Where a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    start: usize,
    bytes: usize,
    file: RawFd,
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

thread_local! {
    /// Locked while this thread forks.
    static FORKING: Cell<Option<MutexGuard<'static, Vec<Shared>>>> = const { Cell::new(None) };
}

/// Says that all of a file's first `bytes` bytes are mapped there. Whoever unmaps them [forgets](forget) them first.
pub(crate) fn remember(start: *mut u8, bytes: usize, file: RawFd) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions of a library that stays loaded. Refused for want of memory, children share what is mapped.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
    });
    all().push(Shared { start: start.addr(), bytes, file });
}

/// Says that nothing is mapped there any more.
pub(crate) fn forget(start: *mut u8) {
    all().retain(|shared| shared.start != start.addr());
}

fn all() -> MutexGuard<'static, Vec<Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before_fork() {
    // A thread that is ending does not fork.
    let _ = FORKING.try_with(|forking| forking.set(Some(all())));
}

extern "C" fn after_fork() {
    let _ = FORKING.try_with(Cell::take);
}

extern "C" fn after_fork_in_child() {
    let Ok(Some(mut all)) = FORKING.try_with(Cell::take) else { return };
    for Shared { start, bytes, file } in all.iter().copied() {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        let start = ptr::with_exposed_provenance_mut(start);
        // SAFETY: in the place of a mapping of the same file, as long as that; what was there is there again, and the only
        // thread of the child is here. A call of the system alone, as is allowed between fork and exec.
        let mapped = unsafe { libc::mmap(start, bytes, access, flags, file, 0) };
        if mapped == libc::MAP_FAILED {
            // Rather end than write to what is the parent's.
            // SAFETY: ends the child.
            unsafe { libc::abort() }
        }
    }
    // They are the child's own now, as all its memory: what it writes is not lost when it forks.
    all.clear();
}
