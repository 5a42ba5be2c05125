use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Allocator;
use crate::Device;

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Allocator>>> = const { RefCell::new(None) };
}

/// Gives the calling thread's tensors on one device memory of another allocator than the registered one, while it lives.
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
    previous: Option<Arc<dyn Allocator>>,
    /// It belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl AllocatorScope {
    /// Memory comes from `allocator`, on its device, from now on.
    pub fn enter(allocator: Arc<dyn Allocator>) -> Self {
        Self::replace(Some(allocator))
    }

    /// The calling thread's own allocator for a device, if it has one.
    #[inline]
    pub fn current(device: Device) -> Option<Arc<dyn Allocator>> {
        let of_device = |allocator: &&Arc<dyn Allocator>| allocator.device() == device;
        CURRENT.try_with(|current| current.borrow().as_ref().filter(of_device).cloned()).ok().flatten()
    }

    pub(crate) fn any() -> Option<Arc<dyn Allocator>> {
        // A thread that ends has none any more.
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    pub(crate) fn replace(allocator: Option<Arc<dyn Allocator>>) -> Self {
        let previous = CURRENT.try_with(|current| current.replace(allocator)).ok().flatten();
        Self { previous, thread: PhantomData }
    }
}

impl Drop for AllocatorScope {
    fn drop(&mut self) {
        let left = CURRENT.try_with(|current| current.replace(self.previous.take()));
        drop(left); // with nothing borrowed: this may run an allocator's destructor
    }
}
