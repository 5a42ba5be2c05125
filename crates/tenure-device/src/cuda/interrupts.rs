//! The program's action on interrupts, which NVRTC changes.

use std::{mem, ptr};

use parking_lot::Mutex;

/// Keeps the program's action on interrupts while NVRTC compiles.
///
/// NVRTC has a handler of its own then. It brings the old one back with other flags, by which an interrupt no longer ends
/// waits: after that, Ctrl-C would not end a Python program that waits for a thread.
pub(super) struct KeptInterrupts(());

/// The compilations that run, and the action before the first of them.
static KEPT: Mutex<(usize, Option<libc::sigaction>)> = Mutex::new((0, None));

impl KeptInterrupts {
    pub(super) fn new() -> Self {
        let (running, kept) = &mut *KEPT.lock();
        if *running == 0 {
            *kept = action();
        }
        *running += 1;
        Self(())
    }
}

impl Drop for KeptInterrupts {
    fn drop(&mut self) {
        let (running, kept) = &mut *KEPT.lock();
        *running -= 1;
        if *running > 0 {
            return;
        }
        // The program may have set another handler meanwhile.
        if let (Some(kept), Some(now)) = (kept.take(), action())
            && kept.sa_sigaction == now.sa_sigaction
        {
            // SAFETY: the action is one that the program has set. No signal between the two calls is lost.
            unsafe { libc::sigaction(libc::SIGINT, &kept, ptr::null_mut()) };
        }
    }
}

/// Returns the program's action on interrupts.
fn action() -> Option<libc::sigaction> {
    // SAFETY: an action is numbers and a pointer that may be null.
    let mut action = unsafe { mem::zeroed() };
    // SAFETY: the place is writable, and no action is set.
    let found = unsafe { libc::sigaction(libc::SIGINT, ptr::null(), &mut action) };
    (found == 0).then_some(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handle(_: libc::c_int) {}

    /// Sets a handler, with flags or none.
    fn set(handler: libc::sighandler_t, flags: libc::c_int) {
        let mut action = action().unwrap();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing, or the system's default one.
        assert_eq!(unsafe { libc::sigaction(libc::SIGINT, &action, ptr::null_mut()) }, 0);
    }

    #[test]
    fn changed_flags_are_brought_back_and_another_handler_stays() {
        let handler = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
        set(handler, 0);
        let first = KeptInterrupts::new();
        let second = KeptInterrupts::new();
        set(handler, libc::SA_RESTART);
        drop(first);
        assert_ne!(action().unwrap().sa_flags & libc::SA_RESTART, 0, "another compilation runs");
        drop(second);
        assert_eq!(action().unwrap().sa_flags & libc::SA_RESTART, 0);
        let kept = KeptInterrupts::new();
        set(libc::SIG_DFL, 0);
        drop(kept);
        assert_eq!(action().unwrap().sa_sigaction, libc::SIG_DFL);
    }
}
