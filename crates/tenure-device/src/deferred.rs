//! Frees that are called in a host function, which a stream runs on the CPU. A driver refuses calls from there, and a
//! thread that waits for the function may hold the allocator's lock. So the address is stored, and the next thread that
//! calls the allocator frees it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tenure_alloc::{Address, AllocError};

thread_local! {
    /// Whether this thread runs a host function.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The number of threads that run a host function: one shared word, which is cheaper to read than a thread-local.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Marks this thread as running work of a stream, such as a host function, while it lives.
pub(crate) struct InHostFunction {
    /// Whether the thread already ran a host function: a running function can drop the work of an abandoned stream,
    /// which then runs inside it.
    outer: bool,
}

impl InHostFunction {
    /// Marks this thread until the returned value is dropped.
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

/// The addresses that are still to be freed, in the order of the calls.
#[derive(Default)]
pub(crate) struct DeferredFrees {
    /// Whether there are addresses: read without the lock.
    has_addresses: AtomicBool,
    addresses: Mutex<Vec<Address>>,
}

impl DeferredFrees {
    /// Stores `address`, to be freed by [`free_deferred`](Self::free_deferred).
    #[cold]
    pub(crate) fn push(&self, address: Address) {
        let mut addresses = self.addresses.lock();
        addresses.push(address);
        self.has_addresses.store(true, Ordering::Release);
    }

    /// Frees the stored addresses with `free`, unless this thread runs a host function itself. Costs one load if there
    /// are none.
    #[inline]
    pub(crate) fn free_deferred(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
        if self.has_addresses.load(Ordering::Acquire) && !in_host_function() {
            self.free_all(free);
        }
    }

    #[cold]
    fn free_all(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
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
        self.has_addresses.store(false, Ordering::Release);
        std::mem::take(&mut addresses)
    }
}
