//! The allocators that a thread uses instead of the registered ones.

use std::cell::RefCell;
use std::iter;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Allocator;
use crate::Device;

thread_local! {
    static CURRENT: RefCell<Option<Arc<ChosenAllocator>>> = const { RefCell::new(None) };
}

/// An allocator that a thread chose, and those that it chose before.
pub(crate) struct ChosenAllocator {
    allocator: Arc<dyn Allocator>,
    before: Option<Arc<ChosenAllocator>>,
}

/// A scope in which the calling thread's tensors on one device get memory from another allocator than the registered
/// one. Tensors on other devices are not affected.
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::{AllocatorScope, CpuAllocator, Device};
///
/// assert!(AllocatorScope::current(Device::CPU).is_none());
/// let scope = AllocatorScope::enter(Arc::new(CpuAllocator::new()));
/// assert!(AllocatorScope::current(Device::CPU).is_some());
/// drop(scope);
/// assert!(AllocatorScope::current(Device::CPU).is_none());
/// ```
#[must_use = "it holds for as long as it lives"]
pub struct AllocatorScope {
    previous: Option<Arc<ChosenAllocator>>,
    /// Makes the scope belong to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl AllocatorScope {
    /// Enters a scope: memory on the allocator's device comes from `allocator` from now on.
    pub fn enter(allocator: Arc<dyn Allocator>) -> Self {
        Self::replace(Some(Arc::new(ChosenAllocator { allocator, before: Self::chosen() })))
    }

    /// Returns the calling thread's own allocator for a device, if it has one.
    #[inline]
    pub fn current(device: Device) -> Option<Arc<dyn Allocator>> {
        CURRENT
            .try_with(|current| {
                let current = current.borrow();
                let mut all = iter::successors(current.as_deref(), |chosen| chosen.before.as_deref());
                all.find(|chosen| chosen.allocator.device() == device).map(|chosen| Arc::clone(&chosen.allocator))
            })
            .ok()
            .flatten()
    }

    /// Returns all allocators that the calling thread chose.
    pub(crate) fn chosen() -> Option<Arc<ChosenAllocator>> {
        // A thread that is ending has none any more.
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    pub(crate) fn replace(chosen: Option<Arc<ChosenAllocator>>) -> Self {
        let previous = CURRENT.try_with(|current| current.replace(chosen)).ok().flatten();
        Self { previous, thread: PhantomData }
    }
}

impl Drop for AllocatorScope {
    fn drop(&mut self) {
        let left = CURRENT.try_with(|current| current.replace(self.previous.take()));
        drop(left); // with nothing borrowed: this may run an allocator's destructor
    }
}
