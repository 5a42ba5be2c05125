//! Frees within host functions. A driver refuses calls from there, and a lock of an allocator may be held by a thread
//! that waits for just that function: so the free is noted, and made by the next thread that comes by.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tenure_alloc::{Address, AllocError};

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// How many threads run a host function: one word, which is cheaper to look at than a thread's own.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// While it lives, this thread runs work of a stream, such as a host function.
pub(crate) struct InHostFunction {
    /// Work can end work: a function of an abandoned stream is dropped by the one that runs.
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

/// Whether this thread runs a host function.
#[inline]
pub(crate) fn in_host_function() -> bool {
    // A thread sees its own increment, whatever others see.
    RUNNING.load(Ordering::Relaxed) > 0 && IN_HOST_FUNCTION.get()
}

/// Addresses that could not be freed where that was asked for, in order.
#[derive(Default)]
pub(crate) struct DeferredFrees {
    any: AtomicBool,
    addresses: Mutex<Vec<Address>>,
}

impl DeferredFrees {
    /// Notes that `address` is to be freed.
    #[cold]
    pub(crate) fn push(&self, address: Address) {
        let mut addresses = self.addresses.lock();
        addresses.push(address);
        self.any.store(true, Ordering::Release);
    }

    /// Frees what was noted, unless this thread runs a host function itself. Costs a load if there is nothing.
    #[inline]
    pub(crate) fn settle(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
        if self.any.load(Ordering::Acquire) && !in_host_function() {
            self.settle_all(free);
        }
    }

    #[cold]
    fn settle_all(&self, free: impl Fn(Address) -> Result<(), AllocError>) {
        for address in self.take() {
            // Nobody is there to hear of an address freed twice. A driver that fails may work later.
            if let Err(AllocError::Backing(_)) = free(address) {
                self.push(address);
            }
        }
    }

    /// Without the lock held while they are freed: a free can run a host function, which frees.
    fn take(&self) -> Vec<Address> {
        let mut addresses = self.addresses.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut addresses)
    }
}
