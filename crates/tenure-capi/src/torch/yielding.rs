//! Cached memory that other libraries of the process get when they find no room.

use tenure_device::cuda::interposition;

use crate::device::OpenDevice;

/// Begins to see what other libraries allocate on CUDA's devices. From then on, an allocation of theirs that finds no
/// room gets what PyTorch's allocator has cached there.
pub fn yield_to_libraries() {
    interposition::interpose(yield_cached);
}

/// Gives the cached memory of a device back, if there is any: another thread may have done so just now.
fn yield_cached(device: u8) {
    if let Ok(device) = OpenDevice::get(device.into()) {
        // If a part cannot be given back, the library may do with the rest, or gets the driver's error.
        let _ = device.memory.allocator().release_cached();
    }
}
