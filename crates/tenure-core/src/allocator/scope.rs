use std::cell::RefCell;
use std::iter;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Allocator;
use crate::Device;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Chosen>>> = const { RefCell::new(None) };
}

/// An allocator that a thread chose, and those that it had chosen before.
pub(crate) struct Chosen {
    allocator: Arc<dyn Allocator>,
    before: Option<Arc<Chosen>>,
}

/// Gives the calling thread's tensors on one device memory of another allocator than the registered one, while it lives.
/// Those of other devices stay as they are.
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
    previous: Option<Arc<Chosen>>,
    /// It belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl AllocatorScope {
    /// Memory comes from `allocator`, on its device, from now on.
    pub fn enter(allocator: Arc<dyn Allocator>) -> Self {
        Self::replace(Some(Arc::new(Chosen { allocator, before: Self::chosen() })))
    }

    /// The calling thread's own allocator for a device, if it has one.
    #[inline]
    pub fn current(device: Device) -> Option<Arc<dyn Allocator>> {
        let find = |current: &RefCell<Option<Arc<Chosen>>>| {
            let current = current.borrow();
            let mut all = iter::successors(current.as_deref(), |chosen| chosen.before.as_deref());
            all.find(|chosen| chosen.allocator.device() == device).map(|chosen| Arc::clone(&chosen.allocator))
        };
        CURRENT.try_with(find).ok().flatten()
    }

    /// All that it chose.
    pub(crate) fn chosen() -> Option<Arc<Chosen>> {
        // A thread that ends has none any more.
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    pub(crate) fn replace(chosen: Option<Arc<Chosen>>) -> Self {
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
