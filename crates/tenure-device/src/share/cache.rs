//! The worker's side of PipeSwitch's calls, under their names (from its patch of PyTorch 1.3:
//! `CUDACachingAllocator.cpp`, `Module.cpp`). A worker inserts ranges of a shared cache, which another process
//! allocated, into its own allocator, and clears them again later.
//!
//! In PipeSwitch, sizes and offsets were fixed in the code, a raw handle was sent over an open port, and every worker
//! could write every range at any time. Here sizes are configured, and a range has one writer at a time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_alloc::adaptor::{PlacedBlock, RangeGate, RangePlacement};
use tenure_alloc::{Address, AllocError};
use tenure_core::StreamId;

use super::manifest::Manifest;
use super::tenancy::{AroundWait, Inserted, Right, Tenancy};
use super::{DaemonClient, PoolLease, RangeUse, ShareError, SharedCacheConfig, SharedPool};
use crate::AccessMode;
use crate::memory::DeviceMemory;

/// The default time to wait for ranges that others use.
const PATIENCE: Duration = Duration::from_secs(10);

/// A shared cache as a worker uses it: ranges of it are inserted into the worker's allocator. The worker may run in the
/// owner's process or in another.
///
/// A range for *computation* belongs to one worker alone while the worker has blocks there; any number of workers, and
/// of streams in each, may have it inserted. A range for *parameters* is written by one worker, and read by any number,
/// which map it read-only. There are two ways to use it:
///
/// - *Published.* The writer [publishes](Self::publish_parameters) the tensors it wrote. Readers get the same tensors,
///   already filled, if they allocate them in the same order. The published list names the tensors, and any other
///   allocation is refused, so that no tensor ever lies on bytes that were not written for it. No worker writes while
///   another reads.
/// - *Transferred*, as PipeSwitch does it. Readers [place](Self::place_parameters) their tensors first; later a writer
///   [transfers](Self::transfer_parameters) them, any number of times. The program decides when. The cache can check
///   only whether the tensors of a computation lie as they were transferred last.
///
/// On drop, it takes its ranges out of the allocator and gives them back, except those with live blocks: these stay
/// with the process until it exits.
pub struct WorkerCache {
    pool: Arc<SharedPool>,
    memory: &'static DeviceMemory,
    config: SharedCacheConfig,
    patience: Duration,
    around_wait: AroundWait,
    inserted: Mutex<Vec<Inserted>>,
}

impl WorkerCache {
    /// Maps the cache of `client`'s daemon, which must have the size that `config` says, for `memory` to use.
    ///
    /// # Errors
    /// The sizes do not fit together; a driver call failed; or the daemon is gone, has no cache of this size, has it on
    /// another device, or has a chunk that holds parameters and other memory.
    pub fn recv_shared_cache(
        client: Arc<DaemonClient>,
        memory: &'static DeviceMemory,
        config: SharedCacheConfig,
    ) -> Result<Self, ShareError> {
        config.rest_bytes()?;
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
        Ok(Self { pool, memory, config, patience: PATIENCE, around_wait: |wait| wait(), inserted: Mutex::default() })
    }

    /// Sets how long to wait for the range for computation while others use it (default: 10 s).
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Makes `around` run each wait for the range for computation; `around` must call the closure it is given. It can
    /// release a lock that other threads need to make progress, such as Python's, for the length of the wait.
    #[must_use]
    pub fn with_waits_in(mut self, around: fn(&mut (dyn FnMut() + Send))) -> Self {
        self.around_wait = around;
        self
    }

    /// Returns the sizes of the cache and its parts.
    pub fn config(&self) -> &SharedCacheConfig {
        &self.config
    }

    /// Returns the cache, mapped for reading.
    pub fn pool(&self) -> &Arc<SharedPool> {
        &self.pool
    }

    /// Returns the range for parameters: the address of its first byte in this process, and its size in bytes.
    pub fn parameters(&self) -> (Address, u64) {
        (self.pool.address(), self.config.parameter_bytes)
    }

