//! The mover: copies bytes from a device or from host memory to another tier, and back.

mod bytes;
mod departure;
mod error;
mod fetch;
mod link;
mod stored;
#[cfg(test)]
mod tests;
mod watcher;

use std::sync::Arc;
use std::{fmt, ptr};

use parking_lot::{Condvar, Mutex};
use tenure_alloc::Request;
use tenure_core::Device;
use tenure_device::memory::{DeviceMemory, MemoryError};
use tenure_device::pinned::{PinnedConfig, PinnedError, PinnedPool, PinnedStatistics};
use tenure_device::{DriverError, Event, EventKind, Priority, Stream};

pub use bytes::MovableBytes;
pub use error::MoverError;
pub use fetch::PendingFetch;
pub use link::{LinkStatistics, Links};
pub use stored::Stored;

use crate::Disk;
use crate::codec::Coding;
use departure::{Departing, Departures};
use fetch::{FetchState, PieceRead, ReadQueue};
use link::{CopyDirection, CopyStream, StallCounter};
use stored::{PiecePlace, Progress, StoredInner};
use watcher::Watcher;

/// The most bytes of a piece. Each piece goes to disk and comes back separately. A copy of this size is nearly as fast
/// as a link allows.
const MAX_PIECE: usize = 4 << 20;
/// The number of pieces read from disk at a time.
const READS_AT_ONCE: usize = 8;
/// The number of pieces on their way to disk at a time.
const WRITES_AT_ONCE: usize = 4;
/// The least number of pieces that the memory holds: three quarters of them serve as staging on the way to and from
/// disk.
const PIECES: usize = 2 * READS_AT_ONCE;
/// The least memory of a mover in bytes.
const LEAST_MEMORY: usize = 8 << 20;

/// Settings of a [`Mover`].
#[derive(Clone, Debug)]
pub struct MoverOptions {
    /// Host memory in bytes, pinned if there is a device. It holds bytes that are stored to the host, and stages bytes
    /// that go to disk or come back. Without a device, this is the most that may be on its way to disk at a time.
    pub memory_bytes: usize,
    /// The NUMA node to pin memory of, if the host has any: the one next to the device.
    pub numa_node: Option<u32>,
    /// The disk for bytes that do not stay in memory.
    pub disk: Option<Disk>,
}

impl MoverOptions {
    /// Settings for `memory_bytes` of memory on any node, without a disk.
    pub fn new(memory_bytes: usize) -> Self {
        Self { memory_bytes, numa_node: None, disk: None }
    }
}

/// The tier that bytes are stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Pinned host memory, for bytes of a device.
    Host,
    /// A disk.
    Disk,
}

/// How soon fetched bytes are needed. A fetch that a thread waits for becomes [`Now`](Self::Now), whatever it was
/// given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Now: these bytes go before those that are fetched ahead.
    Now,
    /// Later.
    Ahead,
}

/// Moves bytes between one device, or host memory, and the tiers below it. No call waits for the bytes unless its
/// documentation says so.
///
/// This is a handle: clones share one mover. After the last is dropped, transfers under way still finish.
///
/// ```
/// use std::sync::Arc;
/// use tenure_device::memory::{DeviceMemory, MemoryConfig};
/// use tenure_device::sim::{SimConfig, SimDriver};
/// use tenure_core::Storage;
/// use tenure_tier::{Destination, MovableBytes, Mover, MoverOptions, Urgency};
///
/// let driver = Arc::new(SimDriver::new(SimConfig::default()));
/// let memory: &'static DeviceMemory = Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default())?));
/// let mover = Mover::new(Some(memory), MoverOptions::new(64 << 20))?;
/// let compute = memory.streams().null();
///
/// let storage = Storage::new(1 << 20, Arc::new(memory))?;
/// // SAFETY: nothing writes to it any more.
/// let source = unsafe { MovableBytes::of(&storage, Some(&compute)) };
/// let stored = mover.store("encoder.0/linear/out#0", source, Destination::Host)?;
/// drop(storage); // its memory is used again as soon as the device has copied it
///
/// let storage = Storage::new(1 << 20, Arc::new(memory))?;
/// // SAFETY: it is used only after its arrival.
/// let target = unsafe { MovableBytes::of(&storage, Some(&compute)) };
/// mover.fetch(&stored, target, Urgency::Ahead)?.lead_to(&compute)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Mover {
    shared: Arc<MoverShared>,
}

