//! The mover: copies bytes from a device to pinned host memory or a disk, or from host memory to a disk, and back.

mod bytes;
mod error;
mod fetch;
mod link;
mod store;
mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::{fmt, ptr};

use parking_lot::{Condvar, Mutex};
use tenure_alloc::Request;
use tenure_core::Device;
use tenure_device::memory::{DeviceMemory, MemoryError};
use tenure_device::pinned::{PinnedConfig, PinnedError, PinnedPool, PinnedStatistics};
use tenure_device::zero_copy::ZeroCopy;
use tenure_device::{DriverError, Event, EventKind, Priority, Stream};

pub use bytes::MovableBytes;
pub use error::MoverError;
pub use fetch::PendingFetch;
pub use link::{LinkStatistics, Links};
pub use stored::Stored;

use crate::Disk;
use crate::codec::Coding;
use fetch::{FetchState, PieceRead, ReadQueue};
use link::{CopyDirection, CopyStream, StallCounter, Watcher};
use store::{BegunStore, DiskWrites};
use stored::{PiecePlace, Progress, StoredInner};

/// The largest size of a piece in bytes. Each piece is copied, written to disk and read back separately. A copy of this
/// size reaches nearly the bandwidth of its link.
const MAX_PIECE: usize = 4 << 20;
/// The largest size in bytes of a piece that stays in pinned memory. Each costs the host a call to the driver.
const MAX_PINNED_PIECE: usize = 16 << 20;
/// The most pieces that are read from disk at a time. Each has its own staging buffer.
const READS_AT_ONCE: usize = 8;
/// The number of staging buffers set aside for pieces that are being written to disk.
const WRITES_AT_ONCE: usize = 4;
/// The number of pieces that the memory must have room for, which limits the size of a piece. If there is a disk, up to
/// three quarters of the memory are staging buffers.
const MIN_PIECES: usize = 2 * READS_AT_ONCE;
/// The smallest memory in bytes that a mover accepts.
const MIN_MEMORY: usize = 8 << 20;

/// Settings of a [`Mover`].
#[derive(Clone, Debug)]
pub struct MoverOptions {
    /// Host memory in bytes, pinned if there is a device. It holds bytes stored to [`Destination::Host`], and serves as
    /// staging memory for bytes that are written to disk or read back. Without a device, this is the most bytes that
    /// may be waiting for the disk or being written at a time.
    pub memory_bytes: usize,
    /// The NUMA node whose memory is pinned, or `None` for any: best the one next to the device.
    pub numa_node: Option<u32>,
    /// The disk for bytes stored to [`Destination::Disk`].
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

/// How soon fetched bytes are needed. When a thread waits for a fetch, its pieces that are still to be read from disk
/// become as urgent as [`Now`](Self::Now).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The bytes are needed now: they are read from disk before those that are fetched ahead.
    Now,
    /// The bytes are fetched ahead and needed later.
    Ahead,
}

/// Moves bytes between one device and pinned host memory or a disk, or, without a device, between host memory and a
/// disk. Calls return before the bytes are moved unless their documentation says that they wait.
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
/// drop(storage); // the mover keeps its memory until the device has copied it
///
/// let storage = Storage::new(1 << 20, Arc::new(memory))?;
/// // SAFETY: it is used only on `compute`, which `lead_to` makes wait for the bytes.
/// let target = unsafe { MovableBytes::of(&storage, Some(&compute)) };
/// mover.fetch(&stored, target, Urgency::Ahead)?.lead_to(&compute)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Mover {
    shared: Arc<MoverShared>,
}

struct MoverShared {
    /// `None` if the mover moves host memory.
    side: Option<DeviceSide>,
    disk: Option<Disk>,
    /// The size of all pieces but a tensor's last, on the way to a disk.
    piece_bytes: usize,
    /// The same of bytes that stay in pinned memory.
    pinned_piece_bytes: usize,
    memory_bytes: usize,
    disk_writes: Mutex<DiskWrites>,
    /// Signals that a write to disk has ended.
    write_ended: Condvar,
    reads: Mutex<ReadQueue>,
    stalls: Stalls,
}

