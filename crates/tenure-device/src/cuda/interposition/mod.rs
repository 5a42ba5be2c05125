//! Sees the device memory that other libraries of this process allocate, and lets them have memory that is cached here.
//!
//! A library gets at the driver's functions by `dlsym`, or by `cuGetProcAddress`, which it gets by `dlsym`; the CUDA
//! runtime does so too, whether it is a library of its own or a part of NCCL, cuBLAS or CuPy. [`interpose`] writes
//! another `dlsym` into the slots through which the loaded objects call it, and so hands out wrappers of the functions
//! that allocate and free. No file is changed, and nothing must be preloaded. This object's own calls do not go through
//! the wrappers.
//!
//! A library that has called the driver before [`interpose`] has the functions' addresses in its variables, where they
//! are replaced too. Memory that the driver allocates by itself, such as contexts and the code of kernels, is not seen.

#![cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "the hooks are for x86-64"))]

#[cfg(target_arch = "x86_64")]
mod caller;
#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod hooks;
mod ledger;
#[cfg(target_arch = "x86_64")]
mod objects;
#[cfg(target_arch = "x86_64")]
mod room;

use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, OnceLock};

use cudarc::driver::sys::{self, CUmemPool_attribute as PoolAttribute, CUresult};
use parking_lot::Mutex;

use ledger::Ledger;
pub use ledger::LibraryUse;

/// Gives cached memory of a device back to the driver.
pub type YieldCached = fn(device: u8);

static LEDGER: LazyLock<Mutex<Ledger>> = LazyLock::new(Mutex::default);

static INTERPOSITION: OnceLock<Interposition> = OnceLock::new();

struct Interposition {
    yield_cached: YieldCached,
    /// A handle of the driver's library.
    driver: Driver,
}

/// Begins to see what other libraries allocate, once. From then on, an allocation of theirs that finds no room is tried
/// again after `yield_cached` has given something back. Without a driver, or on another machine than x86-64, nothing
/// changes.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn interpose(yield_cached: YieldCached) {
    #[cfg(target_arch = "x86_64")]
    if let Some(driver) = Driver::open() {
        let handle = driver.0;
        if INTERPOSITION.set(Interposition { yield_cached, driver }).is_ok() {
            // SAFETY: a handle of the driver's library, which stays loaded.
            unsafe { hooks::install(handle) };
        }
    }
}

/// Returns the device memory that each library holds: none before [`interpose`].
pub fn library_uses(device: u8) -> Vec<LibraryUse> {
    let Some(interposition) = INTERPOSITION.get() else { return Vec::new() };
    // Held during the questions, so that no pool is destroyed meanwhile.
    let ledger = LEDGER.lock();
    let mut uses = ledger.uses(device.into());
    uses.extend(interposition.driver.pool_uses(&ledger, device));
    uses.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.library.cmp(&b.library)));
    uses
}

/// Gives cached memory of a device back.
fn make_room(device: c_int) {
    if let (Ok(device), Some(interposition)) = (u8::try_from(device), INTERPOSITION.get()) {
        (interposition.yield_cached)(device);
    }
}

/// The driver's library.
struct Driver(*mut c_void);

// SAFETY: the loader's handles may be used by any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    fn open() -> Option<Self> {
        // SAFETY: loading a library runs its initialisers; this one is the driver's own. It is never unloaded.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!driver.is_null()).then_some(Self(driver))
    }

    /// Returns the memory of the pools for allocation in stream order: it belongs to the pool, used or not.
    fn pool_uses(&self, ledger: &Ledger, device: u8) -> Vec<LibraryUse> {
        // SAFETY: a handle of a library.
        if unsafe { libc::dlsym(self.0, c"cuMemPoolGetAttribute".as_ptr()) }.is_null() {
            return Vec::new();
        }
        let mut default = std::ptr::null_mut();
        // SAFETY: `default` is writable.
        let code = unsafe { sys::cuDeviceGetDefaultMemPool(&mut default, device.into()) };
        let default = (code == CUresult::CUDA_SUCCESS).then_some(("cudaMallocAsync", default as u64));
        let pools = default.into_iter().chain(ledger.pools(device.into()));
        pools.filter_map(|(library, pool)| pool_use(library, pool)).collect()
    }
}

/// Returns the memory of a pool, if it has any.
fn pool_use(library: &str, pool: u64) -> Option<LibraryUse> {
    let ask = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: the pool exists, and the value of this attribute is of eight bytes.
        let code = unsafe { sys::cuMemPoolGetAttribute(pool as _, attribute, (&raw mut bytes).cast()) };
        if code == CUresult::CUDA_SUCCESS { bytes } else { 0 }
    };
    let bytes = ask(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    let peak_bytes = ask(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
    (bytes > 0).then(|| LibraryUse { library: format!("{library} (pool)"), bytes, peak_bytes, allocations: 0 })
}
