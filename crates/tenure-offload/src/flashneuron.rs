//! FlashNeuron's memory manager (`FN_memory`; Bae and others, FAST 2021), with the names of its calls, on two-ended
//! arenas.

use parking_lot::Mutex;
use tenure_alloc::{Address, AllocError, Arena, Block};
use tenure_core::Storage;

/// A memory manager like FlashNeuron's, which hands out blocks of 4 KiB. In the device pool, memory that stays through
/// a step comes from the low end (`device_malloc`), and memory that is offloaded from the high end
/// (`device_malloc_reverse`), so that neither leaves holes in the other. A second pool stages bytes that come and go
/// (`p2p_malloc`).
///
/// Addresses are real. As in FlashNeuron, the manager knows no streams: it hands freed memory out again at once, so a
/// caller that uses it on other streams must wait before it frees it.
///
/// ```
/// use tenure_core::{AllocatorRegistry, DeviceKind, Storage};
/// use tenure_offload::FnMemory;
///
/// let pool = |bytes| Storage::new(bytes, AllocatorRegistry::global().allocator(DeviceKind::Cpu)?);
/// let memory = FnMemory::new(pool(1 << 20)?, pool(64 << 10)?);
/// let weight = memory.device_malloc(256 << 10)?;
/// let activation = memory.device_malloc_reverse(512 << 10)?;
/// assert_eq!(activation - weight, 512 << 10);
/// assert_eq!(memory.device_occupancy(), 0.25); // the part that is free
/// memory.device_free(activation)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FnMemory {
    device: FnPool,
    p2p: FnPool,
}

struct FnPool {
    name: &'static str,
    arena: Mutex<Arena>,
    /// The storage that the arena hands out, kept alive.
    _storage: Storage,
}

/// An error of [`FnMemory`]. Its message is always one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FnMemoryError {
    /// The pool has no free piece that is large enough.
    #[error(
        "{call}: {bytes} bytes do not fit in the {pool} pool: of {capacity} bytes {free} are free, and {largest} in one \
         piece; free some, or give it more"
    )]
    Full {
        /// The name of the call.
        call: &'static str,
        /// The name of the pool: `device` or `p2p`.
        pool: &'static str,
        /// The bytes that were asked for.
        bytes: u64,
        /// The bytes of the pool.
        capacity: u64,
        /// The bytes of the pool that are free.
        free: u64,
        /// The bytes of the largest free piece.
        largest: u64,
    },
    /// The address to be freed was not handed out.
    #[error("{call}: {source}")]
    Unknown {
        /// The name of the call.
        call: &'static str,
        /// The arena's error, with the address.
        source: AllocError,
    },
}

impl FnMemory {
    /// Creates a manager that hands out the memory of two storages, which nothing else may use.
    pub fn new(device: Storage, p2p: Storage) -> Self {
        Self { device: FnPool::new("device", device), p2p: FnPool::new("p2p", p2p) }
    }

    /// Allocates `bytes` at the low end, and returns their address. Zero bytes get address 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn device_malloc(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.device.malloc("device_malloc", bytes, Arena::allocate_low)
    }

    /// Allocates `bytes` at the high end, and returns their address. Zero bytes get address 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn device_malloc_reverse(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.device.malloc("device_malloc_reverse", bytes, Arena::allocate_high)
    }

    /// Frees memory that was handed out at either end. The pool knows its size.
    ///
    /// # Errors
    /// [`FnMemoryError::Unknown`].
    pub fn device_free(&self, address: Address) -> Result<(), FnMemoryError> {
        self.device.free("device_free", address)
    }

    /// Returns the part of the pool that is *free*, 0 to 1, despite the name.
    pub fn device_occupancy(&self) -> f64 {
        self.device.arena.lock().free_fraction()
    }

    /// Returns the bytes of the pool that are free.
    pub fn device_occupancy_size(&self) -> u64 {
        self.device.arena.lock().free_bytes()
    }

    /// Returns the part that would be free with `bytes` more handed out. It is negative if fewer are free.
    pub fn device_occupancy_future(&self, bytes: u64) -> f64 {
        self.device.arena.lock().free_fraction_after(bytes)
    }

    /// Allocates `bytes` in the staging pool, and returns their address. Zero bytes get address 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn p2p_malloc(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.p2p.malloc("p2p_malloc", bytes, Arena::allocate_low)
    }

    /// Frees memory that [`p2p_malloc`](Self::p2p_malloc) handed out.
    ///
    /// # Errors
    /// [`FnMemoryError::Unknown`].
    pub fn p2p_free(&self, address: Address) -> Result<(), FnMemoryError> {
        self.p2p.free("p2p_free", address)
    }

    /// Returns the part of the staging pool that is free, 0 to 1.
    pub fn p2p_occupancy(&self) -> f64 {
        self.p2p.arena.lock().free_fraction()
    }

    /// Returns the bytes of the staging pool that are free.
    pub fn p2p_occupancy_size(&self) -> u64 {
        self.p2p.arena.lock().free_bytes()
    }
}

impl FnPool {
    fn new(name: &'static str, storage: Storage) -> Self {
        let start = storage.lock().as_ptr().expose_provenance() as Address;
        Self { name, arena: Mutex::new(Arena::new(start, storage.bytes() as u64)), _storage: storage }
    }

    fn malloc(
        &self,
        call: &'static str,
        bytes: u64,
        allocate: fn(&mut Arena, u64) -> Option<Block>,
    ) -> Result<Address, FnMemoryError> {
        let mut arena = self.arena.lock();
        allocate(&mut arena, bytes).map(|block| block.address).ok_or_else(|| {
            let capacity = arena.bytes();
            let free = arena.free_bytes();
            let largest = arena.largest_free_bytes();
            FnMemoryError::Full { call, pool: self.name, bytes, capacity, free, largest }
        })
    }

    fn free(&self, call: &'static str, address: Address) -> Result<(), FnMemoryError> {
        self.arena.lock().free(address).map_err(|source| FnMemoryError::Unknown { call, source })
    }
}
