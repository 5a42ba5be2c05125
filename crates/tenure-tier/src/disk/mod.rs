//! Disks as a tier: bytes are written to files in folders and read back, several transfers at once, and are verified.

mod engine;
mod error;
mod file;
mod gpu_direct;
mod ring;
mod staging;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, process, thread};

use parking_lot::{Condvar, Mutex};
use tenure_alloc::Arena;
use tenure_core::{DType, Unforked};

pub use error::DiskError;
pub use gpu_direct::GpuDirect;
pub use transfer::Ticket;

use crate::TierError;
use crate::codec::{Choice, Codec, Coding, Encoded, LOSSLESS, Speeds};
use crate::system;
pub(crate) use engine::{Direction, end};
use engine::{Engine, Threads};
use file::ExtentFile;
use ring::Ring;
pub(crate) use staging::{CHUNK, Chunk, DISK_BLOCK, StagingMemory};
use transfer::{DiskState, DiskTransfer};

/// The length of a day for [`DiskOptions::daily_bytes`].
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of threads that copy between tensors and chunks and compute checksums.
const COPIERS: usize = 2;

/// Settings of a [`Disk`].
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The total size of the files in bytes, allocated when the disk is opened.
    pub capacity: u64,
    /// Staging memory in bytes. It is rounded down to whole chunks, to at least 2 and at most 96. Transfers that wait
    /// for it use no memory of their own.
    pub staging_bytes: usize,
    /// The most bytes that may be written in a day, or `None` for no limit: disks wear out. A day begins when the disk
    /// is opened, and again with the first write more than 24 hours later. Only writes of this tier count, with their
    /// size before encoding.
    pub daily_bytes: Option<u64>,
}

impl DiskOptions {
    /// Settings for files of `capacity` bytes in total, 64 MiB of staging memory, and no daily limit.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, staging_bytes: 64 << 20, daily_bytes: None }
    }
}

/// A tier of files on disks, one file per folder. The files have no names and are gone when the process ends. Written
/// bytes are divided into pieces that go to the folders in turn.
///
/// This is a handle: clones share one tier. Dropping the last one finishes the transfers under way first.
///
/// ```
/// use tenure_tier::{Disk, DiskOptions};
///
/// let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(16 << 20))?;
/// let writing = disk.write("encoder.0/linear/out#0", vec![7_u8; 3 << 20])?; // returns at once
/// let spilled = writing.wait()?;
/// let reading = disk.read(&spilled, vec![0_u8; 3 << 20])?;
/// assert_eq!(reading.wait()?, vec![7_u8; 3 << 20]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Disk {
    running: Arc<Running>,
}

/// The state that ends with the last handle: its threads and the transfers under way.
struct Running {
    shared: Arc<DiskShared>,
    copiers: Vec<thread::JoinHandle<()>>,
    /// The process that opened the tier. The threads do not run in a forked child.
    process: u32,
}

struct DiskShared {
    files: Vec<Arc<ExtentFile>>,
    engine: Box<dyn Engine>,
    options: DiskOptions,
    /// Forked children lock this too, when they drop what they hold.
    extents: Unforked<Extents>,
    state: Mutex<DiskState>,
    speeds: Speeds,
    /// Signals that there is something to copy, or that no more will come.
    work: Condvar,
}

/// The parts of the files that are in use.
struct Extents {
    /// The free parts of each file.
    free: Vec<Arena>,
    /// The file that the next piece goes to if it has room.
    turn: usize,
    /// The start of the current day, and the bytes accepted for writing in it.
    day: (Instant, u64),
}

/// A piece of some written bytes.
struct SpilledPiece {
    file: usize,
    offset: u64,
    /// The number of bytes before encoding.
    bytes: usize,
    /// The piece as it is in the file, set once it has been encoded.
    written: OnceLock<Written>,
}

/// A piece's encoding in its file.
struct Written {
    codec: Codec,
    bytes: usize,
    /// CRC-32.
    checksum: u32,
}

