//! Blocks exchanged, without a copy, with a library that frees a block by its address, as PyTorch does.
//!
//! Such a library frees a block without regard to other users of its bytes. A block that is [shared](share) belongs to
//! a storage instead, and the library has a handle of that storage: freeing the address [drops the handle](release),
//! and the last handle frees the block. In the other direction, the library's next allocation finds a storage that is
//! [lent](lend).

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tenure_core::{Allocator, DataPtr, Device, Storage, Unforked};

use crate::host::HostMemory;
use crate::memory;

/// The blocks on the CPU that the library owns, by address. They belong to no storage.
static HANDED_OUT: LazyLock<Unforked<FxHashMap<usize, DataPtr>>> = LazyLock::new(Unforked::default);
/// The storages of which the library has handles, by address.
static SHARED: LazyLock<Unforked<FxHashMap<usize, SharedStorage>>> = LazyLock::new(Unforked::default);
/// The number of those storages. While it is 0, freeing a block looks for none.
static SHARED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// A lock held while a block becomes a storage, so that it becomes only one.
static SHARING: Mutex<()> = Mutex::new(());
/// The number of storages that are being lent.
static LENDING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The storage that the thread's next allocation of as many bytes finds.
    static LENT: RefCell<Option<Storage>> = const { RefCell::new(None) };
}

/// A storage whose block the library has too.
struct SharedStorage {
    storage: Storage,
    /// The number of handles that the library has.
    handles: usize,
}

/// Gives the library a block on the CPU, which it frees by the returned address.
pub fn hand_out(block: DataPtr) -> *mut u8 {
    let address = block.as_ptr();
    if !block.is_null() {
        HANDED_OUT.lock().insert(address.addr(), block);
    }
    address
}

/// Takes back the block on the CPU that was [handed out](hand_out) at `address`, if it belongs to no storage.
pub fn take_back(address: usize) -> Option<DataPtr> {
    HANDED_OUT.lock().remove(&address)
}

/// Returns the library's block at `address` as a storage of its bytes. It is the same storage each time, for as long as
/// it has a handle. Returns `None` if the block is not Tenure's, or has been shared with another size or device.
///
/// # Safety
/// The library has a storage of `bytes` bytes at the address, and does not free it before this returns.
pub unsafe fn share(device: Device, address: usize, bytes: usize) -> Option<Storage> {
    let _sharing = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = SHARED.lock().get(&address).map(|shared| shared.storage.clone());
    if let Some(shared) = shared {
        return Some(shared).filter(|shared| shared.bytes() == bytes && shared.device() == device);
    }
    let (data, allocator) = if device.is_cpu() { host_block(address)? } else { device_block(device, address, bytes)? };
    // SAFETY: by the function's contract, and the library's deleter finds the address here from now on.
    let storage = unsafe { Storage::from_data_ptr(data, bytes, Some(allocator)) };
    // The library has the address. There is an allocator, so this cannot fail.
    let _ = storage.set_resizable(false);
    SHARED.lock().insert(address, SharedStorage { storage: storage.clone(), handles: 1 });
    SHARED_COUNT.fetch_add(1, Ordering::Release);
    Some(storage)
}

/// Returns a block on the CPU with its owner, and the allocator of storages like it.
fn host_block(address: usize) -> Option<(DataPtr, Arc<dyn Allocator>)> {
    let allocator = HostMemory::installed()?;
    Some((take_back(address)?, allocator))
}

/// Returns a block on a device with its owner, and the allocator of storages like it.
fn device_block(device: Device, address: usize, bytes: usize) -> Option<(DataPtr, Arc<dyn Allocator>)> {
    let memory = memory::installed(device.index().into())?;
    memory.allocator().block(address as u64).filter(|block| block.bytes >= bytes as u64)?;
    // To the host, a device's address is only a number.
    let data = std::ptr::without_provenance_mut(address);
    Some((DataPtr::foreign(data, device, move || drop(memory.free(address as u64))), Arc::new(memory)))
}

/// Gives the library a handle of a storage, which it drops by [freeing](release) the returned address.
pub fn give(storage: Storage) -> *mut u8 {
    let address = storage.lock().as_ptr();
    let mut shared = SHARED.lock();
    if let Some(found) = shared.get_mut(&address.addr()) {
        // While the library has a handle, no other storage can be there.
        found.handles += 1;
    } else {
        shared.insert(address.addr(), SharedStorage { storage, handles: 1 });
        SHARED_COUNT.fetch_add(1, Ordering::Release);
    }
    address
}

/// A storage that is being [lent](lend), until this is dropped.
#[must_use = "the storage is lent until this is dropped"]
pub struct LentStorage {
    /// Keeps it on the thread that lends.
    thread: PhantomData<*const ()>,
}

/// Lends a storage: the library's next allocation of as many bytes, on this thread and the storage's device, finds it.
pub fn lend(storage: Storage) -> LentStorage {
    LENDING.fetch_add(1, Ordering::Relaxed);
    LENT.set(Some(storage));
    LentStorage { thread: PhantomData }
}

impl LentStorage {
    /// Returns whether an allocation has found the storage.
    pub fn is_taken(&self) -> bool {
        LENT.with_borrow(Option::is_none)
    }
}

impl Drop for LentStorage {
    fn drop(&mut self) {
        drop(LENT.take());
        LENDING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a storage is lent to this thread.
pub fn is_lending() -> bool {
    LENDING.load(Ordering::Relaxed) > 0 && LENT.with_borrow(Option::is_some)
}

/// Returns the address of the storage lent to this thread, if it is on `device` and has `bytes` bytes. The library then
/// has a handle of it.
#[inline]
pub fn take_lent(device: Device, bytes: usize) -> Option<*mut u8> {
    if LENDING.load(Ordering::Relaxed) == 0 { None } else { take_matching(device, bytes) }
}

/// Takes the storage lent to this thread if it matches, and adds a handle of the library to it.
#[cold]
fn take_matching(device: Device, bytes: usize) -> Option<*mut u8> {
    let storage =
        LENT.with_borrow_mut(|lent| lent.take_if(|storage| storage.bytes() == bytes && storage.device() == device))?;
    Some(give(storage))
}

/// Drops one of the library's handles of the storage at `address`. Returns false if it has none.
#[inline]
pub fn release(address: usize) -> bool {
    SHARED_COUNT.load(Ordering::Acquire) > 0 && drop_handle(address)
}

/// Drops a handle, and the storage after the last one. Returns false if there is no handle at `address`.
#[cold]
fn drop_handle(address: usize) -> bool {
    let mut shared = SHARED.lock();
    let Some(found) = shared.get_mut(&address) else { return false };
    found.handles -= 1;
    if found.handles > 0 {
        return true;
    }
    let last = shared.remove(&address);
    drop(shared);
    SHARED_COUNT.fetch_sub(1, Ordering::Relaxed);
    drop(last);
    true
}
