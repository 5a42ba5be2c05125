//! Blocks of PyTorch's that others have too, as a [`Storage`].
//!
//! PyTorch frees a block by its address, whoever else may need the bytes. A block that is [shared](share) belongs to a
//! storage instead, of which PyTorch has a handle: freeing the address lets go of that, and the last handle frees the
//! block. The other way, a storage that is [lent](lend) is what PyTorch's next allocation finds.

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

/// What PyTorch has a handle of, by address.
static SHARED: LazyLock<Unforked<FxHashMap<usize, Shared>>> = LazyLock::new(Unforked::default);
/// How many those are. Where there are none, who frees a block looks for none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held while a block becomes a storage, so that it becomes one only.
static SHARING: Mutex<()> = Mutex::new(());
/// How many storages are being lent.
static LENDING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// What the thread's next allocation of so many bytes finds.
    static LENT: RefCell<Option<Storage>> = const { RefCell::new(None) };
}

struct Shared {
    storage: Storage,
    /// PyTorch's storages at the address.
    holders: usize,
}

/// The block that PyTorch has at an address, as a storage of its bytes: the same each time, for as long as PyTorch or
/// anybody else has it. None if the address is none of Tenure's, or the bytes are others than those shared before.
///
/// # Safety
/// PyTorch has a storage of so many bytes at the address, and frees it no sooner than this returns.
pub unsafe fn share(device: Device, address: usize, bytes: usize) -> Option<Storage> {
    let _sharing = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = SHARED.lock().get(&address).map(|shared| shared.storage.clone());
    if let Some(known) = known {
        return Some(known).filter(|known| known.bytes() == bytes && known.device() == device);
    }
    let (data, allocator) = if device.is_cpu() { cpu::take(address)? } else { block(device, address, bytes)? };
    // SAFETY: by the function's contract, and PyTorch's deleter finds the address here from now on.
    let storage = unsafe { Storage::from_data_ptr(data, bytes, Some(allocator)) };
    // PyTorch has the address. There is an allocator, so this cannot fail.
    let _ = storage.set_resizable(false);
    SHARED.lock().insert(address, Shared { storage: storage.clone(), holders: 1 });
    COUNT.fetch_add(1, Ordering::Release);
    Some(storage)
}

/// A device's block, owned as a storage owns it.
fn block(device: Device, address: usize, bytes: usize) -> Option<(DataPtr, Arc<dyn Allocator>)> {
    let memory = memory(device)?;
    memory.allocator().block(address as u64).filter(|block| block.bytes >= bytes as u64)?;
    // A device's address is a number to the host, which never follows it.
    let data = std::ptr::without_provenance_mut(address);
    let free = move || drop(memory.free(address as u64));
    Some((DataPtr::foreign(data, device, free), Arc::new(memory)))
}

fn memory(device: Device) -> Option<&'static DeviceMemory> {
    device::Device::get(device.index().into()).ok().map(|device| device.memory)
}

/// Has the thread's next allocation of as many bytes on the storage's device find the storage, while this lives.
#[must_use = "it lends for as long as it lives"]
pub struct Lent {
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

/// See [`Lent`].
pub fn lend(storage: Storage) -> Lent {
    LENDING.fetch_add(1, Ordering::Relaxed);
    LENT.set(Some(storage));
    Lent { thread: PhantomData }
}

impl Lent {
    /// Whether the allocation came.
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

/// Whether the thread's next allocation finds something, if it asks for as many bytes.
pub(crate) fn is_lending() -> bool {
    LENDING.load(Ordering::Relaxed) > 0 && LENT.with_borrow(Option::is_some)
}

/// The address of what an allocation finds, if there is something.
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
        // While PyTorch has a handle, no other storage can be there.
        known.holders += 1;
        drop(shared);
    } else {
        shared.insert(address.addr(), Shared { storage, holders: 1 });
        COUNT.fetch_add(1, Ordering::Release);
    }
    Some(address)
}

/// Lets go of PyTorch's handle of what is at an address. False if it has none.
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
        // Its allocator's locks are the parent's.
        std::mem::forget(last);
    }
    true
}

/// A stream of PyTorch's, on a device that is open.
///
/// # Safety
/// It is null or a stream of the device that exists for as long as anybody may use it, as PyTorch's do.
pub unsafe fn stream(device: Device, handle: usize) -> Option<Stream> {
    let device = device::Device::get(device.index().into()).ok()?;
    let id = StreamId(handle as u64);
    // SAFETY: by the function's contract.
    unsafe { device.adopt(id) };
    let streams = device.memory.streams();
    Some(if id == StreamId::NULL { streams.null() } else { streams.external(id) })
}

/// Has PyTorch's memory of the CPU come from [`HostMemory`], for threads that chose nothing else, while it lives.
#[must_use = "it holds for as long as it lives"]
pub struct OnHostMemory(());

impl OnHostMemory {
    /// From now on. None where the system gives no address space.
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
        // SAFETY: allocated above, and freed by who calls.
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

        // It goes back to PyTorch, twice, and then is nobody's.
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

        // What was lent and not taken is nobody's either.
        let address = allocate();
        let lent = lend(shared(address, BYTES).ok_or("it is Tenure's")?);
        assert!(free_at(address));
        drop(lent);
        assert_eq!(live(), before);
        Ok(())
    }
}
