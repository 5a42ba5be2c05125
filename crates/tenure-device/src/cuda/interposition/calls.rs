//! Wrappers of the driver's functions that allocate and free memory of a device, and of the one that finds functions.
//!
//! Each takes the arguments of the function that it wraps, which it calls with them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUmemAllocationProp, CUmemPoolProps};
use tenure_alloc::Address;

use super::LEDGER;
use super::caller::calling_library;
use super::hooks::{Code, Hook, NullStream, replace};
use super::room::{device_of_context, with_room};

const SUCCESS: Code = 0;

/// Defines a hook and its wrapper. In the wrapper's body, `real` is the driver's function.
macro_rules! hooks {
    ($($hook:ident = $symbol:literal ($name:literal, $streams:ident):
       fn $wrapper:ident($real:ident, $($argument:ident: $type:ty),*) $body:block)*) => {
        /// The functions that are wrapped here.
        pub(super) static HOOKS: &[&Hook] = &[$(&$hook),*];
        $(
            static $hook: Hook = Hook::new($symbol, $name, NullStream::$streams, || $wrapper as *const c_void);
            unsafe extern "C" fn $wrapper($($argument: $type),*) -> Code {
                // SAFETY: the type is that of `cuda.h`, and only `Hook` hands this wrapper out.
                let $real: unsafe extern "C" fn($($type),*) -> Code = unsafe { $hook.real() };
                $body
            }
        )*
    };
}