impl SpilledPiece {
    /// Returns the number of bytes that the piece takes in the file, rounded up to whole blocks. An encoded piece is
    /// shorter than the room set aside for it.
    fn bytes_in_file(&self) -> usize {
        self.written.get().map_or(self.bytes, |written| written.bytes).next_multiple_of(DISK_BLOCK)
    }
}

/// Bytes on disk, under the name that errors use. Clones share them; dropping the last clone frees their room.
#[derive(Clone)]
pub struct Spilled {
    stored: Arc<SpilledInner>,
}

struct SpilledInner {
    name: String,
    bytes: u64,
    coding: Coding,
    pieces: Vec<SpilledPiece>,
    shared: Arc<DiskShared>,
}

impl Drop for SpilledInner {
    fn drop(&mut self) {
        self.shared.extents.lock().give_back(&self.pieces);
    }
}

impl Spilled {
    /// Returns the name that the bytes were written under.
    pub fn name(&self) -> &str {
        &self.stored.name
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.stored.bytes
    }

    /// Returns how the bytes were encoded. The codec is the one used for most of them.
    pub fn encoded(&self) -> Encoded {
        Encoded::of_all(self.stored.pieces.iter().filter_map(|piece| {
            let Written { codec, bytes, .. } = *piece.written.get()?;
            Some(Encoded { codec, raw_bytes: piece.bytes, bytes })
        }))
    }
}

impl fmt::Debug for Spilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spilled({:?}, {} bytes)", self.name(), self.bytes())
    }
}

/// Reserved room for bytes that will be written.
pub(crate) struct Room {
    stored: SpilledInner,
}

impl Room {
    /// Returns the name of the bytes that the room is for.
    pub(crate) fn name(&self) -> &str {
        &self.stored.name
    }

    /// Begins to write bytes. They must be exactly as many as the room is for. They are kept until they are on disk.
    /// Does not wait.
    ///
    /// # Errors
    /// [`DiskError::Worn`] if the daily limit would be exceeded.
    pub(crate) fn write(self, source: impl AsRef<[u8]> + Send + 'static) -> Result<Ticket<Spilled>, DiskError> {
        let stored = Arc::new(self.stored);
        let source = Box::new(source);
        let shared = Arc::clone(&stored.shared);
        shared.count_daily_write(&stored)?;
        let start = (*source).as_ref().as_ptr().cast_mut();
        let transfer = DiskTransfer::new(Direction::Out, &stored, start, source);
        shared.begin(&transfer, &stored);
        Ok(Ticket::new(transfer, Arc::new(Mutex::new(Some(Spilled { stored })))))
    }
}

/// Statistics of a [`Disk`] since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskStatistics {
    /// Free bytes, in whole blocks.
    pub free_bytes: u64,
    /// Bytes written, in whole blocks.
    pub written_bytes: u64,
    /// The bytes that were written, in whole blocks, before encoding.
    pub raw_bytes: u64,
    /// Bytes read, in whole blocks.
    pub read_bytes: u64,
    /// Time in which any write was under way.
    pub writing: Duration,
    /// Time in which any read was under way.
    pub reading: Duration,
    /// Bytes moved in either direction while both a read and a write were under way.
    pub together_bytes: u64,
    /// Time in which both a read and a write were under way.
    pub together: Duration,
    /// Bytes accepted for writing in the current day, of [`DiskOptions::daily_bytes`].
    pub today_bytes: u64,
}

impl Disk {
    /// Returns the largest total size of equally large files, one in each of these folders. Folders on one file system
    /// share its room.
    ///
    /// # Errors
    /// [`TierError`] if a folder does not exist.
    pub fn free_bytes_in(folders: &[PathBuf]) -> Result<u64, TierError> {
        let systems = folders.iter().map(|folder| file::system_of(folder)).collect::<Result<Vec<_>, _>>()?;
        let mut shares = Vec::with_capacity(folders.len());
        for (folder, system) in folders.iter().zip(&systems) {
            let sharing = systems.iter().filter(|other| *other == system).count() as u64;
            shares.push(file::free_bytes(folder)? / sharing);
        }
        Ok(shares.into_iter().min().unwrap_or(0) * folders.len() as u64)
    }

