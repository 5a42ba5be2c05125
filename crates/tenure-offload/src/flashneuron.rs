//! FlashNeuron's memory manager (`FN_memory`; Bae and others, FAST 2021) by the names of its calls, on two-ended arenas.

use parking_lot::Mutex;
use tenure_alloc::{Address, AllocError, Arena, Block};
use tenure_core::Storage;

/// Memory that is handed out as FlashNeuron does it, in blocks of 4 KiB: what stays through a step from the low end of a
/// pool (`device_malloc`), what is offloaded from the high end (`device_malloc_reverse`), so that neither leaves holes in the
/// other; and a pool to stage what comes and goes (`p2p_malloc`).
///
/// Addresses are real. As in FlashNeuron no stream is known here: what is freed is handed out again at once, so whoever uses
/// it on other streams waits before.
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
    device: Pool,
    p2p: Pool,
}

struct Pool {
    name: &'static str,
    arena: Mutex<Arena>,
    /// Keeps the memory.
    _storage: Storage,
}

/// Why [`FnMemory`] does not do what it was asked for. Always one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FnMemoryError {
    /// There is no room in one piece.
    #[error(
        "{call}: {bytes} bytes do not fit in the {pool} pool: of {capacity} bytes {free} are free, and {largest} in one \
         piece; free some, or give it more"
    )]
    Full {
        /// What was called.
        call: &'static str,
        /// `device` or `p2p`.
        pool: &'static str,
        /// Asked for.
        bytes: u64,
        /// Bytes of the pool.
        capacity: u64,
        /// Of them, those that are free.
        free: u64,
        /// The most that is free in one piece.
        largest: u64,
    },
    /// Something that was not handed out is freed.
    #[error("{call}: {source}")]
    Unknown {
        /// What was called.
        call: &'static str,
        /// Which address.
        source: AllocError,
    },
}

impl FnMemory {
    /// Hands out the memory of two storages, which nobody else uses.
    pub fn new(device: Storage, p2p: Storage) -> Self {
        Self { device: Pool::new("device", device), p2p: Pool::new("p2p", p2p) }
    }

    /// The address of so many bytes at the low end. Zero bytes are at 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn device_malloc(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.device.malloc("device_malloc", bytes, Arena::allocate_low)
    }

    /// The address of so many bytes at the high end. Zero bytes are at 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn device_malloc_reverse(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.device.malloc("device_malloc_reverse", bytes, Arena::allocate_high)
    }

    /// Frees what was handed out at either end; its size is known.
    ///
    /// # Errors
    /// [`FnMemoryError::Unknown`].
    pub fn device_free(&self, address: Address) -> Result<(), FnMemoryError> {
        self.device.free("device_free", address)
    }

    /// The part of the pool that is *free*, 0 to 1, whatever the name says.
    pub fn device_occupancy(&self) -> f64 {
        self.device.arena.lock().free_fraction()
    }

    /// Bytes that are free.
    pub fn device_occupancy_size(&self) -> u64 {
        self.device.arena.lock().free_bytes()
    }

    /// The part that would be free with `bytes` more handed out: negative if that is more than there is.
    pub fn device_occupancy_future(&self, bytes: u64) -> f64 {
        self.device.arena.lock().free_fraction_after(bytes)
    }

    /// The address of so many bytes to stage. Zero bytes are at 0.
    ///
    /// # Errors
    /// [`FnMemoryError::Full`].
    pub fn p2p_malloc(&self, bytes: u64) -> Result<Address, FnMemoryError> {
        self.p2p.malloc("p2p_malloc", bytes, Arena::allocate_low)
    }

    /// Frees what [`p2p_malloc`](Self::p2p_malloc) gave.
    ///
    /// # Errors
    /// [`FnMemoryError::Unknown`].
    pub fn p2p_free(&self, address: Address) -> Result<(), FnMemoryError> {
        self.p2p.free("p2p_free", address)
    }

    /// The part of the pool to stage in that is free, 0 to 1.
    pub fn p2p_occupancy(&self) -> f64 {
        self.p2p.arena.lock().free_fraction()
    }

    /// Bytes of it that are free.
    pub fn p2p_occupancy_size(&self) -> u64 {
        self.p2p.arena.lock().free_bytes()
    }
}

impl Pool {
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
            let (capacity, free, largest) = (arena.bytes(), arena.free_bytes(), arena.largest_free_bytes());
            FnMemoryError::Full { call, pool: self.name, bytes, capacity, free, largest }
        })
    }

    fn free(&self, call: &'static str, address: Address) -> Result<(), FnMemoryError> {
        self.arena.lock().free(address).map_err(|source| FnMemoryError::Unknown { call, source })
    }
}
