#![deny(unsafe_op_in_unsafe_fn)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::{fmt, slice};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Allocator, DataPtr, Device, StorageError};

/// Bytes with an owner, shared by every tensor that is a view of them. c10's `StorageImpl`.
///
/// A `Storage` is a handle: clones share the bytes, and the last one frees them. Where the bytes are may change, by
/// [`resize`](Self::resize) and [`set_data_ptr`](Self::set_data_ptr), and each such change gives the storage another
/// [`Generation`]. While a [`StorageGuard`] is held, it does not change.
///
/// ```
/// use tenure_core::{AllocatorRegistry, DeviceKind, Storage};
///
/// let storage = Storage::new(4, AllocatorRegistry::global().allocator(DeviceKind::Cpu)?)?;
/// // SAFETY: four bytes of host memory that nobody else uses.
/// unsafe { storage.lock().as_ptr().cast::<[u8; 4]>().write([1, 2, 3, 4]) };
///
/// let view = storage.clone();
/// let before = view.generation();
/// storage.resize(2)?;
/// assert_ne!(view.generation(), before);
/// let guard = view.lock();
/// // SAFETY: written above, and nobody writes meanwhile.
/// assert_eq!(unsafe { guard.as_slice() }, [1, 2]);
/// # Ok::<(), tenure_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Storage {
    shared: Arc<Shared>,
}

/// A handle that does not keep the bytes.
#[derive(Clone)]
pub struct WeakStorage {
    shared: Weak<Shared>,
}

struct Shared {
    state: RwLock<State>,
    allocator: Option<Arc<dyn Allocator>>,
    arrival: Option<Box<dyn Arrival>>,
}

struct State {
    data: DataPtr,
    bytes: usize,
    generation: Generation,
    resizable: bool,
}

/// When bytes are there that somebody still brings, such as a model's weights from a disk.
pub trait Arrival: Send + Sync {
    /// Returns when nobody brings them any more: whether they came, or are any bytes because they could not be had, is for
    /// whoever made the storage to find out. It is called before each use of the bytes, also when they are there.
    fn wait(&self);
}

