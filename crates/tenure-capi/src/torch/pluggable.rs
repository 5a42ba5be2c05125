//! Functions for PyTorch's `CUDAPluggableAllocator` (torch/csrc/cuda/CUDAPluggableAllocator.h), used where there is no
//! shim. PyTorch looks them up by name.
//!
//! They have no other way to fail than a C++ exception. Each is declared `C-unwind`, and throws outside of the code
//! that catches panics.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use super::object::Object;
use super::pools::CPool;
use super::{blocks, limits, pools};
use crate::device::OpenDevice;
use crate::failure::{Status, last_error};

/// Allocates a block, or throws an exception with the text of the error: PyTorch does not check for null.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn tenure_torch_plug_alloc(
    bytes: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let mut address = ptr::null_mut();
    if bytes != 0 {
        // SAFETY: by the function's contract; `address` is a place to write to.
        check(unsafe { blocks::allocate(device, bytes as usize, stream, Object::NOTHING, &mut address) });
    }
    address
}

/// Frees a block.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_free(address: *mut c_void, _: isize, _: c_int, _: *mut c_void) {
    if !address.is_null() {
        check(blocks::free(address, Object::NOTHING));
    }
}

/// Does nothing: devices are opened at their first use.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_init(_: c_int) {}

/// Releases the cached memory of all devices: `empty_cache`.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_reset() {
    OpenDevice::all().for_each(|(device, _)| check(pools::release_cached(device, CPool::COMMON, Object::NOTHING)));
}

/// Limits the memory that this process may hold.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_memory_fraction(fraction: f64, device: c_int) {
    check(limits::set_memory_fraction(device, fraction));
}

/// Returns the beginning and the bytes of the memory that was mapped or allocated together around a block.
///
/// # Safety
/// `bytes` is null or a place to write to.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn tenure_torch_plug_base(address: *mut c_void, bytes: *mut usize) -> *mut c_void {
    let mut first = ptr::null_mut();
    let mut length = 0;
    // SAFETY: both are places to write to.
    check(unsafe { blocks::extent(address, &mut first, &mut length) });
    if !bytes.is_null() {
        // SAFETY: by the function's contract.
        unsafe { bytes.write(length) };
    }
    first
}

/// Records that `stream` uses a block too.
///
/// # Safety
/// `stream` is null or a stream of the block's device.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn tenure_torch_plug_record_stream(address: *mut c_void, stream: *mut c_void) {
    if !address.is_null() {
        // SAFETY: by the function's contract.
        check(unsafe { blocks::record_stream(address, stream) });
    }
}

/// Makes allocations on streams for which `filter` returns true come from a private pool.
///
/// # Safety
/// `filter` points to a `std::function<bool(cudaStream_t)>`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn tenure_torch_plug_begin_pool(
    device: c_int,
    pool: CPool,
    filter: *const StdFunction,
) {
    // SAFETY: by the function's contract.
    let filter = Box::into_raw(Box::new(unsafe { (*filter).copy() }));
    // PyTorch does not tell a pluggable allocator about captures: every use of a pool may be one.
    check(pools::begin_pool(device, pool, true, call_filter, Object::new(filter.cast(), drop_filter)));
}

/// Ends the use of a pool that [`tenure_torch_plug_begin_pool`] began.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_end_pool(device: c_int, pool: CPool) {
    check(pools::end_pool(device, pool));
}

/// Releases one use of a private pool. A pool without uses gives its memory back.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn tenure_torch_plug_release_pool(device: c_int, pool: CPool) {
    check(pools::release_pool(device, pool));
}

/// A `std::function<bool(cudaStream_t)>` of libstdc++.
#[derive(Debug)]
#[repr(C)]
pub(super) struct StdFunction {
    functor: [usize; 2],
    manager: Option<unsafe extern "C" fn(*mut [usize; 2], *const [usize; 2], c_int) -> bool>,
    invoker: Option<unsafe extern "C" fn(*const [usize; 2], *const *mut c_void) -> bool>,
}

/// The operations of a manager that are used here, as numbered by libstdc++'s `_Manager_operation`.
const CLONE: c_int = 2;
const DESTROY: c_int = 3;

impl StdFunction {
    /// Copies the function object.
    ///
    /// # Safety
    /// This is a C++ function object.
    unsafe fn copy(&self) -> Self {
        let mut functor = [0; 2];
        if let Some(manager) = self.manager {
            // SAFETY: the manager is that of this functor, and the target is room for another.
            unsafe { manager(&mut functor, &self.functor, CLONE) };
        }
        Self { functor, manager: self.manager, invoker: self.invoker }
    }
}

impl Drop for StdFunction {
    fn drop(&mut self) {
        if let Some(manager) = self.manager {
            let functor: *mut _ = &mut self.functor;
            // SAFETY: the manager is that of this functor, which ends here.
            unsafe { manager(functor, functor, DESTROY) };
        }
    }
}

/// Calls the C++ function object `filter` for a stream.
unsafe extern "C" fn call_filter(filter: *mut c_void, stream: *mut c_void) -> bool {
    // SAFETY: `tenure_torch_plug_begin_pool` hands a C++ function object over with this function.
    let filter = unsafe { &*filter.cast::<StdFunction>() };
    // SAFETY: the invoker is that of this functor.
    filter.invoker.is_some_and(|invoker| unsafe { invoker(&filter.functor, &stream) })
}

unsafe extern "C" fn drop_filter(filter: *mut c_void) {
    // SAFETY: `tenure_torch_plug_begin_pool` made it from a box.
    drop(unsafe { Box::from_raw(filter.cast::<StdFunction>()) });
}

/// Throws this thread's last error if the call failed.
fn check(status: Status) {
    if status != Status::Ok {
        // SAFETY: a C string, and no call fails before it is copied.
        unsafe { throw(last_error()) }
    }
}

/// Throws a `std::runtime_error`, with libstdc++'s own function for it.
///
/// # Safety
/// `message` is a C string.
unsafe fn throw(message: *const c_char) -> ! {
    type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;
    // SAFETY: both names are C strings. The library is that of the C++ code that called this function, and stays open.
    let function = unsafe {
        let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY);
        libc::dlsym(library, c"_ZSt21__throw_runtime_errorPKc".as_ptr())
    };
    if function.is_null() {
        // SAFETY: by the function's contract.
        eprintln!("tenure: {}", CString::from(unsafe { std::ffi::CStr::from_ptr(message) }).to_string_lossy());
        std::process::abort();
    }
    // SAFETY: this is its signature. It copies the message, and unwinds only through frames that allow it.
    unsafe { std::mem::transmute::<*mut c_void, Throw>(function)(message) }
}
