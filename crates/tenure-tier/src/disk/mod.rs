//! The disk tier: writes bytes to files in folders and reads them back, many pieces at once, and verifies checksums.

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
pub(crate) use engine::{Direction, join_unless_current};
use engine::{Engine, ThreadEngine};
use file::ExtentFile;
use ring::Ring;
pub(crate) use staging::{CHUNK, Chunk, DISK_BLOCK, StagingMemory};
use transfer::{DiskState, DiskTransfer};

/// The length of a day for [`DiskOptions::daily_bytes`].
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of threads that copy between the callers' bytes and staging chunks, encode, decode and compute checksums.
const COPIERS: usize = 2;

/// Settings of a [`Disk`].
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The total size of the files in bytes, allocated when the disk is opened.
    pub capacity: u64,
    /// Staging memory in bytes. It is divided into at least 2 and at most 96 chunks of 1 MiB, rounded down. Transfers
    /// wait for free chunks.
    pub staging_bytes: usize,
    /// The most bytes that may be written in a day, since writes wear out a disk, or `None` for no limit. A day begins
    /// when the disk is opened, and again with the first write more than 24 hours later. Only writes of this tier
    /// count, with their size before encoding.
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
/// This is a handle: clones share one tier. Dropping the last one waits for the transfers under way.
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
    inner: Arc<DiskInner>,
}

/// The state that all clones of a [`Disk`] share. Dropping it waits for the transfers under way.
struct DiskInner {
    shared: Arc<DiskShared>,
    copiers: Vec<thread::JoinHandle<()>>,
    /// The process that opened the tier. The threads do not run in a forked child.
    process: u32,
}

/// The state that a tier's threads share with its handles.
struct DiskShared {
    files: Vec<Arc<ExtentFile>>,
    engine: Box<dyn Engine>,
    options: DiskOptions,
    /// Forked children lock this too, when they drop a [`Spilled`].
    extents: Unforked<Extents>,
    state: Mutex<DiskState>,
    /// The measured speed of each codec.
    speeds: Speeds,
    /// Signals to the copying threads that there is a part to copy, or that the tier is closed and no part is left.
    work_changed: Condvar,
}

/// The free parts of the files, and the bytes written today.
struct Extents {
    /// The free parts of each file.
    free: Vec<Arena>,
    /// The file that the next piece goes to if it has room.
    next_file: usize,
    /// The start of the current day.
    day_start: Instant,
    /// The bytes accepted for writing since `day_start`.
    day_bytes: u64,
}

/// A piece of some spilled bytes, and its room in a file.
struct SpilledPiece {
    /// The index of the file.
    file: usize,
    offset: u64,
    /// The number of bytes before encoding.
    bytes: usize,
    /// The piece's encoding in the file, set once it has been encoded.
    written: OnceLock<Written>,
}

/// A piece's encoding in its file.
struct Written {
    codec: Codec,
    /// The number of encoded bytes.
    bytes: usize,
    /// The CRC-32 of the encoded bytes.
    checksum: u32,
}

impl SpilledPiece {
    /// Returns the number of bytes that the piece takes in the file, rounded up to whole blocks. An encoded piece is
    /// shorter than the room set aside for it.
    fn bytes_in_file(&self) -> usize {
        self.written.get().map_or(self.bytes, |written| written.bytes).next_multiple_of(DISK_BLOCK)
    }
}

/// A handle to bytes on disk. Clones share the bytes; dropping the last clone frees their room. Errors use their name.
#[derive(Clone)]
pub struct Spilled {
    inner: Arc<SpilledInner>,
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
        self.shared.extents.lock().free_pieces(&self.pieces);
    }
}

