//! Frees within host functions. A driver refuses calls from there, and a thread that waits for that very function may
//! hold the allocator's lock. So the free is noted, and the next thread that calls the allocator makes it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tenure_alloc::{Address, AllocError};

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The number of threads that run a host function: one shared word, which is cheaper to read than a thread-local.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Marks this thread as running work of a stream, such as a host function, while it lives.
pub(crate) struct InHostFunction {
    /// Whether the thread ran a host function already: work can end other work, as when a running function drops that
    /// of an abandoned stream.
    outer: bool,
}

impl InHostFunction {
    pub(crate) fn enter() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self { outer: IN_HOST_FUNCTION.replace(true) }
    }
}

impl Drop for InHostFunction {
    fn drop(&mut self) {
        IN_HOST_FUNCTION.set(self.outer);
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether this thread runs a host function.
#[inline]
pub(crate) fn in_host_function() -> bool {
    // A thread always sees its own increment.
    RUNNING.load(Ordering::Relaxed) > 0 && IN_HOST_FUNCTION.get()
}

/// Addresses that could not be freed when the caller asked, in order.
#[derive(Default)]
pub(crate) struct DeferredFrees {
    any: AtomicBool,
    addresses: Mutex<Vec<Address>>,
}

impl DeferredFrees {
    /// Notes that `address` is to be freed later.
    #[cold]
    pub(crate) fn push(&self, address: Address) {
        let mut addresses = self.addresses.lock();
        addresses.push(address);
        self.any.store(true, Ordering::Release);
    }

    /// Frees the noted addresses, unless this thread runs a host function itself. Costs one load if there are none.
    #[inline]
    pub(crate) fn settle(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
        if self.any.load(Ordering::Acquire) && !in_host_function() {
            self.settle_all(free);
        }
    }

    #[cold]
    fn settle_all(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
        for address in self.take() {
            // No caller is left to report a double free to. A driver that fails may work later.
            if let Err(AllocError::Backing(_)) = free(address) {
                self.push(address);
            }
        }
    }

    /// Takes the addresses, so that the lock is not held while they are freed: a free can run a host function, which
    /// frees.
    fn take(&self) -> Vec<Address> {
        let mut addresses = self.addresses.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut addresses)
    }
}