    /// Returns whether a folder is on a file system in memory, so that spilling to it saves no memory.
    pub fn is_in_memory(folder: &Path) -> bool {
        system::file_system(folder).is_ok_and(|kind| kind == system::TMPFS)
    }

    /// Opens a tier with one file in each of `folders`. Each file has an equal share of the capacity.
    ///
    /// # Errors
    /// [`TierError`]: no folder is given, one does not exist or is full, or the capacity is less than a block for each.
    pub fn open(folders: &[PathBuf], options: DiskOptions) -> Result<Self, TierError> {
        Self::with_engine(folders, options, |memory, chunks| match Ring::start(memory) {
            Ok(ring) => Ok(Box::new(ring)),
            // Containers often forbid `io_uring`.
            Err(_) => Ok(Box::new(Threads::start(chunks.min(16))?)),
        })
    }

    fn with_engine(
        folders: &[PathBuf],
        options: DiskOptions,
        engine: impl FnOnce(&Arc<StagingMemory>, usize) -> std::io::Result<Box<dyn Engine>>,
    ) -> Result<Self, TierError> {
        let what = || folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        let unit = (DISK_BLOCK * folders.len()) as u64;
        let each = options.capacity.checked_div(unit).ok_or(TierError::NoFolder)? * DISK_BLOCK as u64;
        if each == 0 {
            let capacity = options.capacity;
            let alignment = unit;
            return Err(TierError::TooSmall { what: what(), capacity, alignment });
        }
        let failed = |call| move |source| TierError::System { what: what(), call, source };
        let count = (options.staging_bytes / CHUNK).clamp(2, 96);
        let chunks = StagingMemory::chunks(count).map_err(failed("mmap"))?;
        let files = folders.iter().map(|folder| ExtentFile::create(folder, each, &chunks[0]).map(Arc::new));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        let engine = engine(chunks[0].memory(), count).map_err(failed("starting"))?;
        let free = files.iter().map(|_| Arena::new(0, each)).collect();
        let shared = Arc::new(DiskShared {
            files,
            engine,
            options,
            extents: Unforked::new(Extents { free, turn: 0, day: (Instant::now(), 0) }),
            state: Mutex::new(DiskState::new(chunks)),
            speeds: Speeds::default(),
            work: Condvar::new(),
        });
        let mut running = Running { shared, copiers: Vec::new(), process: process::id() };
        for number in 0..COPIERS {
            let shared = Arc::clone(&running.shared);
            let thread = thread::Builder::new().name(format!("tenure-copy-{number}"));
            running.copiers.push(thread.spawn(move || shared.copy()).map_err(failed("starting"))?);
        }
        Ok(Self { running: Arc::new(running) })
    }

