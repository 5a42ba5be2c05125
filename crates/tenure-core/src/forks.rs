//! Locks and callbacks that make `fork` safe: a forked child never finds a lock that another thread held.
//!
//! A forked child inherits the state of all locks, but only the thread that forked. A lock that another thread held
//! stays locked there for ever. So a lock that children take, too, is an [`Unforked`]: while a thread holds one, no
//! other thread can fork.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock that threads hold for reading while no fork may interrupt them, and that the forking thread holds for
/// writing. It is a lock of the standard library, whose state is one word. Other libraries keep waiting threads in a
/// table that has locks itself.
static FORKS: RwLock<Vec<AtFork>> = RwLock::new(Vec::new());

thread_local! {
    /// The write lock, held while this thread forks.
    static FORKING: Cell<Option<RwLockWriteGuard<'static, Vec<AtFork>>>> = const { Cell::new(None) };
}

/// Functions that the forking thread calls when the process forks, while no [`Unforked`] is locked. They lock with
/// [`Unforked::lock_forking`].
#[derive(Clone, Copy, Debug)]
pub struct AtFork {
    /// Called before the fork.
    pub before: fn(),
    /// Called after the fork, in the parent, even if the system refused to make a child.
    pub in_parent: fn(),
    /// Called after the fork, in the child. It may do only what is allowed between fork and exec.
    pub in_child: fn(),
}

impl AtFork {
    /// Has the functions called at every fork from now on.
    pub fn register(self) {
        listen();
        FORKS.write().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

/// A mutex that no other thread holds when this process forks, so that a child can lock it.
///
/// It must be the innermost lock: a thread that holds one takes no other lock and does not fork.
#[derive(Debug, Default)]
pub struct Unforked<T>(Mutex<T>);

/// A guard of a locked [`Unforked`].
#[derive(Debug)]
pub struct UnforkedGuard<'a, T> {
    /// Released first, as the first field.
    value: MutexGuard<'a, T>,
    _section: Section,
}

/// A guard that keeps the process from forking while it lives.
pub(crate) type Section = RwLockReadGuard<'static, Vec<AtFork>>;

impl<T> Unforked<T> {
    /// Creates an unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread holds the mutex, and locks it. A panic of a thread that held it is ignored.
    pub fn lock(&self) -> UnforkedGuard<'_, T> {
        let section = section();
        UnforkedGuard { value: self.lock_forking(), _section: section }
    }

    /// Locks the mutex in functions of [`AtFork`], while they are called.
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

/// Returns a guard that keeps other threads from forking until it is dropped. A thread that has one must not take
/// another.
pub(crate) fn section() -> Section {
    listen();
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the handlers for forks, once.
#[inline]
fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        // SAFETY: the handlers are functions of a library that stays loaded. If the system refuses them for want of
        // memory, forks go unnoticed.
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
                // SAFETY: the child only locks and exits. The alarm ends a child that waits for ever.
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
