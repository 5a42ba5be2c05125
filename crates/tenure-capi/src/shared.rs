//! Blocks that PyTorch and other owners share, as [`Storage`]s.
//!
//! PyTorch frees a block by its address, even if another owner still needs the bytes. A block that is [shared](share)
//! therefore belongs to a storage, of which PyTorch has one handle: freeing the address drops that handle, and the last
//! handle frees the block. The other way round, PyTorch's next allocation returns a storage that is [lent](lend).

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tenure_core::{Allocator, DataPtr, Device, Storage, StreamId, Unforked};
use tenure_device::Stream;
use tenure_device::host::HostMemory;
use tenure_device::memory::DeviceMemory;

use crate::cpu;
use crate::device;

/// The storages of which PyTorch has a handle, by address.
static SHARED: LazyLock<Unforked<FxHashMap<usize, Shared>>> = LazyLock::new(Unforked::default);
/// The number of entries in [`SHARED`]. While it is 0, frees skip the lookup.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// A lock that is held while a block becomes a storage, so that it becomes only one.
static SHARING: Mutex<()> = Mutex::new(());
/// The number of storages that are lent at present.
static LENDING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The storage that the thread's next allocation of as many bytes returns.
    static LENT: RefCell<Option<Storage>> = const { RefCell::new(None) };
}

struct Shared {
    storage: Storage,
    /// The number of PyTorch storages at the address.
    holders: usize,
}

/// Returns PyTorch's block at an address as a storage of its bytes: the same one each time, for as long as PyTorch or
/// another owner has it. Returns `None` if the address is not Tenure's, or if other bytes were shared before.
///
/// # Safety
/// PyTorch has a storage of `bytes` bytes at the address, and frees it no sooner than this returns.
pub unsafe fn share(device: Device, address: usize, bytes: usize) -> Option<Storage> {
    let _sharing = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = SHARED.lock().get(&address).map(|shared| shared.storage.clone());
    if let Some(known) = known {
        return Some(known).filter(|known| known.bytes() == bytes && known.device() == device);
    }
    let (data, allocator) = if device.is_cpu() { cpu::take(address)? } else { block(device, address, bytes)? };
    // SAFETY: by the function's contract; PyTorch's deleter finds the address in `SHARED` from now on.
    let storage = unsafe { Storage::from_data_ptr(data, bytes, Some(allocator)) };
    // A resize would move the bytes, of which PyTorch has the address. This cannot fail: the storage has an allocator.
    let _ = storage.set_resizable(false);
    SHARED.lock().insert(address, Shared { storage: storage.clone(), holders: 1 });
    COUNT.fetch_add(1, Ordering::Release);
    Some(storage)
}

/// Makes the owner of a device's block, for a storage.
fn block(device: Device, address: usize, bytes: usize) -> Option<(DataPtr, Arc<dyn Allocator>)> {
    let memory = memory(device)?;
    memory.allocator().block(address as u64).filter(|block| block.bytes >= bytes as u64)?;
    // The host never follows a device's address, which is a number to it.
    let data = std::ptr::without_provenance_mut(address);
    let free = move || drop(memory.free(address as u64));
    Some((DataPtr::foreign(data, device, free), Arc::new(memory)))
}

fn memory(device: Device) -> Option<&'static DeviceMemory> {
    device::Device::get(device.index().into()).ok().map(|device| device.memory)
}

/// A storage that is lent: while this lives, the thread's next allocation of as many bytes on the storage's device
/// returns the storage.
#[must_use = "it lends for as long as it lives"]
pub struct Lent {
    /// Keeps the value on its thread.
    thread: PhantomData<*const ()>,
}

/// Lends a storage to PyTorch's next allocation on this thread. See [`Lent`].
pub fn lend(storage: Storage) -> Lent {
    LENDING.fetch_add(1, Ordering::Relaxed);
    LENT.set(Some(storage));
    Lent { thread: PhantomData }
}