    /// Gives `bytes` bytes from `offset` to this process's allocator, for large blocks on `stream`, until they are
    /// cleared. Returns the address of the range.
    ///
    /// # Errors
    /// This process or another uses a part of the range; the range is not inside the cache; the daemon is gone.
    pub fn insert_shared_cache(&self, bytes: u64, offset: u64, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let range = RangeUse::Computation;
        let right = Right::Leased(self.lease(&inserted, range, bytes, offset, AccessMode::ReadWrite)?);
        let mapping = Arc::clone(&self.pool);
        let entry = Inserted { mapping, offset, bytes, range, stream, right, about: None };
        self.insert(&mut inserted, entry, RangePlacement::BestFit)
    }

    /// Gives the range for parameters to every allocation on `stream`, whatever its size. For writing, each allocation
    /// gets the first free place, until the parameters are [published](Self::publish_parameters). For reading, the
    /// allocations must match the published parameters, and get their places; later allocations get other memory.
    ///
    /// # Errors
    /// This process has inserted the range already; another process writes it, or uses it (if it is to be written); no
    /// readable parameters are published; the daemon is gone; a driver call failed.
    pub fn insert_shared_cache_for_parameter(
        &self,
        stream: StreamId,
        access: AccessMode,
    ) -> Result<Address, ShareError> {
        match access {
            AccessMode::Read => self.read_parameters(stream, |_| true),
            AccessMode::ReadWrite => self.write_parameters(stream, Right::Leased),
        }
    }

