//! Storages: bytes with an owner, which tensors share.
#![deny(unsafe_op_in_unsafe_fn)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::{fmt, slice};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Allocator, DataPtr, Device, StorageError};

/// A storage: bytes with an owner, shared by every tensor that is a view of them. c10's `StorageImpl`.
///
/// A `Storage` is a handle: clones share the bytes, and the last one frees them. [`resize`](Self::resize) and
/// [`set_data_ptr`](Self::set_data_ptr) may move the bytes, and each such change gives the storage another
/// [`Generation`]. While a [`StorageGuard`] is held, the storage does not change.
///
/// ```
/// use tenure_core::{AllocatorRegistry, DeviceKind, Storage};
///
/// let storage = Storage::new(4, AllocatorRegistry::global().allocator(DeviceKind::Cpu)?)?;
/// // SAFETY: four bytes of host memory that nothing else uses.
/// unsafe { storage.lock().as_ptr().cast::<[u8; 4]>().write([1, 2, 3, 4]) };
///
/// let view = storage.clone();
/// let before = view.generation();
/// storage.resize(2)?;
/// assert_ne!(view.generation(), before);
/// let guard = view.lock();
/// // SAFETY: written above, and nothing writes meanwhile.
/// assert_eq!(unsafe { guard.as_slice() }, [1, 2]);
/// # Ok::<(), tenure_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Storage {
    shared: Arc<StorageInner>,
}

/// A handle that does not keep the bytes alive.
#[derive(Clone)]
pub struct WeakStorage {
    shared: Weak<StorageInner>,
}

/// The state that all handles of a storage share.
struct StorageInner {
    state: RwLock<StorageState>,
    allocator: Option<Arc<dyn Allocator>>,
    arrival: Option<Box<dyn Arrival>>,
    is_read_only: bool,
}

struct StorageState {
    data: DataPtr,
    bytes: usize,
    generation: Generation,
    resizable: bool,
}

/// The arrival of bytes that are still being read or copied, such as a model's weights from a disk.
pub trait Arrival: Send + Sync {
    /// Waits until the reads and copies that write the bytes are over. If these failed, the bytes are arbitrary; the
    /// caller that made the storage must find out whether they succeeded. A storage calls this before each use of its
    /// bytes, even after they have arrived.
    fn wait(&self);
}

