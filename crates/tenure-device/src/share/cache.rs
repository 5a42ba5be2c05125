//! PipeSwitch's five calls (its patch of PyTorch 1.3: `CUDACachingAllocator.cpp`, `Module.cpp`), by name: one process
//! takes a cache of device memory and hands it to its workers, whose allocators use ranges of it for a while.
//!
//! There, sizes and offsets stood in the code, a raw handle went over an open port, and every worker could write every
//! range. Here sizes are configured, and a range has one user at a time.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure_alloc::adaptor::{Placed, Placement};
use tenure_alloc::{Address, AllocError};
use tenure_core::StreamId;

use super::listener::Listener;
use super::manifest::Manifest;
use super::store::Store;
use super::{Client, DaemonConfig, MemoryDaemon, PoolLease, RangeUse, ShareError, SharedPool};
use crate::memory::DeviceMemory;
use crate::{Access, Driver};

/// Sizes of a shared cache, in bytes.
///
/// Parameters come first, then the memory for computation, then the rest. Each is a chunk of its own, so that who may
/// write one can not write another by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedCacheConfig {
    /// In all.
    pub pool_bytes: u64,
    /// For parameters.
    pub parameter_bytes: u64,
    /// For computation.
    pub computation_bytes: u64,
}

impl Default for SharedCacheConfig {
    /// PipeSwitch's: 1 GiB for parameters, 11 GiB for computation.
    fn default() -> Self {
        Self { pool_bytes: 12 << 30, parameter_bytes: 1 << 30, computation_bytes: 11 << 30 }
    }
}

impl SharedCacheConfig {
    /// The chunks of a pool of these sizes. A worker can tell from them how the pool is divided.
    ///
    /// # Errors
    /// The parts are larger than the whole, or one of them is nothing.
    pub fn chunks(&self) -> Result<Vec<u64>, ShareError> {
        for (setting, bytes) in
            [("parameter_bytes", self.parameter_bytes), ("computation_bytes", self.computation_bytes)]
        {
            if bytes == 0 {
                let expected = "more than 0: a cache has a range for both".to_owned();
                return Err(ShareError::InvalidSetting { setting, value: bytes.to_string(), expected });
            }
        }
        let chunks = [self.parameter_bytes, self.computation_bytes, self.rest()?];
        Ok(chunks.into_iter().filter(|&bytes| bytes > 0).collect())
    }

    /// That the parameters end where a chunk does. A device protects whole chunks: who writes the range for computation
    /// could write the parameters in a chunk of both.
    fn check_border(&self, chunks: &[u64]) -> Result<(), ShareError> {
        let mut ends = chunks.iter().scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        if ends.any(|end| end == self.parameter_bytes) {
            return Ok(());
        }
        let (parameters, others) = (self.parameter_bytes, self.pool_bytes - self.parameter_bytes);
        let expected = format!(
            "one of the daemon's chunks would hold parameters and memory that others write: serve them as chunks of their \
             own, with `tenure memory daemon --chunks {parameters},{others}`"
        );
        Err(ShareError::InvalidSetting { setting: "parameter_bytes", value: parameters.to_string(), expected })
    }

    /// What is left for neither.
    fn rest(&self) -> Result<u64, ShareError> {
        let rest = self.pool_bytes.checked_sub(self.parameter_bytes);
        rest.and_then(|bytes| bytes.checked_sub(self.computation_bytes)).ok_or_else(|| ShareError::InvalidSetting {
            setting: "pool_bytes",
            value: self.pool_bytes.to_string(),
            expected: format!(
                "room for parameter_bytes = {} and computation_bytes = {}",
                self.parameter_bytes, self.computation_bytes
            ),
        })
    }
}

/// Device memory taken for workers, in the process that owns it. Dropped, it goes back to the device as soon as nobody
/// maps it.
pub struct SharedCache {
    /// Until it is sent.
    store: Option<Store>,
    /// From then on.
    daemon: Option<MemoryDaemon>,
}

impl SharedCache {
    /// Takes the memory.
    ///
    /// # Errors
    /// The sizes do not fit together, or are no multiples of the device's granularity; the device has not enough.
    pub fn allocate_shared_cache(driver: Arc<dyn Driver>, config: &SharedCacheConfig) -> Result<Self, ShareError> {
        Ok(Self { store: Some(Store::new(driver, &config.chunks()?)?), daemon: None })
    }