impl Spilled {
    /// Returns the name that the bytes were written under.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Returns how the bytes were encoded: their size before and after, and the codec that was used for most of them.
    pub fn encoded(&self) -> Encoded {
        Encoded::of_all(self.inner.pieces.iter().filter_map(|piece| {
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

/// Reserved room in the files for bytes that will be written. Dropping it frees the room.
pub(crate) struct Room {
    inner: SpilledInner,
}

impl Room {
    /// Returns the name of the bytes that the room is for.
    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// Begins to write bytes, exactly as many as the room is for, and returns at once. The source is dropped when they
    /// are on disk.
    ///
    /// # Errors
    /// [`DiskError::Worn`] if the daily limit would be exceeded.
    pub(crate) fn write(self, source: impl AsRef<[u8]> + Send + 'static) -> Result<Ticket<Spilled>, DiskError> {
        let inner = Arc::new(self.inner);
        let source = Box::new(source);
        let shared = Arc::clone(&inner.shared);
        shared.count_daily_write(&inner)?;
        let start = (*source).as_ref().as_ptr().cast_mut();
        let transfer = DiskTransfer::new(Direction::Out, &inner, start, source);
        shared.begin(&transfer, &inner);
        Ok(Ticket::new(transfer, Arc::new(Mutex::new(Some(Spilled { inner })))))
    }
}

/// Statistics of a [`Disk`] since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskStatistics {
    /// Free bytes, in whole blocks.
    pub free_bytes: u64,
    /// Bytes written, in whole blocks.
    pub written_bytes: u64,
    /// The size of the written bytes before encoding, in whole blocks.
    pub raw_bytes: u64,
    /// Bytes read, in whole blocks.
    pub read_bytes: u64,
    /// The time in which at least one write was under way.
    pub writing: Duration,
    /// The time in which at least one read was under way.
    pub reading: Duration,
    /// Bytes moved in either direction while both a read and a write were under way.
    pub together_bytes: u64,
    /// The time in which both a read and a write were under way.
    pub together: Duration,
    /// Bytes accepted for writing in the current day, which count towards [`DiskOptions::daily_bytes`].
    pub today_bytes: u64,
}

impl Disk {
    /// Returns the largest capacity that [`open`](Self::open) can allocate in these folders, in bytes. Each folder has
    /// an equal share, and folders on one file system divide its free bytes.
    ///
    /// # Errors
    /// [`TierError`] if a folder does not exist.
    pub fn free_bytes_in(folders: &[PathBuf]) -> Result<u64, TierError> {
        let systems = folders.iter().map(|folder| file::file_system_of(folder)).collect::<Result<Vec<_>, _>>()?;
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
            Err(_) => Ok(Box::new(ThreadEngine::start(chunks.min(16))?)),
        })
    }

    /// Opens a tier whose engine is created by a function of the staging memory and the number of chunks.
    fn with_engine(
        folders: &[PathBuf],
        options: DiskOptions,
        engine: impl FnOnce(&Arc<StagingMemory>, usize) -> std::io::Result<Box<dyn Engine>>,
    ) -> Result<Self, TierError> {
        let all_folders = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        let alignment = (DISK_BLOCK * folders.len()) as u64;
        let file_bytes = options.capacity.checked_div(alignment).ok_or(TierError::NoFolder)? * DISK_BLOCK as u64;
        if file_bytes == 0 {
            let capacity = options.capacity;
            return Err(TierError::TooSmall { what: all_folders, capacity, alignment });
        }
        let count = (options.staging_bytes / CHUNK).clamp(2, 96);
        let chunks = StagingMemory::chunks(count).map_err(TierError::system(&all_folders, "mmap"))?;
        let files = folders.iter().map(|folder| ExtentFile::create(folder, file_bytes, &chunks[0]).map(Arc::new));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        let engine = engine(chunks[0].memory(), count).map_err(TierError::system(&all_folders, "starting"))?;
        let free = files.iter().map(|_| Arena::new(0, file_bytes)).collect();
        let shared = Arc::new(DiskShared {
            files,
            engine,
            options,
            extents: Unforked::new(Extents { free, next_file: 0, day_start: Instant::now(), day_bytes: 0 }),
            state: Mutex::new(DiskState::new(chunks)),
            speeds: Speeds::default(),
            work_changed: Condvar::new(),
        });
        let mut inner = DiskInner { shared, copiers: Vec::new(), process: process::id() };
        for number in 0..COPIERS {
            let shared = Arc::clone(&inner.shared);
            let thread = thread::Builder::new().name(format!("tenure-copy-{number}"));
            inner
                .copiers
                .push(thread.spawn(move || shared.run_copier()).map_err(TierError::system(&all_folders, "starting"))?);
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins to write bytes and returns at once. The source is dropped when they are on disk.
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

    /// Writes bytes as [`write`](Self::write) does, and encodes them. Each piece of 1 MiB is encoded on its own, into
    /// its staging chunk.
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

    /// Reserves room for `bytes` bytes, which [`Room::write`] writes later.
    ///
    /// # Errors
    /// [`DiskError::Full`] and [`DiskError::Forked`].
    pub(crate) fn reserve(&self, name: impl Into<String>, bytes: usize, coding: Coding) -> Result<Room, DiskError> {
        let shared = &self.inner.shared;
        let name = name.into();
        self.expect_not_forked(&name)?;
        let pieces = shared.allocate_pieces(&name, bytes)?;
        Ok(Room { inner: SpilledInner { name, bytes: bytes as u64, coding, pieces, shared: Arc::clone(shared) } })
    }

    /// Begins to read spilled bytes into a buffer of the same size, and returns at once. The ticket returns the buffer.
    /// Reads go before waiting writes.
    ///
    /// # Errors
    /// [`DiskError::Size`] and [`DiskError::Forked`]. The ticket returns errors of the disk.
    pub fn read<B: AsMut<[u8]> + Send + 'static>(&self, spilled: &Spilled, into: B) -> Result<Ticket<B>, DiskError> {
        self.expect_not_forked(spilled.name())?;
        // In an `Arc`, the buffer does not move until it has been read into.
        let buffer = Arc::new(Mutex::new(Some(into)));
        let (start, given) = match buffer.lock().as_mut().map(B::as_mut) {
            Some(bytes) => (bytes.as_mut_ptr(), bytes.len() as u64),
            None => unreachable!("it was put in"),
        };
        if given != spilled.bytes() {
            return Err(DiskError::Size { name: spilled.name().into(), bytes: spilled.bytes(), given });
        }
        let transfer = DiskTransfer::new(Direction::In, &spilled.inner, start, Box::new(Arc::clone(&buffer)));
        self.inner.shared.begin(&transfer, &spilled.inner);
        Ok(Ticket::new(transfer, buffer))
    }

    /// Returns the codec that [`write_encoded`](Self::write_encoded) would choose now for the bytes `raw`, and an
    /// estimate of the encoded size divided by their size, from a small sample.
    pub fn sample(&self, raw: &[u8], coding: Coding) -> (Codec, f64) {
        let DiskShared { state, speeds, .. } = &*self.inner.shared;
        let bandwidth = state.lock().bandwidth();
        let codec = coding.codec(raw, speeds, bandwidth);
        (codec, coding.sampled_ratio(codec, raw))
    }

    /// Writes and reads test data with each lossless codec, which measures the codecs' speeds.
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

    /// Returns an error in a forked child, where the tier's threads do not run.
    fn expect_not_forked(&self, name: &str) -> Result<(), DiskError> {
        if self.inner.process == process::id() { Ok(()) } else { Err(DiskError::Forked { name: name.into() }) }
    }

    /// Returns the folders of the files, separated by commas.
    pub fn folders(&self) -> String {
        self.inner.shared.folders()
    }

    /// Returns a description of the tier: its folders, how they are accessed, and the state of GPUDirect Storage.
    pub fn description(&self) -> String {
        let DiskShared { files, engine, .. } = &*self.inner.shared;
        let direct =
            if files.iter().all(|file| file.is_direct) { "direct access" } else { "through the system's cache" };
        let in_memory =
            if files.iter().any(|file| Self::is_in_memory(&file.folder)) { ", in memory itself" } else { "" };
        format!("files in {}{in_memory}, {direct}, by {}, {}", self.folders(), engine.name(), GpuDirect::probe())
    }

    /// Returns the capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.inner.shared.extents.lock().free.iter().map(Arena::bytes).sum()
    }

    /// Returns statistics since the tier was opened.
    pub fn statistics(&self) -> DiskStatistics {
        let DiskShared { extents, state, .. } = &*self.inner.shared;
        let (free_bytes, today_bytes) = {
            let extents = extents.lock();
            (extents.free.iter().map(Arena::free_bytes).sum(), extents.day_bytes)
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

/// Returns pseudo-random test data by index: about half of the numbers are 0, and the others lie between 1 and 2.
fn half_zero(number: u32) -> f32 {
    let mixed = number.wrapping_mul(0x9e37_79b9);
    if mixed >> 31 == 0 { 0.0 } else { 1.0 + (mixed & 0xff_ffff) as f32 / (1 << 24) as f32 }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.description())
    }
}

impl Drop for DiskInner {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        self.shared.state.lock().is_closed = true;
        self.shared.work_changed.notify_all();
        self.copiers.drain(..).for_each(join_unless_current);
    }
}

impl DiskShared {
    /// Returns the folders of the files, separated by commas.
    fn folders(&self) -> String {
        self.files.iter().map(|file| file.folder.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Allocates room for `bytes` bytes in pieces of up to one chunk, from the files in turn.
    fn allocate_pieces(&self, name: &str, bytes: usize) -> Result<Vec<SpilledPiece>, DiskError> {
        let mut extents = self.extents.lock();
        let mut pieces = Vec::with_capacity(bytes.div_ceil(CHUNK));
        for begin in (0..bytes).step_by(CHUNK) {
            let count = (bytes - begin).min(CHUNK);
            match extents.allocate(count) {
                Some((file, offset)) => {
                    pieces.push(SpilledPiece { file, offset, bytes: count, written: OnceLock::new() })
                }
                None => {
                    extents.free_pieces(&pieces);
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

    /// Adds a write to the bytes of the current day, or returns an error if they would exceed the daily limit.
    fn count_daily_write(&self, inner: &SpilledInner) -> Result<(), DiskError> {
        let whole = inner.bytes.next_multiple_of(DISK_BLOCK as u64);
        let mut extents = self.extents.lock();
        if extents.day_start.elapsed() > DAY {
            extents.day_start = Instant::now();
            extents.day_bytes = 0;
        }
        if let Some(limit) = self.options.daily_bytes.filter(|limit| extents.day_bytes + whole > *limit) {
            return Err(DiskError::Worn { name: inner.name.clone(), limit });
        }
        extents.day_bytes += whole;
        Ok(())
    }
}

impl Extents {
    /// Allocates room for a piece of `bytes` bytes, from the next file that has it. Returns the file's index and the
    /// offset in it.
    fn allocate(&mut self, bytes: usize) -> Option<(usize, u64)> {
        let files = self.free.len();
        let found = (0..files).map(|next| (self.next_file + next) % files).find_map(|file| {
            Some((file, self.free[file].allocate_low(bytes.next_multiple_of(DISK_BLOCK) as u64)?.address))
        });
        self.next_file = found.map_or(self.next_file, |(file, _)| (file + 1) % files);
        found
    }

    /// Frees the room of pieces.
    fn free_pieces(&mut self, pieces: &[SpilledPiece]) {
        for piece in pieces {
            // This cannot fail: each piece is in use and is given back once, by its owner.
            let _ = self.free[piece.file].free(piece.offset);
        }
    }
}
