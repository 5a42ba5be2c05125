//! The registry of allocators: one for each kind of device.

use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

use super::{Allocator, CpuAllocator};
use crate::{AllocatorError, DeviceKind};

/// A registry with one allocator for each kind of device: c10's `SetAllocator` and `GetAllocator`.
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::{AllocatorRegistry, CpuAllocator, DeviceKind};
///
/// let registry = AllocatorRegistry::new();
/// assert!(registry.register(DeviceKind::Cpu, Arc::new(CpuAllocator::new().with_junk()), 1));
/// assert!(!registry.register(DeviceKind::Cpu, Arc::new(CpuAllocator::new()), 0)); // the first one stays
/// assert!(registry.allocator(DeviceKind::Cuda).is_err());
/// ```
#[derive(Default)]
pub struct AllocatorRegistry {
    entries: RwLock<[Option<Entry>; DeviceKind::ALL.len()]>,
}

struct Entry {
    allocator: Arc<dyn Allocator>,
    priority: u8,
}

static GLOBAL: LazyLock<AllocatorRegistry> = LazyLock::new(|| {
    let registry = AllocatorRegistry::new();
    registry.register(DeviceKind::Cpu, Arc::new(CpuAllocator::new()), 0);
    registry
});

impl AllocatorRegistry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the process's registry. It begins with a [`CpuAllocator`] of priority 0.
    pub fn global() -> &'static Self {
        &GLOBAL
    }

    /// Registers `allocator` for `kind`, unless one of a higher priority is registered. Returns whether it did.
    ///
    /// Memory that the previous allocator returned stays valid: its deleters keep what they need.
    pub fn register(&self, kind: DeviceKind, allocator: Arc<dyn Allocator>, priority: u8) -> bool {
        let mut entries = self.entries.write();
        let entry = &mut entries[kind as usize];
        if entry.as_ref().is_some_and(|entry| entry.priority > priority) {
            return false;
        }
        let replaced = entry.replace(Entry { allocator, priority });
        drop(entries);
        drop(replaced); // with no lock held: this may run an allocator's destructor
        true
    }

    /// Returns the allocator for `kind`.
    ///
    /// # Errors
    /// [`AllocatorError::NotRegistered`] if there is none.
    pub fn allocator(&self, kind: DeviceKind) -> Result<Arc<dyn Allocator>, AllocatorError> {
        match &self.entries.read()[kind as usize] {
            Some(entry) => Ok(Arc::clone(&entry.allocator)),
            None => Err(AllocatorError::NotRegistered { kind }),
        }
    }
}