    /// Hands it to whoever asks at `config`'s socket, now and later. `config`'s pool is not used. Once is enough for all
    /// workers; calls after the first change nothing.
    ///
    /// # Errors
    /// The socket is served already, or can not be made: then the cache can be sent at another. The cache is sent at
    /// another socket already.
    pub fn send_shared_cache(&mut self, config: DaemonConfig) -> Result<(), ShareError> {
        if let Some(socket) = self.socket() {
            let same = socket == config.socket;
            return if same { Ok(()) } else { Err(ShareError::AlreadySent { socket: socket.into() }) };
        }
        let listener = Listener::bind(&config.socket, config.uid)?;
        let store = self.store.take().ok_or_else(|| ShareError::NoPool { socket: config.socket.clone() })?;
        self.daemon = Some(MemoryDaemon::spawn(listener, store, config)?);
        Ok(())
    }

    /// Where it is sent, if it is.
    pub fn socket(&self) -> Option<&Path> {
        self.daemon.as_ref().map(MemoryDaemon::socket)
    }
}

/// A shared cache in a worker: in another process than its owner's, or in the same.
///
/// A range for *computation* is this worker's alone. One for *parameters* is written by one worker, which then
/// [publishes](Self::publish_parameters) them, and read by any number: a reader that allocates the same tensors in the same
/// order finds them filled, at no copy. What was published says which these are; anything else is refused, so that no
/// tensor ever stands on bytes that were not written for it. Readers have the range mapped for reading only.
///
/// Dropped, it takes its ranges out of the allocator and gives them back, but for those in which blocks live: these
/// stay with the process until it exits.
pub struct WorkerCache {
    pool: Arc<SharedPool>,
    memory: &'static DeviceMemory,
    config: SharedCacheConfig,
    inserted: Mutex<Vec<Inserted>>,
}

/// A range that the allocator has.
struct Inserted {
    lease: PoolLease,
    range: RangeUse,
    stream: StreamId,
    /// What is said of the parameters in it, once they are published.
    about: Option<Vec<u8>>,
}

impl WorkerCache {
    /// Maps the cache of `client`'s daemon, which has the size of `config`, for `memory` to use.
    ///
    /// # Errors
    /// The sizes do not fit together; the daemon has no cache of this size, has one in which a chunk holds parameters and
    /// something else, or is gone; a driver call failed.
    pub fn recv_shared_cache(
        client: Arc<Client>,
        memory: &'static DeviceMemory,
        config: SharedCacheConfig,
    ) -> Result<Self, ShareError> {
        config.rest()?;
        let pool_bytes = client.terms().pool_bytes();
        if config.pool_bytes != pool_bytes {
            return Err(ShareError::InvalidSetting {
                setting: "pool_bytes",
                value: config.pool_bytes.to_string(),
                expected: format!("the daemon's pool has {pool_bytes} bytes: configure both alike"),
            });
        }
        config.check_border(&client.terms().pool)?;
        let pool = SharedPool::attach(client, Arc::clone(memory.driver()))?;
        Ok(Self { pool, memory, config, inserted: Mutex::default() })
    }

    /// Its sizes.
    pub fn config(&self) -> &SharedCacheConfig {
        &self.config
    }

    /// The cache, mapped for reading.
    pub fn pool(&self) -> &Arc<SharedPool> {
        &self.pool
    }

    /// The range for parameters: its first byte, in this process, and its bytes.
    pub fn parameters(&self) -> (Address, u64) {
        (self.pool.address(), self.config.parameter_bytes)
    }

    /// Gives `bytes` bytes from `offset` to this process's allocator, for large blocks on `stream`. Returns their address.
    ///
    /// # Errors
    /// This process or another uses a part of the range; it is none of the cache; the daemon is gone.
    pub fn insert_shared_cache(&self, bytes: u64, offset: u64, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        self.insert_for_computation(&mut inserted, bytes, offset, stream)
    }

