//! PipeSwitch's calls in a worker (its patch of PyTorch 1.3: `CUDACachingAllocator.cpp`, `Module.cpp`), by name: its
//! allocator uses ranges of a cache that another process took, for a while.
//!
//! There, sizes and offsets stood in the code, a raw handle went over an open port, and every worker could write every
//! range at any time. Here sizes are configured, and a range has one writer at a time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_alloc::adaptor::{Gate, Placed, Placement};
use tenure_alloc::{Address, AllocError};
use tenure_core::StreamId;

use super::inserted::{Inserted, Right};
use super::manifest::Manifest;
use super::tenancy::{AroundWait, Tenancy};
use super::{Client, PoolLease, RangeUse, ShareError, SharedCacheConfig, SharedPool};
use crate::Access;
use crate::memory::DeviceMemory;

/// How long others' ranges are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A shared cache in a worker: in another process than its owner's, or in the same.
///
/// A range for *computation* is one worker's alone, for as long as it has blocks there; any number of workers, and of
/// streams in each, may have it inserted. One for *parameters* is written by one worker, and read by any number, who have
/// it mapped for reading only. There are two ways to it:
///
/// - *Published.* The writer [publishes](Self::publish_parameters) what it wrote. Readers find the same tensors filled, if
///   they allocate them in the same order; what was published says which these are, and anything else is refused, so that
///   no tensor ever stands on bytes that were not written for it. Nobody writes while anybody reads.
/// - *Transferred*, as PipeSwitch does it. Readers [place](Self::place_parameters) their tensors first, and a writer
///   [transfers](Self::transfer_parameters) them later, and again and again. It is for the program to say when; what can be
///   checked is whether a computation uses tensors that lie as they were transferred last.
///
/// Dropped, it takes its ranges out of the allocator and gives them back, but for those in which blocks live: these
/// stay with the process until it exits.
pub struct WorkerCache {
    pool: Arc<SharedPool>,
    memory: &'static DeviceMemory,
    config: SharedCacheConfig,
    patience: Duration,
    around_wait: AroundWait,
    inserted: Mutex<Vec<Inserted>>,
}

