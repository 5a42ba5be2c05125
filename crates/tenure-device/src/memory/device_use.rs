//! The holders of a device's memory.

use serde::Serialize;
use tenure_alloc::{Backing, MemoryInfo};

use super::{DeviceMemory, MemoryError};
use crate::{DeviceBacking, DeviceProcess, LibraryUse};

/// The memory of a device, divided among its holders. All bytes together are `total_bytes`, unless another thread or
/// process allocates or frees while they are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// The device's memory.
    pub total_bytes: u64,
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// Bytes of live blocks of this process's allocator.
    pub allocated_bytes: u64,
    /// Bytes that the allocator holds beside them. Other libraries of this process get these when they find no room.
    pub cached_bytes: u64,
    /// Other libraries of this process, the largest first. Empty if their allocations are not
    /// [seen](crate::cuda::interposition).
    pub libraries: Vec<LibraryUse>,
    /// Bytes that this process holds beside all these: its context, the code of kernels, and what is not seen. `None`
    /// where the system does not tell what a process holds: these bytes are then a part of `unnamed_bytes`.
    pub context_bytes: Option<u64>,
    /// Other processes, as far as the system tells, the largest first.
    pub processes: Vec<DeviceProcess>,
    /// The rest: what the driver keeps, processes that the system does not tell of, and contexts if `context_bytes` is
    /// `None`.
    pub unnamed_bytes: u64,
}

/// Figures of one moment.
struct Figures {
    device: MemoryInfo,
    /// Bytes that the allocator holds, and those of its live blocks.
    held: u64,
    allocated: u64,
    /// Bytes that the process holds beside those.
    overhead: Option<u64>,
    libraries: Vec<LibraryUse>,
    processes: Vec<DeviceProcess>,
}

impl DeviceUse {
    /// Divides the device's memory. Figures that were taken one after the other may contradict each other: then the
    /// parts that are computed are too small, and never negative.
    fn new(figures: Figures) -> Self {
        let Figures { device, held, allocated, overhead, libraries, processes } = figures;
        let of_libraries: u64 = libraries.iter().map(|library| library.bytes).sum();
        let context_bytes = overhead.map(|overhead| overhead.saturating_sub(of_libraries));
        let of_processes: u64 = processes.iter().filter_map(|process| process.bytes).sum();
        let named = device.free + held + of_libraries + context_bytes.unwrap_or(0) + of_processes;
        Self {
            total_bytes: device.total,
            free_bytes: device.free,
            allocated_bytes: allocated,
            cached_bytes: held.saturating_sub(allocated),
            libraries,
            context_bytes,
            processes,
            unnamed_bytes: device.total.saturating_sub(named),
        }
    }
}

impl DeviceMemory {
    /// Returns who holds the device's memory now.
    ///
    /// # Errors
    /// The driver fails.
    pub fn device_use(&self) -> Result<DeviceUse, MemoryError> {
        Ok(DeviceUse::new(Figures {
            overhead: self.backing.overhead_now(),
            libraries: self.driver().library_uses(),
            processes: other_processes(&self.backing),
            held: self.backing.held_bytes(),
            allocated: self.allocator().statistics().all.allocated_bytes.current,
            device: self.backing.memory_info().map_err(tenure_alloc::AllocError::from)?,
        }))
    }
}

/// Returns the processes beside this one that the system tells of, the largest first.
pub(super) fn other_processes(backing: &DeviceBacking) -> Vec<DeviceProcess> {
    let mut others = backing.driver().processes().unwrap_or_default();
    others.retain(|process| process.pid != std::process::id());
    others.sort_by_key(|process| (std::cmp::Reverse(process.bytes), process.pid));
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn figures() -> Figures {
        let library =
            |name: &str, bytes| LibraryUse { library: name.to_owned(), bytes, peak_bytes: bytes, allocations: 1 };
        Figures {
            device: MemoryInfo { free: 10 * GIB, total: 80 * GIB },
            held: 50 * GIB,
            allocated: 30 * GIB,
            overhead: Some(12 * GIB),
            libraries: vec![library("libnccl.so.2", 9 * GIB), library("libcublas.so.13", GIB)],
            processes: vec![DeviceProcess { pid: 7, bytes: Some(5 * GIB) }, DeviceProcess { pid: 8, bytes: None }],
        }
    }

    fn sum(held: &DeviceUse) -> u64 {
        let libraries: u64 = held.libraries.iter().map(|library| library.bytes).sum();
        let processes: u64 = held.processes.iter().filter_map(|process| process.bytes).sum();
        let own = held.allocated_bytes + held.cached_bytes + libraries + held.context_bytes.unwrap_or(0);
        held.free_bytes + own + processes + held.unnamed_bytes
    }

    #[test]
    fn the_parts_are_the_whole_device() {
        let held = DeviceUse::new(figures());
        assert_eq!((held.cached_bytes, held.context_bytes, held.unnamed_bytes), (20 * GIB, Some(2 * GIB), 3 * GIB));
        assert_eq!(sum(&held), held.total_bytes);
    }

    #[test]
    fn a_context_that_the_system_does_not_tell_of_is_in_the_rest() {
        let held = DeviceUse::new(Figures { overhead: None, processes: Vec::new(), ..figures() });
        assert_eq!((held.context_bytes, held.unnamed_bytes), (None, 10 * GIB));
        assert_eq!(sum(&held), held.total_bytes);
    }
}