    /// Gives the range for parameters to `stream` for reading, if the publisher described the parameters as `about`.
    ///
    /// # Errors
    /// [`ShareError::OtherParameters`]; otherwise the same as
    /// [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    pub fn attach_parameters(&self, stream: StreamId, about: &[u8]) -> Result<Address, ShareError> {
        self.read_parameters(stream, |published| published == about)
    }

    /// Gives the range for parameters to `stream` for writing, until it is cleared or
    /// [published](Self::publish_parameters). When it is cleared, processes that have [placed](Self::place_parameters)
    /// their tensors find all blocks that were allocated here, freed since or not.
    ///
    /// # Errors
    /// The same as [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    pub fn transfer_parameters(&self, stream: StreamId) -> Result<Address, ShareError> {
        self.write_parameters(stream, Right::Transferring)
    }

    /// Gives the range for parameters, mapped read-only, to every allocation on `stream` before anything is written
    /// there: for parameters that others [transfer](Self::transfer_parameters) later. Each allocation gets the first
    /// free place. Other processes may still write the range. Several streams may insert it, each at an address of its
    /// own. If parameters are published already, this reads them like
    /// [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    ///
    /// # Errors
    /// The range is inserted for `stream` already; the daemon is gone; a driver call failed.
    pub fn place_parameters(&self, stream: StreamId) -> Result<Address, ShareError> {
        let (range, (address, bytes)) = (RangeUse::Parameters, self.parameters());
        if Manifest::read(&**self.memory.driver(), address, bytes).is_ok() {
            return self.read_parameters(stream, |_| true);
        }
        let mut inserted = self.inserted.lock();
        let mapping = self.mapping(&inserted, range, stream, 0, bytes)?;
        let entry = Inserted { mapping, offset: 0, bytes, range, stream, right: Right::Placed, about: None };
        self.insert(&mut inserted, entry, RangePlacement::InOrder)
    }

    /// Gives the range for computation to large blocks on `stream`. The stream has the range alone while blocks are in
    /// it: it leases the range when the first block is placed, and gives it back when the last is freed and the device
    /// has done its work. An allocation waits while another stream or process has the range; if the daemon is gone, it
    /// gets other memory. If this process [placed](Self::place_parameters) parameters before, a block is placed only
    /// once the parameters inserted last before this call are transferred or being transferred.
    ///
    /// Ends the allocation of parameters in ranges that this process writes, and in those placed on `stream`.
    ///
    /// # Errors
    /// The range is inserted for `stream` already; published parameters are [outstanding](ShareError::Outstanding); the
    /// daemon is gone; a driver call failed.
    pub fn insert_shared_cache_for_computation(&self, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        self.check_outstanding(&inserted)?;
        let range = RangeUse::Computation;
        let bytes = self.config.computation_bytes;
        let offset = self.config.parameter_bytes;
        let mapping = self.mapping(&inserted, range, stream, offset, bytes)?;
        let placed_parameters =
            inserted.iter().rev().find(|entry| matches!(entry.right, Right::Placed)).map(Inserted::placed_parameters);
        let waits = (self.patience, self.around_wait);
        let tenancy = Tenancy::new(Arc::clone(&mapping), (offset, bytes), self.memory, placed_parameters, waits);
        let right = Right::WhileUsed(Arc::new(tenancy));
        let entry = Inserted { mapping, offset, bytes, range, stream, right, about: None };
        let address = self.insert(&mut inserted, entry, RangePlacement::BestFit)?;
        for entry in inserted.iter() {
            let awaits = matches!(entry.right, Right::Placed) && entry.stream == stream;
            if awaits || entry.writes_parameters() {
                self.memory.donated().close(entry.address())?;
            }
        }
        Ok(address)
    }

    /// Checks that the range for parameters has room for blocks of these sizes in bytes, allocated in this order, and
    /// for publishing them with the description `about`.
    ///
    /// # Errors
    /// [`ShareError::ParametersTooLarge`], with the figures.
    pub fn check_room(&self, requests: &[u64], about: &[u8]) -> Result<(), ShareError> {
        Manifest::new(&PlacedBlock::in_order(requests), Some(about)).encode(self.config.parameter_bytes).map(drop)
    }

    /// Publishes the parameters and ends their writing. From now on other workers can read the live blocks that were
    /// allocated for parameters here, and this worker can only read them too. Readers get `about` as their description.
    ///
    /// # Errors
    /// This process writes no parameters; the range has no room left for the list of them; the daemon is gone; a driver
    /// call failed. On failure nothing is published.
    pub fn publish_parameters(&self, about: &[u8]) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        let parameters = inserted.iter_mut().find(|entry| entry.writes_parameters());
        let parameters = parameters.ok_or(ShareError::NotInserted("published"))?;
        let address = parameters.address();
        let bytes = parameters.bytes;
        let layout = self.memory.donated().close(address)?;
        Manifest::new(&layout, Some(about)).write(&**self.memory.driver(), address, bytes)?;
        if let Right::Leased(lease) | Right::Transferring(lease) = &mut parameters.right {
            lease.lower()?;
        }
        parameters.about = Some(about.to_vec());
        Ok(())
    }

    /// Returns the publisher's description of the inserted parameters.
    pub fn about_parameters(&self) -> Option<Vec<u8>> {
        self.inserted.lock().iter().find_map(|inserted| inserted.about.clone())
    }

    /// Checks that all inserted published parameters were allocated, and that [placed](Self::place_parameters)
    /// parameters lie as they were transferred last, on at least one of their streams. While parameters are being
    /// transferred, that cannot be known, and the check passes.
    ///
    /// # Errors
    /// [`ShareError::Outstanding`]: some were not allocated, and a computation would use other memory in their place.
    /// [`ShareError::PlacedOtherwise`], for the stream that was inserted last; [`ShareError::NothingPublished`];
    /// [`ShareError::Incomplete`].
    pub fn check_parameters(&self) -> Result<(), ShareError> {
        let inserted = self.inserted.lock();
        self.check_outstanding(&inserted)?;
        let placed = inserted.iter().filter(|entry| matches!(entry.right, Right::Placed));
        let checked: Vec<_> = placed.map(|entry| entry.placed_parameters().check(self.memory)).collect();
        if checked.iter().any(Result::is_ok) {
            return Ok(());
        }
        checked.into_iter().next_back().map_or(Ok(()), |last| last.map(drop))
    }

    /// Returns the streams for which a range is inserted, in ascending order.
    pub fn streams(&self) -> Vec<StreamId> {
        let mut streams: Vec<_> = self.inserted.lock().iter().map(|inserted| inserted.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Takes the ranges inserted for `stream` out of the allocator, waits for the device, and gives the ranges back if
    /// the daemon still runs. Readers are told which blocks were [transferred](Self::transfer_parameters).
    ///
    /// # Errors
    /// Blocks live in a range: free them first. That range stays, and the others are taken out. The context is lost:
    /// everything is taken out; see [`PoolLease::release`].
    pub fn clear_shared_cache(&self, stream: StreamId) -> Result<(), ShareError> {
        self.clear(|entry| entry.stream == stream)
    }

    /// Takes the range for parameters out, as [`clear_shared_cache`](Self::clear_shared_cache) does.
    ///
    /// # Errors
    /// The same as [`clear_shared_cache`](Self::clear_shared_cache).
    pub fn clear_parameters(&self) -> Result<(), ShareError> {
        self.clear(|entry| entry.range == RangeUse::Parameters)
    }

    /// Takes the ranges that `chosen` selects out of the allocator, and gives them back.
    fn clear(&self, chosen: impl Fn(&Inserted) -> bool) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        let mut results = Vec::new();
        let mut taken = Vec::new();
        for index in (0..inserted.len()).rev().filter(|&index| chosen(&inserted[index])).collect::<Vec<_>>() {
            match self.take_out(&inserted[index]) {
                Ok(written) => taken.push((inserted.remove(index), written)),
                Err(error) => results.push(Err(error)),
            }
        }
        results.extend(taken.into_iter().map(|(entry, written)| match self.give_back(entry, &written) {
            Err(ShareError::DaemonGone { .. }) => Ok(()),
            given => given,
        }));
        // Returns the first error, after all ranges were tried.
        results.into_iter().collect()
    }

    /// Takes a range out of the allocator. Returns the blocks that were transferred in it.
    fn take_out(&self, entry: &Inserted) -> Result<Vec<PlacedBlock>, ShareError> {
        let donated = self.memory.donated();
        let written = match entry.right {
            Right::Transferring(_) => donated.placed(entry.address())?,
            _ => Vec::new(),
        };
        donated.clear(entry.address()).map_err(|error| match error {
            AllocError::StillInUse { bytes, blocks, .. } => {
                ShareError::RangeInUse { range: entry.range, blocks, bytes }
            }
            error => error.into(),
        })?;
        Ok(written)
    }

    /// Gives back a range that was taken out. If this process wrote parameters there, first records `written`, the
    /// blocks that were transferred, in the range for its readers.
    fn give_back(&self, entry: Inserted, written: &[PlacedBlock]) -> Result<(), ShareError> {
        let driver = &**self.memory.driver();
        let address = entry.address();
        let bytes = entry.bytes;
        let recorded = match entry.writes_parameters() {
            true if written.is_empty() => Manifest::wipe(driver, address, bytes),
            true => Manifest::new(written, None).write(driver, address, bytes),
            false => Ok(()),
        };
        let ended = match entry.right {
            Right::Leased(lease) | Right::Transferring(lease) => lease.release(),
            Right::WhileUsed(tenancy) => tenancy.end(),
            Right::Placed => Ok(()),
        };
        recorded.and(ended)
    }

    /// Leases the range for parameters for writing, marks them as unfinished, and inserts the range.
    fn write_parameters(
        &self,
        stream: StreamId,
        right: impl FnOnce(PoolLease) -> Right,
    ) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let range = RangeUse::Parameters;
        let bytes = self.config.parameter_bytes;
        let lease = self.lease(&inserted, range, bytes, 0, AccessMode::ReadWrite)?;
        Manifest::mark_unfinished(&**self.memory.driver(), lease.address(), bytes)?;
        let mapping = Arc::clone(&self.pool);
        let right = right(lease);
        let entry = Inserted { mapping, offset: 0, bytes, range, stream, right, about: None };
        self.insert(&mut inserted, entry, RangePlacement::InOrder)
    }

    /// Leases the range for parameters for reading and inserts it, if `wanted` accepts the publisher's description.
    fn read_parameters(&self, stream: StreamId, wanted: impl Fn(&[u8]) -> bool) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let range = RangeUse::Parameters;
        let bytes = self.config.parameter_bytes;
        let lease = self.lease(&inserted, range, bytes, 0, AccessMode::Read)?;
        let (layout, about) = Manifest::read(&**self.memory.driver(), lease.address(), bytes)?;
        if !wanted(&about) {
            return Err(ShareError::OtherParameters { published: about });
        }
        let mapping = Arc::clone(&self.pool);
        let right = Right::Leased(lease);
        let entry = Inserted { mapping, offset: 0, bytes, range, stream, right, about: Some(about) };
        self.insert(&mut inserted, entry, RangePlacement::Recorded(layout))
    }

    /// Leases a range that this process has not inserted yet.
    fn lease(
        &self,
        inserted: &[Inserted],
        range: RangeUse,
        bytes: u64,
        offset: u64,
        access: AccessMode,
    ) -> Result<PoolLease, ShareError> {
        if bytes == 0 {
            return Err(ShareError::NoRange(range));
        }
        match inserted.iter().find(|entry| entry.overlaps(offset, bytes)) {
            Some(own) => Err(ShareError::AlreadyInserted(own.range)),
            None => self.pool.lease(offset, bytes, access),
        }
    }

    /// Returns a mapping of the cache in which this range is not inserted yet; fails if `stream` has the range already.
    fn mapping(
        &self,
        inserted: &[Inserted],
        range: RangeUse,
        stream: StreamId,
        offset: u64,
        bytes: u64,
    ) -> Result<Arc<SharedPool>, ShareError> {
        if bytes == 0 {
            return Err(ShareError::NoRange(range));
        }
        let own: Vec<_> = inserted.iter().filter(|entry| entry.overlaps(offset, bytes)).collect();
        match own
            .iter()
            .find(|entry| entry.stream == stream || matches!(entry.right, Right::Leased(_) | Right::Transferring(_)))
        {
            Some(own) => Err(ShareError::AlreadyInserted(own.range)),
            None if own.iter().any(|entry| Arc::ptr_eq(&entry.mapping, &self.pool)) => self.pool.map_again(),
            None => Ok(Arc::clone(&self.pool)),
        }
    }

    /// Gives a range to the allocator. The caller locks `inserted` before it takes the lease, so that other threads
    /// that insert or clear see all of the insertion or nothing.
    fn insert(
        &self,
        inserted: &mut Vec<Inserted>,
        entry: Inserted,
        placement: RangePlacement,
    ) -> Result<Address, ShareError> {
        let address = entry.address();
        let donated = self.memory.donated();
        match &entry.right {
            Right::WhileUsed(tenancy) => {
                donated.insert_behind(Arc::clone(tenancy) as Arc<dyn RangeGate>, address, entry.bytes, entry.stream)?;
            }
            _ => donated.insert(address, entry.bytes, entry.stream, placement)?,
        }
        inserted.push(entry);
        Ok(address)
    }

    /// Checks that every published parameter of the inserted ranges was allocated.
    fn check_outstanding(&self, inserted: &[Inserted]) -> Result<(), ShareError> {
        let outstanding = inserted.iter().map(|entry| self.memory.donated().outstanding(entry.address())).sum();
        if outstanding > 0 { Err(ShareError::Outstanding { outstanding }) } else { Ok(()) }
    }
}

impl Drop for WorkerCache {
    fn drop(&mut self) {
        for entry in std::mem::take(self.inserted.get_mut()) {
            match self.memory.donated().clear(entry.address()) {
                // A caller that needs the error clears the range itself first.
                Ok(()) => {
                    let _ = self.give_back(entry, &[]);
                }
                // The range stays mapped and leased until the process exits.
                Err(_) => std::mem::forget(entry),
            }
        }
    }
}
