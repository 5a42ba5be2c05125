//! Scopes in which host memory is the default of another library's tensors on the CPU.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_core::AtFork;

use super::HostMemory;

/// The number of scopes that are entered.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// Whether this process is a child of one that entered a scope.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// A scope in which another library's tensors on the CPU lie in [`HostMemory`], on all threads that chose no other
/// allocator. A forked child is in no scope.
#[must_use = "the scope ends when this is dropped"]
pub struct OnHostMemory(());

impl OnHostMemory {
    /// Enters a scope. Returns `None` if the system gives no address space.
    pub fn enter() -> Option<Self> {
        static LISTENING: Once = Once::new();
        HostMemory::installed()?;
        LISTENING.call_once(|| {
            let handlers = AtFork {
                before: || (),
                in_parent: || (),
                in_child: || {
                    ENTERED.store(0, Ordering::Relaxed);
                    IS_FORKED.store(true, Ordering::Relaxed);
                },
            };
            handlers.register();
        });
        ENTERED.fetch_add(1, Ordering::Relaxed);
        Some(Self(()))
    }

    /// Returns whether this process is in a scope.
    pub fn is_entered() -> bool {
        ENTERED.load(Ordering::Relaxed) > 0
    }
}

impl Drop for OnHostMemory {
    fn drop(&mut self) {
        // In a forked child, the count is 0 already.
        let _ = ENTERED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |entered| entered.checked_sub(1));
    }
}

/// Returns whether this process is a child of one that entered [`OnHostMemory`]. In such a child, other threads of the
/// parent may hold locks of host memory for ever.
pub fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}
