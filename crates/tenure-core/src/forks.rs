//! What forks must not find half done.
//!
//! A forked child has all locks as they were, and of all threads the one that forked: what another thread held stays held
//! there for ever. So locks that children take, too, are held *unforked*: while anybody holds one, nobody forks.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for reading by threads that no fork is to interrupt, and for writing by the one that forks. Of the standard
/// library, whose locks are words of their own: others keep waiting threads in a table that has locks itself.
static FORKS: RwLock<Vec<AtFork>> = RwLock::new(Vec::new());

thread_local! {
    /// Held while this thread forks.
    static FORKING: Cell<Option<RwLockWriteGuard<'static, Vec<AtFork>>>> = const { Cell::new(None) };
}

/// Functions that are called when the process forks, by the thread that does, while no [`Unforked`] is locked. They lock
/// with [`Unforked::lock_forking`].
#[derive(Clone, Copy, Debug)]
pub struct AtFork {
    /// Before.
    pub before: fn(),
    /// Afterwards, in the parent. Also if there is no child, as the system refused.
    pub in_parent: fn(),
    /// Afterwards, in the child. Nothing but what may be called between fork and exec.
    pub in_child: fn(),
}

impl AtFork {
    /// They are called from now on.
    pub fn register(self) {
        listen();
        FORKS.write().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

/// A mutex that no other thread holds when this process forks, so that a child can lock it.
///
/// It is the innermost: whoever holds one locks no other and does not fork.
#[derive(Debug, Default)]
pub struct Unforked<T>(Mutex<T>);

/// What is locked.
#[derive(Debug)]
pub struct UnforkedGuard<'a, T> {
    /// Released first.
    value: MutexGuard<'a, T>,
    _section: Section,
}

/// Keeps the process from forking while it lives.
pub(crate) type Section = RwLockReadGuard<'static, Vec<AtFork>>;

impl<T> Unforked<T> {
    /// One around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until nobody else holds it. A panic of somebody who did is none of ours.
    pub fn lock(&self) -> UnforkedGuard<'_, T> {
        let section = section();
        UnforkedGuard { value: self.lock_forking(), _section: section }
    }

    /// The same for functions of [`AtFork`], while they are called.
    pub fn lock_forking(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for UnforkedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for UnforkedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Until it is dropped, nobody forks. Whoever has one takes no other.
pub(crate) fn section() -> Section {
    listen();
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Listens to forks.
#[inline]
fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        // SAFETY: functions of a library that stays loaded. Refused for want of memory, forks are not heard of.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child))
        };
    });
}

extern "C" fn before() {
    // A thread that is ending does not fork.
    let _ = FORKING.try_with(|forking| {
        let all = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|told| (told.before)());
        forking.set(Some(all));
    });
}

extern "C" fn in_parent() {
    if let Ok(Some(all)) = FORKING.try_with(Cell::take) {
        all.iter().for_each(|told| (told.in_parent)());
    }
}

extern "C" fn in_child() {
    if let Ok(Some(all)) = FORKING.try_with(Cell::take) {
        all.iter().for_each(|told| (told.in_child)());
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::{ptr, thread};

    use super::*;

    #[test]
    fn a_child_never_has_a_lock_that_another_thread_held() {
        static COUNT: Unforked<u64> = Unforked::new(0);
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !IS_OVER.load(Relaxed) {
                        *COUNT.lock() += 1;
                    }
                });
            }
            for _ in 0..50 {
                // SAFETY: the child locks, and ends; one that waits for ever is ended.
                let status = unsafe {
                    match libc::fork() {
                        0 => {
                            libc::alarm(10);
                            *COUNT.lock() += 1;
                            libc::_exit(0)
                        }
                        child => {
                            let mut status = 1;
                            libc::waitpid(child, ptr::from_mut(&mut status), 0);
                            status
                        }
                    }
                };
                assert_eq!(status, 0);
            }
            IS_OVER.store(true, Relaxed);
        });
    }
}