impl WorkerCache {
    /// Maps the cache of `client`'s daemon, which has the size of `config`, for `memory` to use.
    ///
    /// # Errors
    /// The sizes do not fit together; the daemon has no cache of this size, has it on another device, has one in which a
    /// chunk holds parameters and something else, or is gone; a driver call failed.
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
        Ok(Self { pool, memory, config, patience: PATIENCE, around_wait: |wait| wait(), inserted: Mutex::default() })
    }

    /// Waits so long for the range for computation while others use it: 10 s unless told.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Has waits for the range for computation run by `around`, which must call what it is given: who allocates may hold a
    /// lock that others need to go on, such as Python's, and can let go of it meanwhile.
    #[must_use]
    pub fn with_waits_in(mut self, around: fn(&mut (dyn FnMut() + Send))) -> Self {
        self.around_wait = around;
        self
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

    /// Gives `bytes` bytes from `offset` to this process's allocator, for large blocks on `stream`, until they are cleared.
    /// Returns their address.
    ///
    /// # Errors
    /// This process or another uses a part of the range; it is none of the cache; the daemon is gone.
    pub fn insert_shared_cache(&self, bytes: u64, offset: u64, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let range = RangeUse::Computation;
        let right = Right::Leased(self.lease(&inserted, range, bytes, offset, Access::ReadWrite)?);
        let view = Arc::clone(&self.pool);
        let one = Inserted { view, offset, bytes, range, stream, right, about: None };
        self.insert(&mut inserted, one, Placement::BestFit)
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
            Access::ReadWrite => self.write_parameters(stream, Right::Leased),
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

    /// Gives the part for parameters to `stream` for writing, until it is cleared or [published](Self::publish_parameters).
    /// What was allocated until it is cleared, freed since or not, is what those find who have
    /// [placed](Self::place_parameters) theirs.
    ///
    /// # Errors
    /// As [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    pub fn transfer_parameters(&self, stream: StreamId) -> Result<Address, ShareError> {
        self.write_parameters(stream, Right::Transferring)
    }

    /// Gives the part for parameters, mapped for reading, to every allocation on `stream`, each in the first place that is
    /// free, before anything is written there: for parameters that others [transfer](Self::transfer_parameters) later.
    /// Nobody is kept from writing. Each stream may have it, at addresses of its own. If parameters are published, they are
    /// read as by [`insert_shared_cache_for_parameter`](Self::insert_shared_cache_for_parameter).
    ///
    /// # Errors
    /// It is inserted for `stream` already; the daemon is gone; a driver call failed.
    pub fn place_parameters(&self, stream: StreamId) -> Result<Address, ShareError> {
        let (range, (address, bytes)) = (RangeUse::Parameters, self.parameters());
        if Manifest::read(&**self.memory.driver(), address, bytes).is_ok() {
            return self.read_parameters(stream, |_| true);
        }
        let mut inserted = self.inserted.lock();
        let view = self.view(&inserted, range, stream, 0, bytes)?;
        let one = Inserted { view, offset: 0, bytes, range, stream, right: Right::Awaiting, about: None };
        self.insert(&mut inserted, one, Placement::InOrder)
    }

    /// Gives the part for computation to large blocks on `stream`. It is this stream's alone while blocks are in it: leased
    /// when the first is placed there, and given back when the last is freed, once the device has done its work. Who
    /// allocates while another has it waits; who does when the daemon is gone gets other memory. If parameters were
    /// [placed](Self::place_parameters), a block is placed only once those that were inserted last before it, by this
    /// process, are transferred or being so.
    ///
    /// No more parameters are written after that.
    ///
    /// # Errors
    /// It is inserted for `stream` already; published parameters are [outstanding](ShareError::Outstanding); the daemon is
    /// gone; a driver call failed.
    pub fn insert_shared_cache_for_computation(&self, stream: StreamId) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        self.check_outstanding(&inserted)?;
        let range = RangeUse::Computation;
        let (bytes, offset) = (self.config.computation_bytes, self.config.parameter_bytes);
        let view = self.view(&inserted, range, stream, offset, bytes)?;
        let awaited = inserted.iter().rev().find(|one| matches!(one.right, Right::Awaiting)).map(Inserted::awaited);
        let waits = (self.patience, self.around_wait);
        let tenancy = Tenancy::new(Arc::clone(&view), (offset, bytes), self.memory, awaited, waits);
        let right = Right::WhileUsed(Arc::new(tenancy));
        let one = Inserted { view, offset, bytes, range, stream, right, about: None };
        let address = self.insert(&mut inserted, one, Placement::BestFit)?;
        for one in inserted.iter() {
            let awaits = matches!(one.right, Right::Awaiting) && one.stream == stream;
            if awaits || one.writes_parameters() {
                self.memory.donated().close(one.address())?;
            }
        }
        Ok(address)
    }

    /// Makes sure that the part for parameters has room for blocks of these bytes each, allocated in this order, and to
    /// publish them with `about`.
    ///
    /// # Errors
    /// [`ShareError::ParametersTooLarge`], with the figures.
    pub fn check_room(&self, requests: &[u64], about: &[u8]) -> Result<(), ShareError> {
        Manifest::new(&Placed::in_order(requests), Some(about)).encode(self.config.parameter_bytes).map(drop)
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
        let (address, bytes) = (parameters.address(), parameters.bytes);
        let layout = self.memory.donated().close(address)?;
        Manifest::new(&layout, Some(about)).write(&**self.memory.driver(), address, bytes)?;
        if let Right::Leased(lease) | Right::Transferring(lease) = &mut parameters.right {
            lease.lower()?;
        }
        parameters.about = Some(about.to_vec());
        Ok(())
    }

    /// What was said of the parameters that are inserted, by who published them.
    pub fn about_parameters(&self) -> Option<Vec<u8>> {
        self.inserted.lock().iter().find_map(|inserted| inserted.about.clone())
    }

    /// That all published parameters that are inserted were allocated, and that those that were
    /// [placed](Self::place_parameters) on one of the streams, if any were, lie as they were transferred last. While they are
    /// being transferred, that can not be known.
    ///
    /// # Errors
    /// [`ShareError::Outstanding`]: some were not, and would be computed with as something else.
    /// [`ShareError::PlacedOtherwise`], of the stream that was inserted last; [`ShareError::NothingPublished`];
    /// [`ShareError::Incomplete`].
    pub fn check_parameters(&self) -> Result<(), ShareError> {
        let inserted = self.inserted.lock();
        self.check_outstanding(&inserted)?;
        let placed = inserted.iter().filter(|one| matches!(one.right, Right::Awaiting));
        let checked: Vec<_> = placed.map(|one| one.awaited().check(self.memory)).collect();
        if checked.iter().any(Result::is_ok) {
            return Ok(());
        }
        checked.into_iter().next_back().map_or(Ok(()), |last| last.map(drop))
    }

    /// The streams that something is inserted for.
    pub fn streams(&self) -> Vec<StreamId> {
        let mut streams: Vec<_> = self.inserted.lock().iter().map(|inserted| inserted.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Takes what was inserted for `stream` out of the allocator, waits for the device, and gives it back, if anybody is
    /// there to take it. What was [transferred](Self::transfer_parameters) is told to those who read it.
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
        let mut taken = Vec::new();
        for index in (0..inserted.len()).rev().filter(|&index| chosen(&inserted[index])).collect::<Vec<_>>() {
            match self.take_out(&inserted[index]) {
                Ok(written) => taken.push((inserted.remove(index), written)),
                Err(error) => results.push(Err(error)),
            }
        }
        results.extend(taken.into_iter().map(|(one, written)| match self.give_back(one, &written) {
            Err(ShareError::DaemonGone { .. }) => Ok(()),
            given => given,
        }));
        // The first error counts, and the others were tried all the same.
        results.into_iter().collect()
    }

    /// Returns what was transferred there.
    fn take_out(&self, one: &Inserted) -> Result<Vec<Placed>, ShareError> {
        let donated = self.memory.donated();
        let written = match one.right {
            Right::Transferring(_) => donated.placed(one.address())?,
            _ => Vec::new(),
        };
        donated.clear(one.address()).map_err(|error| match error {
            AllocError::StillInUse { bytes, blocks, .. } => ShareError::RangeInUse { range: one.range, blocks, bytes },
            error => error.into(),
        })?;
        Ok(written)
    }

    /// Ends the right to a range that was taken out, in which these blocks were transferred.
    fn give_back(&self, one: Inserted, written: &[Placed]) -> Result<(), ShareError> {
        let (driver, address, bytes) = (&**self.memory.driver(), one.address(), one.bytes);
        let told = match one.writes_parameters() {
            true if written.is_empty() => Manifest::wipe(driver, address, bytes),
            true => Manifest::new(written, None).write(driver, address, bytes),
            false => Ok(()),
        };
        let ended = match one.right {
            Right::Leased(lease) | Right::Transferring(lease) => lease.release(),
            Right::WhileUsed(tenancy) => tenancy.end(),
            Right::Awaiting => Ok(()),
        };
        told.and(ended)
    }

    fn write_parameters(
        &self,
        stream: StreamId,
        right: impl FnOnce(PoolLease) -> Right,
    ) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let (range, bytes) = (RangeUse::Parameters, self.config.parameter_bytes);
        let lease = self.lease(&inserted, range, bytes, 0, Access::ReadWrite)?;
        Manifest::begin(&**self.memory.driver(), lease.address(), bytes)?;
        let (view, right) = (Arc::clone(&self.pool), right(lease));
        let one = Inserted { view, offset: 0, bytes, range, stream, right, about: None };
        self.insert(&mut inserted, one, Placement::InOrder)
    }

    fn read_parameters(&self, stream: StreamId, wanted: impl Fn(&[u8]) -> bool) -> Result<Address, ShareError> {
        let mut inserted = self.inserted.lock();
        let (range, bytes) = (RangeUse::Parameters, self.config.parameter_bytes);
        let lease = self.lease(&inserted, range, bytes, 0, Access::Read)?;
        let (layout, about) = Manifest::read(&**self.memory.driver(), lease.address(), bytes)?;
        if !wanted(&about) {
            return Err(ShareError::OtherParameters { published: about });
        }
        let (view, right) = (Arc::clone(&self.pool), Right::Leased(lease));
        let one = Inserted { view, offset: 0, bytes, range, stream, right, about: Some(about) };
        self.insert(&mut inserted, one, Placement::Recorded(layout))
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
        match inserted.iter().find(|one| one.overlaps(offset, bytes)) {
            Some(own) => Err(ShareError::AlreadyInserted(own.range)),
            None => self.pool.lease(offset, bytes, access),
        }
    }

    /// A mapping of the cache in which this range is not inserted yet, for a stream that does not have it yet.
    fn view(
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
        let own: Vec<_> = inserted.iter().filter(|one| one.overlaps(offset, bytes)).collect();
        match own
            .iter()
            .find(|one| one.stream == stream || matches!(one.right, Right::Leased(_) | Right::Transferring(_)))
        {
            Some(own) => Err(ShareError::AlreadyInserted(own.range)),
            None if own.iter().any(|one| Arc::ptr_eq(&one.view, &self.pool)) => self.pool.again(),
            None => Ok(Arc::clone(&self.pool)),
        }
    }

    /// Gives a range to the allocator. `inserted` is locked from before it is leased, so that whoever else inserts or
    /// clears finds all of it or nothing.
    fn insert(&self, inserted: &mut Vec<Inserted>, one: Inserted, placement: Placement) -> Result<Address, ShareError> {
        let (address, donated) = (one.address(), self.memory.donated());
        match &one.right {
            Right::WhileUsed(tenancy) => {
                donated.insert_behind(Arc::clone(tenancy) as Arc<dyn Gate>, address, one.bytes, one.stream)?;
            }
            _ => donated.insert(address, one.bytes, one.stream, placement)?,
        }
        inserted.push(one);
        Ok(address)
    }

    fn check_outstanding(&self, inserted: &[Inserted]) -> Result<(), ShareError> {
        let outstanding = inserted.iter().map(|one| self.memory.donated().outstanding(one.address())).sum();
        if outstanding > 0 { Err(ShareError::Outstanding { outstanding }) } else { Ok(()) }
    }
}

impl Drop for WorkerCache {
    fn drop(&mut self) {
        for one in std::mem::take(self.inserted.get_mut()) {
            match self.memory.donated().clear(one.address()) {
                // Who wants to know why not clears it first.
                Ok(()) => drop(self.give_back(one, &[])),
                // Mapped and leased until the process exits.
                Err(_) => std::mem::forget(one),
            }
        }
    }
}