/// The identity of a storage's bytes: no two storages share a generation, and neither do two places that one storage's
/// bytes have had. Unlike an address, which is reused, it distinguishes saved data from the data that took its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Storage {
    /// Allocates a resizable storage of `bytes` uninitialised bytes.
    ///
    /// # Errors
    /// The errors of [`Allocator::allocate`].
    pub fn new(bytes: usize, allocator: Arc<dyn Allocator>) -> Result<Self, StorageError> {
        let data = allocator.allocate(bytes)?;
        Ok(Self::with_state(data, bytes, Some(allocator), None, false))
    }

    /// Creates a storage of bytes that exist already. It is resizable if there is an `allocator` to take new ones from.
    ///
    /// # Safety
    /// `data` is valid for reads and writes of `bytes` bytes, from its device, until its deleter is called. It may be
    /// null if `bytes` is 0.
    pub unsafe fn from_data_ptr(data: DataPtr, bytes: usize, allocator: Option<Arc<dyn Allocator>>) -> Self {
        Self::with_state(data, bytes, allocator, None, false)
    }

    /// Creates a storage of bytes that exist already and must not be written to, such as another library's constant
    /// array. The storage is not resizable.
    ///
    /// # Safety
    /// `data` is valid for reads of `bytes` bytes, from its device, until its deleter is called. It may be null if
    /// `bytes` is 0.
    pub unsafe fn read_only(data: DataPtr, bytes: usize) -> Self {
        Self::with_state(data, bytes, None, None, true)
    }

    /// Creates a storage of bytes that are still being read or copied. Callers that use the bytes wait in
    /// [`lock`](Self::lock) until they have arrived. The storage is not resizable.
    ///
    /// # Safety
    /// See [`from_data_ptr`](Self::from_data_ptr). Its conditions hold from the moment at which [`Arrival::wait`] has
    /// returned.
    pub unsafe fn arriving(data: DataPtr, bytes: usize, arrival: impl Arrival + 'static) -> Self {
        Self::with_state(data, bytes, None, Some(Box::new(arrival)), false)
    }

    fn with_state(
        data: DataPtr,
        bytes: usize,
        allocator: Option<Arc<dyn Allocator>>,
        arrival: Option<Box<dyn Arrival>>,
        is_read_only: bool,
    ) -> Self {
        let state = StorageState { data, bytes, generation: Generation::next(), resizable: allocator.is_some() };
        Self { shared: Arc::new(StorageInner { state: RwLock::new(state), allocator, arrival, is_read_only }) }
    }

    /// Waits until the bytes have arrived.
    fn wait_for_arrival(&self) {
        if let Some(arrival) = &self.shared.arrival {
            arrival.wait();
        }
    }

    /// Returns the storage's description. Its bytes need not have arrived.
    fn state(&self) -> StorageGuard<'_> {
        // The read is recursive: a thread that holds a guard may take another, even while a resize waits for the first.
        StorageGuard { state: self.shared.state.read_recursive() }
    }

    /// Waits until the bytes have arrived, and returns a guard. As long as it lives, the bytes are not moved. Any
    /// number of guards may be held.
    ///
    /// While a thread holds a guard, [`resize`](Self::resize), [`set_data_ptr`](Self::set_data_ptr) and
    /// [`set_resizable`](Self::set_resizable) on the same thread wait for ever.
    pub fn lock(&self) -> StorageGuard<'_> {
        self.wait_for_arrival();
        self.state()
    }

    /// Returns the only guard of the storage, as [`lock`](Self::lock) does, after a wait for all other guards. The
    /// bytes can be written to, unless the storage is [read-only](Self::is_read_only).
    ///
    /// On a thread that holds another guard of this storage, this waits for ever.
    pub fn lock_exclusive(&self) -> ExclusiveGuard<'_> {
        self.wait_for_arrival();
        ExclusiveGuard { state: self.shared.state.write() }
    }

    /// Returns a number that orders storages and that all handles of one storage share. A thread that takes the guards
    /// of several storages takes them in this order, so that two threads never wait for each other.
    pub fn rank(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.state().bytes()
    }

    /// Returns the device that the bytes are on.
    pub fn device(&self) -> Device {
        self.state().device()
    }

    /// Returns the device and the number of bytes, both read at once.
    pub fn place(&self) -> (Device, usize) {
        let state = self.state();
        (state.device(), state.bytes())
    }

    /// Returns the identity of the bytes.
    pub fn generation(&self) -> Generation {
        self.state().generation()
    }

    /// Returns whether the bytes must not be written to. Code that writes to them checks this first: a
    /// storage cannot tell what its guards are used for.
    pub fn is_read_only(&self) -> bool {
        self.shared.is_read_only
    }

    /// Returns whether [`resize`](Self::resize) is allowed.
    pub fn is_resizable(&self) -> bool {
        self.state().state.resizable
    }

    /// Returns the allocator from which a resize takes new bytes.
    pub fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.shared.allocator.as_ref()
    }

    /// Returns whether both are handles of one storage, so that a write to one is a write to the other.
    pub fn is_alias_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns whether there is no other handle, not even a weak one. Then nothing else can read or write the bytes
    /// until this handle is cloned.
    pub fn is_unique(&self) -> bool {
        self.handles() == 1 && Arc::weak_count(&self.shared) == 0
    }

    /// Returns the number of handles.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// Returns a handle that does not keep the bytes alive.
    pub fn downgrade(&self) -> WeakStorage {
        WeakStorage { shared: Arc::downgrade(&self.shared) }
    }

    /// Allows or forbids [`resize`](Self::resize). It is forbidden, for instance, while other code has the address.
    ///
    /// # Errors
    /// [`StorageError::NoAllocator`] if there is no allocator to resize with.
    pub fn set_resizable(&self, resizable: bool) -> Result<(), StorageError> {
        if resizable && self.shared.allocator.is_none() {
            return Err(StorageError::NoAllocator);
        }
        self.shared.state.write().resizable = resizable;
        Ok(())
    }

    /// Moves to `bytes` new bytes, and frees the old memory. The old bytes are copied to the beginning, as far as they
    /// fit; the rest is not initialised.
    ///
    /// This waits until no [`StorageGuard`] is held. A pointer from an earlier guard is invalid afterwards.
    ///
    /// # Errors
    /// [`StorageError::NotResizable`]; [`StorageError::DeviceMismatch`] if the bytes are not on the allocator's device;
    /// the errors of [`Allocator::allocate`] and [`Allocator::copy`]. The storage is then as it was.
    pub fn resize(&self, bytes: usize) -> Result<(), StorageError> {
        let refuse = |state: &StorageState| StorageError::NotResizable { bytes: state.bytes, requested: bytes };
        let allocator = match &self.shared.allocator {
            Some(allocator) if self.is_resizable() => allocator,
            _ => return Err(refuse(&self.state().state)),
        };
        // No lock is held here: an allocator may call back into code that can release memory.
        let data = allocator.allocate(bytes)?;

        let mut state = self.shared.state.write();
        if !state.resizable {
            return Err(refuse(&state));
        }
        let kept = state.bytes.min(bytes);
        if kept > 0 {
            if state.data.device() != allocator.device() {
                let data = state.data.device();
                let allocator = allocator.device();
                return Err(StorageError::DeviceMismatch { data, allocator });
            }
            // SAFETY: both have `kept` bytes on the allocator's device: the old ones by the contract of the caller that
            // set them, the new ones by the allocator's. The write lock keeps guards away, and only this function knows
            // the new bytes.
            unsafe { allocator.copy(state.data.as_ptr(), data.as_ptr(), kept)? };
        }
        let replaced = state.replace(data, bytes);
        drop(state);
        drop(replaced); // with no lock held: a deleter may do anything
        Ok(())
    }

    /// Replaces the bytes by others, and returns the old owner, whose deleter has not been called. The new bytes may be
    /// on another device.
    ///
    /// This waits until no [`StorageGuard`] is held.
    ///
    /// # Safety
    /// See [`from_data_ptr`](Self::from_data_ptr).
    pub unsafe fn set_data_ptr(&self, data: DataPtr, bytes: usize) -> DataPtr {
        self.shared.state.write().replace(data, bytes)
    }
}