/// The threads, streams and pinned memory that serve a mover's device. The watchers are the first fields, so that they
/// are dropped before the streams.
struct DeviceSide {
    /// Waits for copies from the device.
    outward_watcher: Arc<Watcher>,
    /// Waits for copies to the device.
    inward_watcher: Watcher,
    memory: &'static DeviceMemory,
    /// The memory for bytes stored to the host.
    pool: PinnedPool,
    /// The part of it that the device uses in place.
    zero_copy: ZeroCopy,
    /// The staging memory for bytes that are written to disk or read back. All its buffers have the same size, so that
    /// each freed buffer has room for any piece.
    staging: PinnedPool,
    /// The stream from the device.
    outward: CopyStream,
    /// The streams to the device, one per [`Urgency`], since copies of one stream wait for each other.
    inward: [CopyStream; 2],
}

/// The time that host threads waited for each link.
#[derive(Default)]
struct Stalls {
    host_to_device: StallCounter,
    disk_write: StallCounter,
    disk_read: StallCounter,
}

impl Mover {
    /// Creates a mover for a device's memory, or, if `memory` is `None`, for host memory.
    ///
    /// # Errors
    /// [`MoverError::TooLittle`] if `options` gives less than 8 MiB of memory; failures of the driver and of the
    /// system.
    pub fn new(memory: Option<&'static DeviceMemory>, options: MoverOptions) -> Result<Self, MoverError> {
        let MoverOptions { memory_bytes, numa_node, disk } = options;
        if memory_bytes < MIN_MEMORY {
            return Err(MoverError::TooLittle { given: memory_bytes, least: MIN_MEMORY });
        }
        // A power of two, so that each block of memory that is pinned at once holds a whole number of pieces.
        let piece_bytes = 1 << MAX_PIECE.min(memory_bytes / MIN_PIECES).ilog2();
        let pinned_piece_bytes = 1 << MAX_PINNED_PIECE.min(memory_bytes / MIN_PIECES).ilog2();
        let staging_bytes = if disk.is_some() { (READS_AT_ONCE + WRITES_AT_ONCE) * piece_bytes } else { 0 };
        let side = memory
            .map(|memory| DeviceSide::new(memory, memory_bytes - staging_bytes, staging_bytes, numa_node))
            .transpose()?;
        let mut slots = Vec::new();
        if disk.is_some() {
            for _ in 0..READS_AT_ONCE {
                let buffer = side.as_ref().map(|side| side.staging.allocate(piece_bytes)).transpose();
                slots.push(buffer.map_err(pinned_error("the mover"))?);
            }
        }
        let reads = Mutex::new(ReadQueue::new(slots));
        let disk_writes = Mutex::default();
        let write_ended = Condvar::new();
        let stalls = Stalls::default();
        let shared = MoverShared {
            side,
            disk,
            piece_bytes,
            pinned_piece_bytes,
            memory_bytes,
            disk_writes,
            write_ended,
            reads,
            stalls,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Begins to copy bytes to `destination`, after the work that is queued on their stream so far. The mover keeps the
    /// source at least until it has been copied. The returned [`Stored`] can be fetched from at once.
    ///
    /// Waits only if staging memory is full of bytes that are being written to disk, until some of it is free.
    ///
    /// # Errors
    /// There is [no room](MoverError::is_no_room), and no write under way will free any; [`MoverError::NoPlace`];
    /// [`MoverError::OtherDevice`]; [`MoverError::Captured`]; failures of the driver. Nothing is stored then. Errors of
    /// a write to disk are returned by [`Stored::wait`].
    pub fn store(
        &self,
        name: impl Into<String>,
        source: MovableBytes,
        destination: Destination,
    ) -> Result<Stored, MoverError> {
        self.store_encoded(name, source, destination, Coding::NONE)
    }

    /// Stores bytes as [`store`](Self::store) does, and encodes them if they go to a disk. The disk's threads encode
    /// them while they copy them into the disk's staging memory.
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
                let progress = Progress::new(0, None);
                Ok(BegunStore { pieces: Vec::new(), piece_bytes: 1, progress, source: Default::default() })
            }
            (Destination::Host, Some(side), _) => shared.copy_to_pinned(side, &name, source),
            (Destination::Host, None, _) => Err(MoverError::NoPlace { name: name.clone(), place: "pinned memory" }),
            (Destination::Disk, Some(side), Some(disk)) => shared.write_from_device(side, disk, &name, source, coding),
            (Destination::Disk, None, Some(disk)) => shared.write_from_host(disk, &name, source, coding),
        };
        let BegunStore { pieces, piece_bytes, progress, source } = stored?;
        Ok(Stored { inner: Arc::new(StoredInner { name, bytes, pieces, piece_bytes, progress, source }) })
    }

    /// Begins to copy stored bytes into a target of the same size. The stored bytes stay, and can be fetched any number
    /// of times. A target on a device is written after the work that is queued on its stream so far.
    ///
    /// # Errors
    /// [`MoverError::Size`], [`MoverError::OtherDevice`], [`MoverError::Captured`]; failures of the driver, and the
    /// store's error if the bytes were lost. Nothing is fetched then. Errors of a read from disk are returned by the
    /// [`PendingFetch`].
    pub fn fetch(&self, stored: &Stored, into: MovableBytes, urgency: Urgency) -> Result<PendingFetch, MoverError> {
        let shared = &self.shared;
        let name = stored.name();
        shared.expect_device(name, &into)?;
        if into.count() != stored.bytes() {
            return Err(MoverError::Size { name: name.into(), bytes: stored.bytes(), given: into.count() });
        }
        let ready = match (&shared.side, into.stream()) {
            (Some(side), Some(stream)) => Some(side.record_event(name, stream)?),
            _ => None,
        };
        let mut in_memory = Vec::new();
        let mut on_disk = Vec::new();
        let into = Arc::new(into);
        let parts = Arc::clone(&into).pieces(stored.inner.piece_bytes);
        for (piece, to) in stored.inner.pieces.iter().zip(parts) {
            match &*piece.place.lock() {
                PiecePlace::Memory(bytes) => in_memory.push((Arc::clone(bytes), to)),
                PiecePlace::Disk(spilled) => on_disk.push((spilled.clone(), to)),
                PiecePlace::Lost(error) => return Err(error.clone()),
            }
        }
        let event = shared.fetch_from_memory(name, urgency, ready.as_ref(), &in_memory)?;
        let fetch = Arc::new(FetchState {
            shared: Arc::clone(shared),
            name: name.into(),
            urgency,
            ready,
            target: Mutex::new(Some(into)),
            progress: Progress::new(on_disk.len(), event),
        });
        shared.queue_reads(on_disk.into_iter().map(|(spilled, to)| PieceRead {
            spilled,
            to,
            fetch: Arc::clone(&fetch),
        }));
        Ok(PendingFetch { fetch })
    }

    /// Stores and fetches some scratch bytes, so that [`links`](Self::links) has bandwidths before the first real
    /// transfer. If there is a disk, the bytes are written to it, and the speeds of its codecs are measured too.
    ///
    /// # Errors
    /// The errors of [`store`](Self::store) and [`fetch`](Self::fetch), of allocating scratch memory, and of the disk.
    pub fn probe(&self) -> Result<(), MoverError> {
        let name = "a probe of the mover";
        let destination = if self.shared.disk.is_some() { Destination::Disk } else { Destination::Host };
        let stored = self.store(name, self.scratch(name)?, destination)?;
        stored.wait()?;
        self.fetch(&stored, self.scratch(name)?, Urgency::Now)?.wait()?;
        // Measures both directions at once.
        let second = self.store(name, self.scratch(name)?, destination)?;
        self.fetch(&stored, self.scratch(name)?, Urgency::Now)?.wait()?;
        second.wait()?;
        // Frees the room of both, which the test of the codecs needs.
        drop((stored, second));
        self.shared.disk.as_ref().map_or(Ok(()), |disk| disk.probe_codecs(name)).map_err(MoverError::disk)
    }

    /// Allocates scratch bytes for [`probe`](Self::probe): at most a quarter of the disk's capacity, so that two such
    /// stores fit on it.
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

    /// Returns the device whose bytes this mover moves, or [`Device::CPU`] if it moves host memory.
    pub fn device(&self) -> Device {
        self.shared.device()
    }

    /// Returns the mover's disk, if it has one.
    pub fn disk(&self) -> Option<&Disk> {
        self.shared.disk.as_ref()
    }

    /// Returns the traffic over each link since the mover was created.
    pub fn links(&self) -> Links {
        let MoverShared { side, disk, stalls, .. } = &*self.shared;
        let disk = disk.as_ref().map(Disk::statistics).unwrap_or_default();
        let waited = stalls.host_to_device.statistics(0, Default::default());
        Links {
            device_to_host: side.as_ref().map(|side| side.outward.statistics()).unwrap_or_default(),
            host_to_device: (side.iter().flat_map(|side| &side.inward))
                .map(CopyStream::statistics)
                .fold(waited, LinkStatistics::plus),
            disk_write: stalls.disk_write.statistics(disk.written_bytes, disk.writing),
            disk_read: stalls.disk_read.statistics(disk.read_bytes, disk.reading),
            disk_together: LinkStatistics {
                bytes: disk.together_bytes,
                busy: disk.together,
                ..LinkStatistics::default()
            },
        }
    }

    /// Returns statistics of the pinned memory that holds bytes stored to the host, or `None` if the mover has no
    /// device.
    pub fn pinned(&self) -> Option<PinnedStatistics> {
        self.shared.side.as_ref().map(|side| side.pool.statistics())
    }

    /// Returns memory that the device uses in place. It is a part of the memory for bytes stored to the host. None if
    /// the mover has no device.
    pub fn zero_copy(&self) -> Option<&ZeroCopy> {
        self.shared.side.as_ref().map(|side| &side.zero_copy)
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoverShared { memory_bytes, disk, .. } = &*self.shared;
        write!(f, "Mover({}, {memory_bytes} bytes, {disk:?})", self.device())
    }
}