    /// Begins to write bytes. They are kept until they are on disk. Does not wait.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Worn`] and [`DiskError::Forked`]. The ticket returns errors of the disk.
    pub fn write(
        &self,
        name: impl Into<String>,
        source: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Ticket<Spilled>, DiskError> {
        self.write_encoded(name, source, Coding::NONE)
    }

    /// Writes bytes as [`write`](Self::write) does, encoded. Each piece of 1 MiB is encoded on its own, in its staging
    /// chunk.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write). Room is reserved as if encoding saved nothing.
    pub fn write_encoded(
        &self,
        name: impl Into<String>,
        source: impl AsRef<[u8]> + Send + 'static,
        coding: Coding,
    ) -> Result<Ticket<Spilled>, DiskError> {
        let bytes = source.as_ref().len();
        self.reserve(name, bytes, coding)?.write(source)
    }

    /// Reserves room for bytes that will be written. Dropping it instead frees the room.
    ///
    /// # Errors
    /// [`DiskError::Full`] and [`DiskError::Forked`].
    pub(crate) fn reserve(&self, name: impl Into<String>, bytes: usize, coding: Coding) -> Result<Room, DiskError> {
        let shared = &self.running.shared;
        let name = name.into();
        self.expect_threads(&name)?;
        let pieces = shared.take_extents(&name, bytes)?;
        Ok(Room { stored: SpilledInner { name, bytes: bytes as u64, coding, pieces, shared: Arc::clone(shared) } })
    }

    /// Begins to read spilled bytes into a buffer of the same size, which the ticket returns. Does not wait. Reads go
    /// before waiting writes.
    ///
    /// # Errors
    /// [`DiskError::Size`] and [`DiskError::Forked`]. The ticket returns errors of the disk.
    pub fn read<B: AsMut<[u8]> + Send + 'static>(&self, spilled: &Spilled, into: B) -> Result<Ticket<B>, DiskError> {
        self.expect_threads(spilled.name())?;
        // The buffer must not move until it has been read into.
        let buffer = Arc::new(Mutex::new(Some(into)));
        let (start, given) = match buffer.lock().as_mut().map(B::as_mut) {
            Some(bytes) => (bytes.as_mut_ptr(), bytes.len() as u64),
            None => unreachable!("it was put in"),
        };
        if given != spilled.bytes() {
            return Err(DiskError::Size { name: spilled.name().into(), bytes: spilled.bytes(), given });
        }
        let transfer = DiskTransfer::new(Direction::In, &spilled.stored, start, Box::new(Arc::clone(&buffer)));
        self.running.shared.begin(&transfer, &spilled.stored);
        Ok(Ticket::new(transfer, buffer))
    }

    /// Returns the codec that these bytes would be encoded by at the current speeds, and the encoded bytes per byte,
    /// estimated from a small sample.
    pub fn sample(&self, raw: &[u8], coding: Coding) -> (Codec, f64) {
        let DiskShared { state, speeds, .. } = &*self.running.shared;
        let bandwidth = state.lock().bandwidth();
        let codec = coding.codec(raw, speeds, bandwidth);
        (codec, coding.sampled_ratio(codec, raw))
    }

    /// Encodes and decodes test data with each lossless codec, so that their speeds are known.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), [`read`](Self::read) and their tickets.
    pub(crate) fn probe_codecs(&self, name: &str) -> Result<(), DiskError> {
        let raw: Arc<[u8]> = (0..2 * CHUNK as u32 / 4).flat_map(|number| half_zero(number).to_le_bytes()).collect();
        for codec in LOSSLESS {
            let coding = Coding { choice: Choice::Codec(codec), dtype: DType::F32, is_beside: true };
            let spilled = self.write_encoded(name, Arc::clone(&raw), coding)?.wait()?;
            self.read(&spilled, vec![0; raw.len()])?.wait()?;
        }
        Ok(())
    }

    fn expect_threads(&self, name: &str) -> Result<(), DiskError> {
        if self.running.process == process::id() { Ok(()) } else { Err(DiskError::Forked { name: name.into() }) }
    }

    /// Returns the folders of the files, separated by commas.
    pub fn folders(&self) -> String {
        self.running.shared.folders()
    }

    /// Returns a description of the tier: its folders, how they are accessed, and the state of GPUDirect Storage.
    pub fn description(&self) -> String {
        let DiskShared { files, engine, .. } = &*self.running.shared;
        let direct =
            if files.iter().all(|file| file.is_direct) { "direct access" } else { "through the system's cache" };
        let in_memory =
            if files.iter().any(|file| Self::is_in_memory(&file.folder)) { ", in memory itself" } else { "" };
        format!("files in {}{in_memory}, {direct}, by {}, {}", self.folders(), engine.name(), GpuDirect::probe())
    }