/// Which bytes a storage has: no two storages, and no two places that one storage's bytes have had, share a
/// generation. Unlike an address, which is reused, it tells saved data from what took its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Storage {
    /// A resizable storage of `bytes` bytes, not initialised.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`].
    pub fn new(bytes: usize, allocator: Arc<dyn Allocator>) -> Result<Self, StorageError> {
        let data = allocator.allocate(bytes)?;
        Ok(Self::with_state(data, bytes, Some(allocator), None))
    }

    /// A storage of bytes that exist already. It is resizable if there is an `allocator` to take new ones from.
    ///
    /// # Safety
    /// `data` is valid for reads and writes of `bytes` bytes, from its device, until its deleter is called; it may be
    /// null if there are none.
    pub unsafe fn from_data_ptr(data: DataPtr, bytes: usize, allocator: Option<Arc<dyn Allocator>>) -> Self {
        Self::with_state(data, bytes, allocator, None)
    }

    /// A storage of bytes that are on their way: whoever wants to use them waits in [`lock`](Self::lock) until they are there.
    /// It is not resizable.
    ///
    /// # Safety
    /// As for [`from_data_ptr`](Self::from_data_ptr), from when [`Arrival::wait`] has returned.
    pub unsafe fn arriving(data: DataPtr, bytes: usize, arrival: impl Arrival + 'static) -> Self {
        Self::with_state(data, bytes, None, Some(Box::new(arrival)))
    }

    fn with_state(
        data: DataPtr,
        bytes: usize,
        allocator: Option<Arc<dyn Allocator>>,
        arrival: Option<Box<dyn Arrival>>,
    ) -> Self {
        let state = State { data, bytes, generation: Generation::next(), resizable: allocator.is_some() };
        Self { shared: Arc::new(Shared { state: RwLock::new(state), allocator, arrival }) }
    }

    fn arrive(&self) {
        if let Some(arrival) = &self.shared.arrival {
            arrival.wait();
        }
    }

    /// The storage's description; its bytes need not have arrived.
    fn state(&self) -> StorageGuard<'_> {
        // Recursive: a thread that holds a guard may take another, even while a resize waits for the first.
        StorageGuard { state: self.shared.state.read_recursive() }
    }

    /// Keeps the bytes where they are, for as long as the guard lives. Any number of guards may be held. Bytes that are on
    /// their way are waited for.
    ///
    /// On the same thread, [`resize`](Self::resize), [`set_data_ptr`](Self::set_data_ptr) and
    /// [`set_resizable`](Self::set_resizable) then wait for ever.
    pub fn lock(&self) -> StorageGuard<'_> {
        self.arrive();
        self.state()
    }

    /// The same, and keeps all other guards away: the bytes can be written to.
    ///
    /// On a thread that holds another guard of this storage, it waits for ever.
    pub fn lock_exclusive(&self) -> ExclusiveGuard<'_> {
        self.arrive();
        ExclusiveGuard { state: self.shared.state.write() }
    }

    /// A number that orders storages, the same for all handles of one. Who takes guards of several takes them in this
    /// order, so that two threads never wait for each other.
    pub fn rank(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.state().bytes()
    }

    /// The device the bytes are on.
    pub fn device(&self) -> Device {
        self.state().device()
    }

    /// Both at once.
    pub fn place(&self) -> (Device, usize) {
        let state = self.state();
        (state.device(), state.bytes())
    }

    /// Which bytes these are.
    pub fn generation(&self) -> Generation {
        self.state().generation()
    }

    /// Whether [`resize`](Self::resize) is allowed.
    pub fn is_resizable(&self) -> bool {
        self.state().state.resizable
    }

    /// Where a resize takes new bytes from.
    pub fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.shared.allocator.as_ref()
    }

    /// Whether both are handles of one storage, so that a write to one is a write to the other.
    pub fn is_alias_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether there is no other handle, nor a weak one: nobody else can read or write the bytes until this one is cloned.
    pub fn is_unique(&self) -> bool {
        self.handles() == 1 && Arc::weak_count(&self.shared) == 0
    }

    /// How many handles there are.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// A handle that does not keep the bytes.
    pub fn downgrade(&self) -> WeakStorage {
        WeakStorage { shared: Arc::downgrade(&self.shared) }
    }

    /// Allows or forbids [`resize`](Self::resize), such as while others have the address.
    ///
    /// # Errors
    /// [`StorageError::NoAllocator`] if there is none to resize with.
    pub fn set_resizable(&self, resizable: bool) -> Result<(), StorageError> {
        if resizable && self.shared.allocator.is_none() {
            return Err(StorageError::NoAllocator);
        }
        self.shared.state.write().resizable = resizable;
        Ok(())
    }

    /// Moves to `bytes` new bytes, of which the first are the old ones, as many as there are of both; the rest is not
    /// initialised. The old memory is freed.
    ///
    /// Waits until no [`StorageGuard`] is held. A pointer from one is invalid afterwards.
    ///
    /// # Errors
    /// [`StorageError::NotResizable`]; [`StorageError::DeviceMismatch`] if the bytes are not where the allocator's
    /// are; those of [`Allocator::allocate`] and [`Allocator::copy`]. The storage is then as it was.
    pub fn resize(&self, bytes: usize) -> Result<(), StorageError> {
        let refuse = |state: &State| StorageError::NotResizable { bytes: state.bytes, requested: bytes };
        let allocator = match &self.shared.allocator {
            Some(allocator) if self.is_resizable() => allocator,
            _ => return Err(refuse(&self.state().state)),
        };
        // With no lock held: an allocator may call back into whoever can give memory up.
        let data = allocator.allocate(bytes)?;

        let mut state = self.shared.state.write();
        if !state.resizable {
            return Err(refuse(&state));
        }
        let kept = state.bytes.min(bytes);
        if kept > 0 {
            if state.data.device() != allocator.device() {
                let (data, allocator) = (state.data.device(), allocator.device());
                return Err(StorageError::DeviceMismatch { data, allocator });
            }
            // SAFETY: both have `kept` bytes on the allocator's device: the old by the contract of whoever set them,
            // the new by the allocator's. The write lock keeps guards away, and the new bytes are known here only.
            unsafe { allocator.copy(state.data.as_ptr(), data.as_ptr(), kept)? };
        }
        let replaced = state.replace(data, bytes);
        drop(state);
        drop(replaced); // with no lock held: a deleter may do anything
        Ok(())
    }

    /// Replaces the bytes by others and returns the old owner, whose deleter has not been called. The new bytes may be
    /// on another device.
    ///
    /// Waits until no [`StorageGuard`] is held.
    ///
    /// # Safety
    /// As for [`from_data_ptr`](Self::from_data_ptr).
    pub unsafe fn set_data_ptr(&self, data: DataPtr, bytes: usize) -> DataPtr {
        self.shared.state.write().replace(data, bytes)
    }
}

impl WeakStorage {
    /// The storage, while there is another handle that keeps it.
    pub fn upgrade(&self) -> Option<Storage> {
        self.shared.upgrade().map(|shared| Storage { shared })
    }
}

impl State {
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

/// The only guard of a storage while it lives.
pub struct ExclusiveGuard<'a> {
    state: RwLockWriteGuard<'a, State>,
}

impl ExclusiveGuard<'_> {
    /// The first byte, on the storage's device; null if there are none. Valid while the guard lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.state.data.as_ptr()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Which bytes these are.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }
}

/// A storage whose bytes stay where they are while this lives. They can still be written to, by whoever holds another.
pub struct StorageGuard<'a> {
    state: RwLockReadGuard<'a, State>,
}

impl StorageGuard<'_> {
    /// The first byte, on the storage's device; null if there are none. Valid while the guard lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.state.data.as_ptr()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// The device the bytes are on.
    pub fn device(&self) -> Device {
        self.state.data.device()
    }

    /// Which bytes these are.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    /// The bytes, for reading on the host.
    ///
    /// # Panics
    /// If they are not on the CPU.
    ///
    /// # Safety
    /// All of them have been written to, and nobody writes to them while the slice lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        let (data, bytes) = self.host_bytes();
        // SAFETY: valid for as long as the guard lives; the rest is the caller's promise.
        unsafe { slice::from_raw_parts(data, bytes) }
    }

    /// The bytes, for reading and writing on the host.
    ///
    /// # Panics
    /// If they are not on the CPU.
    ///
    /// # Safety
    /// All of them have been written to, by [`as_ptr`](Self::as_ptr) if they are fresh, and nobody else reads or writes
    /// them while the slice lives: the guard does not keep other guards away.
    #[expect(clippy::mut_from_ref, reason = "a guard is shared as the storage is; the caller promises exclusive use")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        let (data, bytes) = self.host_bytes();
        // SAFETY: valid for as long as the guard lives; the rest is the caller's promise.
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