struct MoverShared {
    side: Option<DeviceSide>,
    disk: Option<Disk>,
    piece_bytes: usize,
    memory_bytes: usize,
    leaving: Mutex<Departures>,
    /// Signals that fewer bytes are on their way to disk.
    left: Condvar,
    reads: Mutex<ReadQueue>,
    stalls: Stalls,
}

/// The parts of a mover that serve its device. The watchers are the first fields, so that they are dropped before the
/// streams.
struct DeviceSide {
    departures: Arc<Watcher>,
    arrivals: Watcher,
    memory: &'static DeviceMemory,
    /// The memory for bytes that stay.
    pool: PinnedPool,
    /// The staging memory for bytes on their way to disk or back. All its pieces have one size, so that each freed
    /// piece has room for any other.
    staging: PinnedPool,
    outward: CopyStream,
    /// The streams to the device, one per urgency, since copies of one stream wait for each other.
    inward: [CopyStream; 2],
}

#[derive(Default)]
struct Stalls {
    host_to_device: StallCounter,
    disk_write: StallCounter,
    disk_read: StallCounter,
}

impl Mover {
    /// Creates a mover for a device's memory, or for host memory.
    ///
    /// # Errors
    /// [`MoverError::TooLittle`] if `options` gives less than 8 MiB of memory; failures of the driver and of the
    /// system.
    pub fn new(memory: Option<&'static DeviceMemory>, options: MoverOptions) -> Result<Self, MoverError> {
        let MoverOptions { memory_bytes, numa_node, disk } = options;
        if memory_bytes < LEAST_MEMORY {
            return Err(MoverError::TooLittle { given: memory_bytes, least: LEAST_MEMORY });
        }
        // A power of two: whatever amount of memory is pinned at once holds a whole number of pieces.
        let piece_bytes = 1 << MAX_PIECE.min(memory_bytes / PIECES).ilog2();
        let staging_bytes = if disk.is_some() { (READS_AT_ONCE + WRITES_AT_ONCE) * piece_bytes } else { 0 };
        let side = |memory| DeviceSide::new(memory, [memory_bytes - staging_bytes, staging_bytes], numa_node);
        let side = memory.map(side).transpose()?;
        let mut lanes = Vec::new();
        if disk.is_some() {
            for _ in 0..READS_AT_ONCE {
                let buffer = side.as_ref().map(|side| side.staging.allocate(piece_bytes)).transpose();
                lanes.push(buffer.map_err(pinned("the mover"))?);
            }
        }
        let reads = Mutex::new(ReadQueue::new(lanes));
        let leaving = Mutex::default();
        let left = Condvar::new();
        let stalls = Stalls::default();
        let shared = MoverShared { side, disk, piece_bytes, memory_bytes, leaving, left, reads, stalls };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Begins to store bytes, as they are when the work queued on their stream so far is done. The mover keeps the
    /// source until its bytes are out. They can be fetched at any time from now on.
    ///
    /// Waits only for room that bytes on their way to disk are about to free.
    ///
    /// # Errors
    /// There is [no room](MoverError::is_no_room) and none is about to be freed; [`MoverError::NoPlace`];
    /// [`MoverError::OtherDevice`]; failures of the driver. Nothing is stored then. [`Stored::wait`] returns other
    /// errors of the disk.
    pub fn store(
        &self,
        name: impl Into<String>,
        source: MovableBytes,
        destination: Destination,
    ) -> Result<Stored, MoverError> {
        self.store_encoded(name, source, destination, Coding::NONE)
    }

    /// Stores bytes as [`store`](Self::store) does, encoded if they go to a disk. The thread that copies them into the
    /// disk's staging memory encodes them there.
    ///
    /// # Errors
    /// The errors of [`store`](Self::store).
    pub fn store_encoded(
        &self,
        name: impl Into<String>,
        source: MovableBytes,
        destination: Destination,
        coding: Coding,
    ) -> Result<Stored, MoverError> {
        let shared = &self.shared;
        let name = name.into();
        let bytes = source.count();
        shared.expect_device(&name, &source)?;
        let stored = match (destination, &shared.side, &shared.disk) {
            (Destination::Disk, _, None) => Err(MoverError::NoPlace { name: name.clone(), place: "disk" }),
            _ if bytes == 0 => {
                Ok(Departing { pieces: Vec::new(), progress: Progress::new(0, None), source: Default::default() })
            }
            (Destination::Host, Some(side), _) => shared.store_pinned(side, &name, source),
            (Destination::Host, None, _) => Err(MoverError::NoPlace { name: name.clone(), place: "pinned memory" }),
            (Destination::Disk, Some(side), Some(disk)) => shared.store_through(side, disk, &name, source, coding),
            (Destination::Disk, None, Some(disk)) => shared.store_host(disk, &name, source, coding),
        };
        let Departing { pieces, progress, source } = stored?;
        Ok(Stored { inner: Arc::new(StoredInner { name, bytes, pieces, progress, source }) })
    }

    /// Begins to fetch stored bytes into a target of the same size. They can be fetched any number of times. A target
    /// on a device is written after the work queued on its stream so far.
    ///
    /// # Errors
    /// [`MoverError::Size`], [`MoverError::OtherDevice`]; failures of the driver, and the store's error if the bytes
    /// were lost. Nothing is fetched then. The pending fetch returns errors of the disk.
    pub fn fetch(&self, stored: &Stored, into: MovableBytes, urgency: Urgency) -> Result<PendingFetch, MoverError> {
        let shared = &self.shared;
        let name = stored.name();
        shared.expect_device(name, &into)?;
        if into.count() != stored.bytes() {
            return Err(MoverError::Size { name: name.into(), bytes: stored.bytes(), given: into.count() });
        }
        let ready = match (&shared.side, into.stream()) {
            (Some(side), Some(stream)) => Some(side.mark(name, stream)?),
            _ => None,
        };
        let mut there = Vec::new();
        let mut spilled = Vec::new();
        let into = Arc::new(into);
        for (piece, to) in stored.inner.pieces.iter().zip(Arc::clone(&into).pieces(shared.piece_bytes)) {
            match &*piece.place.lock() {
                PiecePlace::Memory(held) => there.push((Arc::clone(held), to)),
                PiecePlace::Disk(from) => spilled.push((from.clone(), to)),
                PiecePlace::Lost(error) => return Err(error.clone()),
            }
        }
        let event = shared.fetch_held(name, urgency, ready.as_ref(), &there)?;
        let fetch = Arc::new(FetchState {
            shared: Arc::clone(shared),
            name: name.into(),
            urgency,
            ready,
            target: Mutex::new(Some(into)),
            progress: Progress::new(spilled.len(), event),
        });
        shared.read(spilled.into_iter().map(|(spilled, to)| PieceRead { spilled, to, fetch: Arc::clone(&fetch) }));
        Ok(PendingFetch { fetch })
    }

    /// Moves some bytes out and back, so that [`links`](Self::links) knows bandwidths before the first real transfer.
    /// If there is a disk, the bytes go through it, and its codecs are tried too.
    ///
    /// # Errors
    /// The errors of [`store`](Self::store) and [`fetch`](Self::fetch), of allocating scratch memory, and of the disk.
    pub fn probe(&self) -> Result<(), MoverError> {
        let name = "a probe of the mover";
        let destination = if self.shared.disk.is_some() { Destination::Disk } else { Destination::Host };
        let stored = self.store(name, self.scratch(name)?, destination)?;
        stored.wait()?;
        self.fetch(&stored, self.scratch(name)?, Urgency::Now)?.wait()?;
        // Both directions at once.
        let leaving = self.store(name, self.scratch(name)?, destination)?;
        self.fetch(&stored, self.scratch(name)?, Urgency::Now)?.wait()?;
        leaving.wait()?;
        // Both take room that the codecs' test needs.
        drop((stored, leaving));
        self.shared.disk.as_ref().map_or(Ok(()), |disk| disk.probe_codecs(name)).map_err(MoverError::disk)
    }

    /// Returns scratch bytes for [`probe`](Self::probe), at most a quarter of the disk, so that two such stores fit on
    /// it.
    fn scratch(&self, name: &str) -> Result<MovableBytes, MoverError> {
        let MoverShared { side, piece_bytes, disk, .. } = &*self.shared;
        let room = disk.as_ref().map_or(usize::MAX, |disk| disk.capacity_bytes() as usize / 4);
        let count = (piece_bytes * READS_AT_ONCE).min(room);
        let Some(DeviceSide { memory, .. }) = side else {
            let mut bytes = vec![0_u8; count];
            // SAFETY: a vector's bytes stay where they are when it is moved.
            return Ok(unsafe { MovableBytes::new(bytes.as_mut_ptr(), count, None, bytes) });
        };
        let stream = memory.streams().null();
        let block = memory.allocate(Request::new(count as u64, stream.id())).map_err(memory_error(name))?;
        let scratch = Scratch { memory, address: block.address };
        // SAFETY: the block is freed with its owner, and nothing else uses it.
        Ok(unsafe {
            MovableBytes::new(ptr::without_provenance_mut(block.address as usize), count, Some(&stream), scratch)
        })
    }

    /// Returns the device whose memory this mover moves, or [`Device::CPU`].
    pub fn device(&self) -> Device {
        self.shared.device()
    }

    /// Returns the mover's disk, if it has one.
    pub fn disk(&self) -> Option<&Disk> {
        self.shared.disk.as_ref()
    }

    /// Returns the statistics of each link.
    pub fn links(&self) -> Links {
        let MoverShared { side, disk, stalls, .. } = &*self.shared;
        let disk = disk.as_ref().map(Disk::statistics).unwrap_or_default();
        let copies = |streams: &[CopyStream]| {
            streams.iter().map(CopyStream::statistics).fold(LinkStatistics::default(), LinkStatistics::and)
        };
        let [device_to_host, host_to_device] = match side {
            Some(side) => [copies(std::slice::from_ref(&side.outward)), copies(&side.inward)],
            None => Default::default(),
        };
        Links {
            device_to_host,
            host_to_device: host_to_device.and(stalls.host_to_device.with(0, Default::default())),
            disk_write: stalls.disk_write.with(disk.written_bytes, disk.writing),
            disk_read: stalls.disk_read.with(disk.read_bytes, disk.reading),
            disk_together: LinkStatistics {
                bytes: disk.together_bytes,
                busy: disk.together,
                ..LinkStatistics::default()
            },
        }
    }

    /// Returns the statistics of the pinned memory that stored bytes stay in, if the mover has a device.
    pub fn pinned(&self) -> Option<PinnedStatistics> {
        self.shared.side.as_ref().map(|side| side.pool.statistics())
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoverShared { memory_bytes, disk, .. } = &*self.shared;
        write!(f, "Mover({}, {memory_bytes} bytes, {disk:?})", self.device())
    }
}

impl DeviceSide {
    fn new(memory: &'static DeviceMemory, bytes: [usize; 2], numa_node: Option<u32>) -> Result<Self, MoverError> {
        let pool = |bytes: usize| {
            let config = PinnedConfig { numa_node, ..PinnedConfig::new(bytes as u64) };
            PinnedPool::new(Arc::clone(memory.driver()), config).map_err(pinned("the mover"))
        };
        let [pool, staging] = [pool(bytes[0])?, pool(bytes[1])?];
        let copies = |priority, direction| {
            let stream = memory.streams().pooled(priority).map_err(MoverError::driver("the mover"))?;
            Ok::<_, MoverError>(CopyStream::new(stream, direction))
        };
        let watcher = |name| Watcher::start(name).map_err(|error| MoverError::Threads(Arc::new(error)));
        Ok(Self {
            departures: Arc::new(watcher("tenure-out")?),
            arrivals: watcher("tenure-in")?,
            memory,
            pool,
            staging,
            outward: copies(Priority::Default, CopyDirection::Out)?,
            inward: [copies(Priority::High, CopyDirection::In)?, copies(Priority::Default, CopyDirection::In)?],
        })
    }