impl Lent {
    /// Returns whether an allocation has taken the storage.
    pub fn is_taken(&self) -> bool {
        LENT.with_borrow(Option::is_none)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(LENT.take());
        LENDING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a storage is lent to this thread, for an allocation of as many bytes.
pub(crate) fn is_lending() -> bool {
    LENDING.load(Ordering::Relaxed) > 0 && LENT.with_borrow(Option::is_some)
}

/// Returns the address of the lent storage, if one fits the allocation, and counts PyTorch as a holder.
#[inline]
pub(crate) fn take_lent(device: Device, bytes: usize) -> Option<*mut u8> {
    if LENDING.load(Ordering::Relaxed) == 0 { None } else { taken(device, bytes) }
}

#[cold]
fn taken(device: Device, bytes: usize) -> Option<*mut u8> {
    let fits = |storage: &mut Storage| storage.bytes() == bytes && storage.device() == device;
    let storage = LENT.with_borrow_mut(|lent| lent.take_if(fits))?;
    let address = storage.lock().as_ptr();
    let mut shared = SHARED.lock();
    if let Some(known) = shared.get_mut(&address.addr()) {
        // While PyTorch has a handle, no other storage can be at this address.
        known.holders += 1;
        drop(shared);
    } else {
        shared.insert(address.addr(), Shared { storage, holders: 1 });
        COUNT.fetch_add(1, Ordering::Release);
    }
    Some(address)
}

/// Drops PyTorch's handle of the storage at an address. Returns false if PyTorch has none there.
#[inline]
pub(crate) fn free(address: usize) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && freed(address)
}

#[cold]
fn freed(address: usize) -> bool {
    let mut shared = SHARED.lock();
    let Some(known) = shared.get_mut(&address) else { return false };
    known.holders -= 1;
    if known.holders > 0 {
        return true;
    }
    let last = shared.remove(&address);
    drop(shared);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    if cpu::is_forked() {
        // The locks of its allocator may be held for ever in a forked child.
        std::mem::forget(last);
    }
    true
}

/// Returns one of PyTorch's streams, on a device that is open.
///
/// # Safety
/// The handle is null or a stream of the device that exists for as long as it may be used, as PyTorch's streams do.
pub unsafe fn stream(device: Device, handle: usize) -> Option<Stream> {
    let device = device::Device::get(device.index().into()).ok()?;
    let id = StreamId(handle as u64);
    // SAFETY: by the function's contract.
    unsafe { device.adopt(id) };
    let streams = device.memory.streams();
    Some(if id == StreamId::NULL { streams.null() } else { streams.external(id) })
}

/// A guard: while it lives, threads that have chosen no allocator get PyTorch's CPU memory from [`HostMemory`].
#[must_use = "it holds for as long as it lives"]
pub struct OnHostMemory(());

impl OnHostMemory {
    /// Makes a guard. Returns `None` where the system gives no address space.
    pub fn enter() -> Option<Self> {
        HostMemory::installed()?;
        cpu::enter_host_memory();
        Some(Self(()))
    }
}

impl Drop for OnHostMemory {
    fn drop(&mut self) {
        cpu::leave_host_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    fn allocate() -> usize {
        let mut data = std::ptr::null_mut();
        // SAFETY: a place to write to.
        assert_eq!(unsafe { cpu::allocate(BYTES, &mut data) }, crate::failure::Status::Ok);
        data.addr()
    }

    fn free_at(address: usize) -> bool {
        cpu::free(std::ptr::without_provenance_mut(address))
    }

    fn shared(address: usize, bytes: usize) -> Option<Storage> {
        // SAFETY: allocated above, and freed by the caller.
        unsafe { share(Device::CPU, address, bytes) }
    }

    #[test]
    fn a_block_is_freed_when_neither_pytorch_nor_anybody_else_has_it() -> Result<(), Box<dyn std::error::Error>> {
        let _one = cpu::tests::ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = HostMemory::installed().ok_or("no address space")?;
        let _on_host = OnHostMemory::enter().ok_or("no address space")?;
        let live = || memory.statistics().all.allocated_bytes.current;
        let before = live();

        let address = allocate();
        let storage = shared(address, BYTES).ok_or("it is Tenure's")?;
        assert!(shared(address, BYTES).is_some_and(|again| again.is_alias_of(&storage)));
        assert!(shared(address, BYTES / 2).is_none() && shared(address + 64, 64).is_none());
        assert_eq!(storage.handles(), 2);
        let weak = storage.downgrade();
        assert!(free_at(address));
        assert_eq!((storage.handles(), live()), (1, before + BYTES as u64));

        // It goes back to PyTorch twice, and is freed with the second handle.
        for _ in 0..2 {
            let lent = lend(storage.clone());
            assert!(take_lent(Device::CPU, BYTES / 2).is_none() && !lent.is_taken());
            assert_eq!(allocate(), address);
            assert!(lent.is_taken());
        }
        drop(storage);
        assert!(free_at(address) && weak.upgrade().is_some());
        assert!(free_at(address) && weak.upgrade().is_none());
        assert_eq!(live(), before);

        // A storage that was lent and not taken is freed as well.
        let address = allocate();
        let lent = lend(shared(address, BYTES).ok_or("it is Tenure's")?);
        assert!(free_at(address));
        drop(lent);
        assert_eq!(live(), before);
        Ok(())
    }
}