    /// Returns the capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.running.shared.extents.lock().free.iter().map(Arena::bytes).sum()
    }

    /// Returns statistics since the tier was opened.
    pub fn statistics(&self) -> DiskStatistics {
        let DiskShared { extents, state, .. } = &*self.running.shared;
        let (free_bytes, today_bytes) = {
            let extents = extents.lock();
            (extents.free.iter().map(Arena::free_bytes).sum(), extents.day.1)
        };
        let state = state.lock();
        let [(read_bytes, reading), (written_bytes, writing)] = state.moved();
        let raw_bytes = written_bytes + state.saved_bytes;
        let (together_bytes, together) = state.moved_together();
        DiskStatistics {
            free_bytes,
            written_bytes,
            raw_bytes,
            read_bytes,
            writing,
            reading,
            together_bytes,
            together,
            today_bytes,
        }
    }
}

/// Returns one of some numbers of which half are 0 and the others between 1 and 2.
fn half_zero(number: u32) -> f32 {
    let mixed = number.wrapping_mul(0x9e37_79b9);
    if mixed >> 31 == 0 { 0.0 } else { 1.0 + (mixed & 0xff_ffff) as f32 / (1 << 24) as f32 }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.description())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        self.shared.state.lock().is_closed = true;
        self.shared.work.notify_all();
        self.copiers.drain(..).for_each(end);
    }
}

impl DiskShared {
    /// Returns the folders of the files, separated by commas.
    fn folders(&self) -> String {
        self.files.iter().map(|file| file.folder.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Takes room for `bytes` bytes, in pieces, from the files in turn.
    fn take_extents(&self, name: &str, bytes: usize) -> Result<Vec<SpilledPiece>, DiskError> {
        let mut extents = self.extents.lock();
        let mut pieces = Vec::with_capacity(bytes.div_ceil(CHUNK));
        for begin in (0..bytes).step_by(CHUNK) {
            let count = (bytes - begin).min(CHUNK);
            match extents.take(count) {
                Some((file, offset)) => {
                    pieces.push(SpilledPiece { file, offset, bytes: count, written: OnceLock::new() })
                }
                None => {
                    extents.give_back(&pieces);
                    let free = extents.free.iter().map(Arena::free_bytes).sum();
                    let capacity = extents.free.iter().map(Arena::bytes).sum();
                    return Err(DiskError::Full {
                        name: name.into(),
                        folders: self.folders(),
                        bytes: bytes.next_multiple_of(DISK_BLOCK) as u64,
                        free,
                        capacity,
                    });
                }
            }
        }
        Ok(pieces)
    }

    /// Adds a write to the bytes of the day, or returns an error if it would exceed the limit.
    fn count_daily_write(&self, stored: &SpilledInner) -> Result<(), DiskError> {
        let whole = stored.bytes.next_multiple_of(DISK_BLOCK as u64);
        let mut extents = self.extents.lock();
        if extents.day.0.elapsed() > DAY {
            extents.day = (Instant::now(), 0);
        }
        if let Some(limit) = self.options.daily_bytes.filter(|limit| extents.day.1 + whole > *limit) {
            return Err(DiskError::Worn { name: stored.name.clone(), limit });
        }
        extents.day.1 += whole;
        Ok(())
    }
}

impl Extents {
    /// Takes room for a piece and returns its file and offset.
    fn take(&mut self, bytes: usize) -> Option<(usize, u64)> {
        let files = self.free.len();
        let found = (0..files).map(|next| (self.turn + next) % files).find_map(|file| {
            Some((file, self.free[file].allocate_low(bytes.next_multiple_of(DISK_BLOCK) as u64)?.address))
        });
        self.turn = found.map_or(self.turn, |(file, _)| (file + 1) % files);
        found
    }

    fn give_back(&mut self, pieces: &[SpilledPiece]) {
        for piece in pieces {
            // This cannot fail: each piece is in use and is given back once, by its owner.
            let _ = self.free[piece.file].free(piece.offset);
        }
    }
}