    /// Records an event after all work that is on a stream now.
    fn mark(&self, name: &str, stream: &Stream) -> Result<Event, MoverError> {
        let driver = self.memory.driver();
        if driver.is_capturing(stream.id()).map_err(DriverError::from).map_err(MoverError::driver(name))? {
            return Err(MoverError::Captured { name: name.into() });
        }
        let mut event = Event::new(Arc::clone(driver), EventKind::Order);
        event.record(stream).map_err(MoverError::driver(name))?;
        Ok(event)
    }
}

impl MoverShared {
    fn device(&self) -> Device {
        self.side.as_ref().map_or(Device::CPU, |side| side.memory.device())
    }

    fn expect_device(&self, name: &str, bytes: &MovableBytes) -> Result<(), MoverError> {
        let given = bytes.device();
        let device = self.device();
        if given == device { Ok(()) } else { Err(MoverError::OtherDevice { name: name.into(), given, device }) }
    }
}

/// A device block that is freed on drop.
struct Scratch {
    memory: &'static DeviceMemory,
    address: u64,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The driver reports its failure where it matters.
        let _ = self.memory.free(self.address);
    }
}

fn pinned(name: &str) -> impl Fn(PinnedError) -> MoverError + '_ {
    move |source| MoverError::Pinned { name: name.into(), source }
}

fn memory_error(name: &str) -> impl Fn(MemoryError) -> MoverError + '_ {
    move |source| MoverError::Memory { name: name.into(), source: source.into() }
}
