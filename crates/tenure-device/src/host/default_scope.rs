//! Scopes in which host memory is the default of another library's tensors on the CPU.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::HostMemory;

/// The number of scopes that are entered.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// A scope in which another library's tensors on the CPU lie in [`HostMemory`], on all threads that chose no other
/// allocator. A forked child is in no scope of its parent.
#[must_use = "the scope ends when this is dropped"]
pub struct OnHostMemory {
    /// The process that entered.
    process: u32,
}

impl OnHostMemory {
    /// Enters a scope. Returns `None` if the system gives no address space.
    pub fn enter() -> Option<Self> {
        HostMemory::installed()?;
        ENTERED.fetch_add(1, Ordering::Relaxed);
        Some(Self { process: std::process::id() })
    }

    /// Returns whether this process is in a scope.
    pub fn is_entered() -> bool {
        ENTERED.load(Ordering::Relaxed) > 0
    }
}

impl Drop for OnHostMemory {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            ENTERED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Leaves all scopes, in a child that was just forked.
pub(super) fn leave_all() {
    ENTERED.store(0, Ordering::Relaxed);
}