impl WeakStorage {
    /// Returns the storage, while there is another handle that keeps it alive.
    pub fn upgrade(&self) -> Option<Storage> {
        self.shared.upgrade().map(|shared| Storage { shared })
    }
}

impl StorageState {
    fn replace(&mut self, data: DataPtr, bytes: usize) -> DataPtr {
        self.bytes = bytes;
        self.generation = Generation::next();
        std::mem::replace(&mut self.data, data)
    }
}

impl Generation {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StorageGuard { state } = self.state();
        f.debug_struct("Storage")
            .field("data", &state.data)
            .field("bytes", &state.bytes)
            .field("generation", &state.generation)
            .field("resizable", &state.resizable)
            .finish()
    }
}

/// A guard of a storage that has no other guard meanwhile.
pub struct ExclusiveGuard<'a> {
    state: RwLockWriteGuard<'a, StorageState>,
}

impl ExclusiveGuard<'_> {
    /// Returns the address of the first byte, on the storage's device, or null if there are no bytes. It is valid while
    /// the guard lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.state.data.as_ptr()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Returns the identity of the bytes.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }
}

/// A guard that keeps a storage's bytes where they are. Holders of other guards can still write to the bytes.
pub struct StorageGuard<'a> {
    state: RwLockReadGuard<'a, StorageState>,
}

impl StorageGuard<'_> {
    /// Returns the address of the first byte, on the storage's device, or null if there are no bytes. It is valid while
    /// the guard lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.state.data.as_ptr()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Returns the device that the bytes are on.
    pub fn device(&self) -> Device {
        self.state.data.device()
    }

    /// Returns the identity of the bytes.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    /// Returns the bytes, for reading on the host.
    ///
    /// # Panics
    /// The bytes are not on the CPU.
    ///
    /// # Safety
    /// All bytes have been written to, and nothing writes to them while the slice lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        let (data, bytes) = self.host_bytes();
        // SAFETY: the bytes are valid as long as the guard lives. The caller promises the rest.
        unsafe { slice::from_raw_parts(data, bytes) }
    }

    /// Returns the bytes, for reading and writing on the host.
    ///
    /// # Panics
    /// The bytes are not on the CPU.
    ///
    /// # Safety
    /// All bytes have been written to, with [`as_ptr`](Self::as_ptr) if they are fresh, and nothing else reads or
    /// writes them while the slice lives: the guard does not keep other guards away.
    #[expect(clippy::mut_from_ref, reason = "a guard is shared as the storage is; the caller promises exclusive use")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        let (data, bytes) = self.host_bytes();
        // SAFETY: the bytes are valid as long as the guard lives. The caller promises the rest.
        unsafe { slice::from_raw_parts_mut(data, bytes) }
    }

    fn host_bytes(&self) -> (*mut u8, usize) {
        let device = self.device();
        assert!(device.is_cpu(), "the host cannot read bytes on {device}: copy them to the CPU first");
        match self.bytes() {
            0 => (std::ptr::dangling_mut(), 0),
            bytes => (self.as_ptr(), bytes),
        }
    }
}