    /// Gives the part for parameters to every allocation on `stream`, whatever its size. For writing, each gets the first
    /// place that is free, until they are [published](Self::publish_parameters). For reading, allocations must be those of
    /// the parameters that are published there, and get their places; later ones are served from elsewhere.
    ///
    /// # Errors
    /// This process has inserted them already; another writes them, or uses them if they are to be written; nothing is
    /// published that could be read; the daemon is gone; a driver call failed.
    pub fn insert_shared_cache_for_parameter(&self, stream: StreamId, access: Access) -> Result<Address, ShareError> {
        match access {
            Access::Read => self.read_parameters(stream, |_| true),
            Access::ReadWrite => self.write_parameters(stream),
        }
    }

    /// Gives the part for parameters to `stream` for reading, if `about` is what was said of those that are published.
    ///
    /// # Errors
    /// [`ShareError::OtherParameters`]; and as
    /// [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    pub fn attach_parameters(&self, stream: StreamId, about: &[u8]) -> Result<Address, ShareError> {
        self.read_parameters(stream, |published| published == about)
    }

    /// [`insert_shared_cache`](Self::insert_shared_cache) of the part for computation. No more parameters are allocated
    /// after that.
    ///
    /// # Errors
    /// As there, and as [`check_parameters`](Self::check_parameters).
    pub fn insert_shared_cache_for_computation(&self, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        self.check(&inserted)?;
        let (bytes, offset) = (self.config.computation_bytes, self.config.parameter_bytes);
        let address = self.insert_for_computation(&mut inserted, bytes, offset, stream)?;
        if let Some(written) = inserted.iter().find(|one| one.writes_parameters()) {
            self.memory.donated().close(written.lease.address())?;
        }
        Ok(address)
    }

    /// Makes sure that the part for parameters has room for blocks of these bytes each, allocated in this order, and to
    /// publish them with `about`.
    ///
    /// # Errors
    /// [`ShareError::ParametersTooLarge`], with the figures.
    pub fn check_room(&self, requests: &[u64], about: &[u8]) -> Result<(), ShareError> {
        Manifest::new(&Placed::in_order(requests), about).encode(self.config.parameter_bytes).map(drop)
    }

    /// Ends the writing of parameters: from now on other workers can read what was allocated for them here and still
    /// lives, and this one can only read it too. `about` is told to the readers.
    ///
    /// # Errors
    /// This process writes no parameters; the range has no room left for the list of them; the daemon is gone; a driver
    /// call failed. Nothing is published then.
    pub fn publish_parameters(&self, about: &[u8]) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        let parameters = inserted.iter_mut().find(|one| one.writes_parameters());
        let parameters = parameters.ok_or(ShareError::NotInserted("published"))?;
        let (address, bytes) = (parameters.lease.address(), parameters.lease.bytes());
        let layout = self.memory.donated().close(address)?;
        Manifest::new(&layout, about).write(&**self.memory.driver(), address, bytes)?;
        parameters.lease.lower()?;
        parameters.about = Some(about.to_vec());
        Ok(())
    }

    /// What was said of the parameters that are inserted, by who published them.
    pub fn about_parameters(&self) -> Option<Vec<u8>> {
        self.inserted.lock().iter().find_map(|inserted| inserted.about.clone())
    }

    /// That all parameters inserted for reading were allocated.
    ///
    /// # Errors
    /// [`ShareError::Outstanding`]: some were not, and would be computed with as something else.
    pub fn check_parameters(&self) -> Result<(), ShareError> {
        self.check(&self.inserted.lock())
    }

    /// The streams that something is inserted for.
    pub fn streams(&self) -> Vec<StreamId> {
        let mut streams: Vec<_> = self.inserted.lock().iter().map(|inserted| inserted.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Takes what was inserted for `stream` out of the allocator, waits for the device, and gives it back, if anybody is
    /// there to take it.
    ///
    /// # Errors
    /// Blocks live in a range: free them first; that range stays, and the others are taken out. The context is lost:
    /// everything is taken out, and see [`PoolLease::release`].
    pub fn clear_shared_cache(&self, stream: StreamId) -> Result<(), ShareError> {
        self.clear(|one| one.stream == stream)
    }

    /// Takes the part for parameters out, as [`clear_shared_cache`](Self::clear_shared_cache) does.
    ///
    /// # Errors
    /// As there.
    pub fn clear_parameters(&self) -> Result<(), ShareError> {
        self.clear(|one| one.range == RangeUse::Parameters)
    }

    fn clear(&self, chosen: impl Fn(&Inserted) -> bool) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        let mut results = Vec::new();
        let taken = inserted.extract_if(.., |one| {
            let taken = chosen(one).then(|| self.take_out(one));
            let is_out = matches!(taken, Some(Ok(())));
            results.extend(taken);
            is_out
        });
        let leases: Vec<_> = taken.map(|one| one.lease).collect();
        results.extend(leases.into_iter().map(|lease| match lease.release() {
            Err(ShareError::DaemonGone { .. }) => Ok(()),
            released => released,
        }));
        // The first error counts, and the others were tried all the same.
        results.into_iter().collect()
    }

    fn take_out(&self, one: &Inserted) -> Result<(), ShareError> {
        self.memory.donated().clear(one.lease.address()).map_err(|error| match error {
            AllocError::StillInUse { bytes, blocks, .. } => ShareError::RangeInUse { range: one.range, blocks, bytes },
            error => error.into(),
        })
    }

    fn write_parameters(&self, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let (range, bytes) = (RangeUse::Parameters, self.config.parameter_bytes);
        let lease = self.lease(&inserted, range, bytes, 0, Access::ReadWrite)?;
        Manifest::wipe(&**self.memory.driver(), lease.address(), bytes)?;
        self.insert(&mut inserted, Inserted { lease, range, stream, about: None }, Placement::InOrder)
    }

    fn read_parameters(&self, stream: StreamId, wanted: impl Fn(&[u8]) -> bool) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let (range, bytes) = (RangeUse::Parameters, self.config.parameter_bytes);
        let lease = self.lease(&inserted, range, bytes, 0, Access::Read)?;
        let published = Manifest::read(&**self.memory.driver(), lease.address(), bytes)?;
        if !wanted(&published.about) {
            return Err(ShareError::OtherParameters { published: published.about });
        }
        let placement = Placement::Recorded(published.layout());
        self.insert(&mut inserted, Inserted { lease, range, stream, about: Some(published.about) }, placement)
    }

    fn insert_for_computation(
        &self,
        inserted: &mut Vec<Inserted>,
        bytes: u64,
        offset: u64,
        stream: StreamId,
    ) -> Result<Address, ShareError> {
        let range = RangeUse::Computation;
        let lease = self.lease(inserted, range, bytes, offset, Access::ReadWrite)?;
        self.insert(inserted, Inserted { lease, range, stream, about: None }, Placement::BestFit)
    }

    fn lease(
        &self,
        inserted: &[Inserted],
        range: RangeUse,
        bytes: u64,
        offset: u64,
        access: Access,
    ) -> Result<PoolLease, ShareError> {
        if bytes == 0 {
            return Err(ShareError::NoRange(range));
        }
        let overlaps = |own: &&Inserted| {
            let (start, end) = (own.lease.offset(), own.lease.offset() + own.lease.bytes());
            start < offset.saturating_add(bytes) && offset < end
        };
        match inserted.iter().find(overlaps) {
            Some(own) => Err(ShareError::AlreadyInserted(own.range)),
            None => self.pool.lease(offset, bytes, access),
        }
    }

    /// Gives a range to the allocator. `inserted` is locked from before it is leased, so that whoever else inserts or
    /// clears finds all of it or nothing.
    fn insert(&self, inserted: &mut Vec<Inserted>, one: Inserted, placement: Placement) -> Result<Address, ShareError> {
        let address = one.lease.address();
        self.memory.donated().insert(address, one.lease.bytes(), one.stream, placement)?;
        inserted.push(one);
        Ok(address)
    }

    fn check(&self, inserted: &[Inserted]) -> Result<(), ShareError> {
        let outstanding = inserted.iter().map(|one| self.memory.donated().outstanding(one.lease.address())).sum();
        if outstanding > 0 { Err(ShareError::Outstanding { outstanding }) } else { Ok(()) }
    }
}

impl Inserted {
    fn writes_parameters(&self) -> bool {
        self.range == RangeUse::Parameters && self.lease.access() == Access::ReadWrite
    }
}

impl Drop for WorkerCache {
    fn drop(&mut self) {
        for Inserted { lease, .. } in self.inserted.get_mut().drain(..) {
            match self.memory.donated().clear(lease.address()) {
                Ok(()) => drop(lease),
                Err(_) => lease.keep(),
            }
        }
    }
}