hooks! {
    GET_PROC_ADDRESS = c"cuGetProcAddress" (c"cuGetProcAddress", None):
    fn get_proc_address(real, name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
        // SAFETY: the caller's arguments.
        let code = unsafe { real(name, function, version, flags) };
        if code == SUCCESS {
            // SAFETY: as above, and the call has succeeded.
            unsafe { replace(name, function, version, flags) };
        }
        code
    }

    GET_PROC_ADDRESS_2 = c"cuGetProcAddress_v2" (c"cuGetProcAddress", None):
    fn get_proc_address_2(real, name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
                          status: *mut c_uint) {
        // SAFETY: the caller's arguments.
        let code = unsafe { real(name, function, version, flags, status) };
        if code == SUCCESS {
            // SAFETY: as above, and the call has succeeded.
            unsafe { replace(name, function, version, flags) };
        }
        code
    }

    MEM_ALLOC = c"cuMemAlloc_v2" (c"cuMemAlloc", None):
    fn mem_alloc(real, address: *mut Address, bytes: usize) {
        let code = with_room(device_of_context, || {
            // SAFETY: the caller's arguments.
            unsafe { real(address, bytes) }
        });
        if code == SUCCESS {
            let (library, device) = (calling_library(), device_of_context());
            // SAFETY: the call has written the address.
            LEDGER.lock().add_segment(&library, device, unsafe { *address }, bytes as u64);
        }
        code
    }

    MEM_ALLOC_PITCH = c"cuMemAllocPitch_v2" (c"cuMemAllocPitch", None):
    fn mem_alloc_pitch(real, address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) {
        let code = with_room(device_of_context, || {
            // SAFETY: the caller's arguments.
            unsafe { real(address, pitch, width, height, element) }
        });
        if code == SUCCESS {
            // SAFETY: the call has written both.
            let (address, bytes) = unsafe { (*address, (*pitch * height) as u64) };
            let (library, device) = (calling_library(), device_of_context());
            LEDGER.lock().add_segment(&library, device, address, bytes);
        }
        code
    }

    MEM_FREE = c"cuMemFree_v2" (c"cuMemFree", None):
    fn mem_free(real, address: Address) {
        let holding = LEDGER.lock().take_segment(address);
        // SAFETY: the caller's arguments.
        let code = unsafe { real(address) };
        if let Some(holding) = holding.filter(|_| code != SUCCESS) {
            LEDGER.lock().put_back_segment(address, holding);
        }
        code
    }

    MEM_CREATE = c"cuMemCreate" (c"cuMemCreate", None):
    fn mem_create(real, handle: *mut u64, bytes: usize, properties: *const CUmemAllocationProp, flags: u64) {
        let device = if properties.is_null() {
            None
        } else {
            // SAFETY: the caller's properties.
            unsafe { device_of((&raw const (*properties).location).cast()) }
        };
        let code = with_room(|| device.unwrap_or(-1), || {
            // SAFETY: the caller's arguments.
            unsafe { real(handle, bytes, properties, flags) }
        });
        if let Some(device) = device.filter(|_| code == SUCCESS) {
            let library = calling_library();
            // SAFETY: the call has written the handle.
            LEDGER.lock().add_chunk(&library, device, unsafe { *handle }, bytes as u64);
        }
        code
    }

    MEM_RELEASE = c"cuMemRelease" (c"cuMemRelease", None):
    fn mem_release(real, handle: u64) {
        let releasing = LEDGER.lock().take_handle(handle);
        // SAFETY: the caller's arguments.
        let code = unsafe { real(handle) };
        if let Some(releasing) = releasing {
            let mut ledger = LEDGER.lock();
            if code == SUCCESS { ledger.released(releasing) } else { ledger.put_back_handle(releasing) }
        }
        code
    }

    MEM_RETAIN = c"cuMemRetainAllocationHandle" (c"cuMemRetainAllocationHandle", None):
    fn mem_retain(real, handle: *mut u64, address: *mut c_void) {
        // SAFETY: the caller's arguments.
        let code = unsafe { real(handle, address) };
        if code == SUCCESS {
            // SAFETY: the call has written the handle.
            LEDGER.lock().retain(unsafe { *handle }, address as Address);
        }
        code
    }

    MEM_MAP = c"cuMemMap" (c"cuMemMap", None):
    fn mem_map(real, address: Address, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let code = with_room(device_of_context, || {
            // SAFETY: the caller's arguments.
            unsafe { real(address, bytes, offset, handle, flags) }
        });
        if code == SUCCESS {
            LEDGER.lock().map(address, bytes as u64, handle);
        }
        code
    }

    MEM_UNMAP = c"cuMemUnmap" (c"cuMemUnmap", None):
    fn mem_unmap(real, address: Address, bytes: usize) {
        let unmapping = LEDGER.lock().take_mappings(address, bytes as u64);
        // SAFETY: the caller's arguments.
        let code = unsafe { real(address, bytes) };
        let mut ledger = LEDGER.lock();
        if code == SUCCESS { ledger.unmapped(unmapping) } else { ledger.put_back_mappings(unmapping) }
        code
    }

    POOL_CREATE = c"cuMemPoolCreate" (c"cuMemPoolCreate", None):
    fn pool_create(real, pool: *mut u64, properties: *const CUmemPoolProps) {
        // SAFETY: the caller's arguments.
        let code = unsafe { real(pool, properties) };
        if code == SUCCESS {
            // SAFETY: the caller's properties, and the call has written the pool.
            let (device, pool) = unsafe { (device_of((&raw const (*properties).location).cast()), *pool) };
            if let Some(device) = device {
                let library = calling_library();
                LEDGER.lock().add_pool(&library, device, pool);
            }
        }
        code
    }

    POOL_DESTROY = c"cuMemPoolDestroy" (c"cuMemPoolDestroy", None):
    fn pool_destroy(real, pool: u64) {
        // The pool's memory is freed by and by, and then cannot be asked for.
        LEDGER.lock().remove_pool(pool);
        // SAFETY: the caller's arguments.
        unsafe { real(pool) }
    }
}

/// Returns the device of a location, or `None` if it is not a device.
///
/// # Safety
/// The pointer is that of a `CUmemLocation`.
unsafe fn device_of(location: *const [c_int; 2]) -> Option<c_int> {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`. Newer drivers know more kinds than the type has here.
    const ON_DEVICE: c_int = 1;
    // SAFETY: by the function's contract: its kind, and the device.
    let [kind, device] = unsafe { *location };
    (kind == ON_DEVICE).then_some(device)
}
