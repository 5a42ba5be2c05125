//! The context of a thread's allocations, which other threads can enter.

use std::sync::Arc;

use crate::allocator::ChosenAllocator;
use crate::purpose::PurposeParts;
use crate::site::{SiteGuard, ThreadSite};
use crate::{AllocatorScope, Purpose};

/// The context in which a thread allocates: its [`Purpose`], its [`Site`](crate::Site), and its
/// [allocators](AllocatorScope). Threads that work for another thread enter that thread's context.
///
/// ```
/// use tenure_core::{Context, KeyId, Purpose, Tag};
///
/// let _purpose = Purpose::enter(Tag::Input, KeyId::NONE);
/// let context = Context::capture();
/// let there = std::thread::spawn(move || {
///     let _entered = context.enter();
///     Purpose::current().0
/// });
/// assert!(matches!(there.join(), Ok(Tag::Input)));
/// ```
#[derive(Clone)]
pub struct Context {
    purpose: PurposeParts,
    here: ThreadSite,
    allocators: Option<Arc<ChosenAllocator>>,
}

/// A guard that keeps a thread in another context. When it is dropped, the thread is back in its own.
#[must_use = "it holds for as long as it lives"]
pub struct ContextGuard {
    _purpose: Purpose,
    _site: SiteGuard,
    /// None if neither context has an allocator.
    _allocator: Option<AllocatorScope>,
}

impl Context {
    /// Returns the calling thread's context.
    pub fn capture() -> Self {
        Self { purpose: Purpose::parts(), here: ThreadSite::current(), allocators: AllocatorScope::chosen() }
    }

    /// Returns the context for threads among which one operation is divided. They run in any order, so all their
    /// allocations without a key of their own share one key: that of a part.
    #[must_use]
    pub fn divided(self) -> Self {
        Self { here: self.here.part(), ..self }
    }

    /// Puts the calling thread in this context, until the guard is dropped.
    pub fn enter(&self) -> ContextGuard {
        let is_same = self.allocators.is_none() && AllocatorScope::chosen().is_none();
        ContextGuard {
            _purpose: Purpose::resume(self.purpose),
            _site: self.here.resume(),
            _allocator: (!is_same).then(|| AllocatorScope::replace(self.allocators.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuAllocator, Device, KeyId, Name, Site, Tag};

    #[test]
    fn a_context_is_a_threads_purpose_site_and_allocator() {
        let _allocator = AllocatorScope::enter(Arc::new(CpuAllocator::new()));
        let _purpose = Purpose::enter(Tag::Workspace, KeyId::NONE);
        let _module = Site::enter_module(Name::new("conv1"));
        let context = Context::capture().divided();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let entered = context.enter();
                assert!(AllocatorScope::current(Device::CPU).is_some());
                let (tag, key) = Purpose::identify();
                assert_eq!((tag, key.key().unwrap().to_string()), (Tag::Workspace, "conv1/empty/part#0".to_owned()));
                drop(entered);
                assert!(AllocatorScope::current(Device::CPU).is_none());
                assert_eq!(Purpose::identify(), (Tag::Unknown, KeyId::NONE));
            });
        });
    }

    #[test]
    fn a_context_without_an_allocator_hides_the_threads_own() {
        let outside = Context::capture();
        let _allocator = AllocatorScope::enter(Arc::new(CpuAllocator::new()));
        let entered = outside.enter();
        assert!(AllocatorScope::current(Device::CPU).is_none());
        drop(entered);
        assert!(AllocatorScope::current(Device::CPU).is_some());
    }
}