impl DeviceSide {
    /// Creates the pools, of so many bytes, and the streams, and starts the threads.
    fn new(
        memory: &'static DeviceMemory,
        pool_bytes: usize,
        staging_bytes: usize,
        numa_node: Option<u32>,
    ) -> Result<Self, MoverError> {
        let pool = pinned_pool(memory, pool_bytes, numa_node);
        Ok(Self {
            memory,
            zero_copy: ZeroCopy::new(memory, pool.clone()),
            pool,
            staging: pinned_pool(memory, staging_bytes, numa_node),
            outward_watcher: Arc::new(start_watcher("tenure-out")?),
            inward_watcher: start_watcher("tenure-in")?,
            outward: copy_stream(memory, Priority::Default, CopyDirection::Out)?,
            inward: [
                copy_stream(memory, Priority::High, CopyDirection::In)?,
                copy_stream(memory, Priority::Default, CopyDirection::In)?,
            ],
        })
    }

    /// Records an event on a stream after all work that is queued on it now. Fails if the stream is being captured.
    fn record_event(&self, name: &str, stream: &Stream) -> Result<Event, MoverError> {
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

    /// Returns an error if the bytes are not on the mover's device.
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
        // A failed driver fails the next transfer too, which reports it.
        let _ = self.memory.free(self.address);
    }
}

fn pinned_pool(memory: &DeviceMemory, bytes: usize, numa_node: Option<u32>) -> PinnedPool {
    let config = PinnedConfig { user: "moved tensors", numa_node, ..PinnedConfig::new(bytes as u64) };
    PinnedPool::new(Arc::clone(memory.driver()), config)
}

fn start_watcher(name: &str) -> Result<Watcher, MoverError> {
    Watcher::start(name).map_err(|error| MoverError::Threads(Arc::new(error)))
}

fn copy_stream(
    memory: &'static DeviceMemory,
    priority: Priority,
    direction: CopyDirection,
) -> Result<CopyStream, MoverError> {
    let stream = memory.streams().pooled(priority).map_err(MoverError::driver("the mover"))?;
    Ok(CopyStream::new(stream, direction))
}

/// Returns a function that turns an error of a pinned pool into one that names the tensor.
fn pinned_error(name: &str) -> impl Fn(PinnedError) -> MoverError + '_ {
    move |source| MoverError::Pinned { name: name.into(), source }
}

/// Returns a function that turns an error of a device's memory into one that names the tensor.
fn memory_error(name: &str) -> impl Fn(MemoryError) -> MoverError + '_ {
    move |source| MoverError::Memory { name: name.into(), source: source.into() }
}
