//! Disks as a tier: bytes go out to files in folders and come back, several at once, and are checked.

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
pub(crate) use staging::{BLOCK, CHUNK, Chunk, Memory};
use transfer::{State, Transfer};

/// A day of [`DiskOptions::daily_bytes`].
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Threads that copy between tensors and chunks, and compute checksums.
const COPIERS: usize = 2;

/// How disks are used.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Bytes of the files together, set aside at once.
    pub capacity: u64,
    /// Memory that bytes pass through: what waits for it takes none.
    pub staging_bytes: usize,
    /// How many bytes may be written in 24 hours, if not any number: disks wear out. Counted here alone, as many as they are
    /// before they are encoded.
    pub daily_bytes: Option<u64>,
}

impl DiskOptions {
    /// Files of so many bytes together, 64 MiB of memory, and no limit a day.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, staging_bytes: 64 << 20, daily_bytes: None }
    }
}

/// Bytes on disks, in one file a folder, each without a name and gone with the process. What is written is divided into
/// pieces that go to the folders in turn.
///
/// A handle: clones are one tier. When the last is dropped, what was begun is finished first.
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

/// What the last handle ends.
struct Running {
    shared: Arc<Shared>,
    copiers: Vec<thread::JoinHandle<()>>,
    /// In a forked child nobody runs.
    process: u32,
}

struct Shared {
    files: Vec<Arc<ExtentFile>>,
    engine: Box<dyn Engine>,
    options: DiskOptions,
    /// Children that were forked lock it too, when they drop what they have.
    extents: Unforked<Extents>,
    state: Mutex<State>,
    speeds: Speeds,
    /// There is something to copy, or nothing will be any more.
    work: Condvar,
}

/// Which parts of the files are in use.
struct Extents {
    /// Of each file.
    free: Vec<Arena>,
    /// The file that the next piece goes to, if there is room.
    turn: usize,
    /// When this day began, and the bytes that were written in it.
    day: (Instant, u64),
}

/// A piece of what was written.
struct Piece {
    file: usize,
    offset: u64,
    /// As they were.
    bytes: usize,
    /// As it lies there, once that is known.
    written: OnceLock<Written>,
}

/// What became of a piece in a file.
struct Written {
    codec: Codec,
    bytes: usize,
    /// CRC-32.
    checksum: u32,
}

impl Piece {
    /// As it lies in its file: what is encoded is shorter than the room that it has.
    fn whole_blocks(&self) -> usize {
        self.written.get().map_or(self.bytes, |written| written.bytes).next_multiple_of(BLOCK)
    }
}

/// Something on disk, under the name that errors tell. Clones are one; the last that is dropped makes room.
#[derive(Clone)]
pub struct Spilled {
    stored: Arc<Stored>,
}

struct Stored {
    name: String,
    bytes: u64,
    coding: Coding,
    pieces: Vec<Piece>,
    shared: Arc<Shared>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.shared.extents.lock().give_back(&self.pieces);
    }
}

impl Spilled {
    /// What it was called.
    pub fn name(&self) -> &str {
        &self.stored.name
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.stored.bytes
    }

    /// What became of them: the codec is that of most.
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

/// Room for what is going to be written.
pub(crate) struct Room {
    stored: Stored,
}

impl Room {
    /// What it is for.
    pub(crate) fn name(&self) -> &str {
        &self.stored.name
    }

    /// Begins to write as many bytes, which are kept until they are on disk. It does not wait.
    ///
    /// # Errors
    /// [`DiskError::Worn`].
    pub(crate) fn write(self, source: impl AsRef<[u8]> + Send + 'static) -> Result<Ticket<Spilled>, DiskError> {
        let (stored, source) = (Arc::new(self.stored), Box::new(source));
        let shared = Arc::clone(&stored.shared);
        shared.wear(&stored)?;
        let start = (*source).as_ref().as_ptr().cast_mut();
        let transfer = Transfer::new(Direction::Out, &stored, start, source);
        shared.begin(&transfer, &stored);
        Ok(Ticket::new(transfer, Arc::new(Mutex::new(Some(Spilled { stored })))))
    }
}

/// What disks did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskStatistics {
    /// Bytes that are free, in whole blocks.
    pub free_bytes: u64,
    /// Bytes written, in whole blocks.
    pub written_bytes: u64,
    /// As many as those were before they were encoded.
    pub raw_bytes: u64,
    /// Bytes read, in whole blocks.
    pub read_bytes: u64,
    /// Time in which anything was being written.
    pub writing: Duration,
    /// Time in which anything was being read.
    pub reading: Duration,
    /// Bytes that went either way while something went both ways.
    pub together_bytes: u64,
    /// How long it did.
    pub together: Duration,
    /// Bytes given out to be written in the last day that began, of those allowed.
    pub today_bytes: u64,
}

impl Disk {
    /// Bytes that files in folders, all of one size, find room for together: those on one file system share it.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn free_bytes_in(folders: &[PathBuf]) -> Result<u64, TierError> {
        let systems = folders.iter().map(|folder| file::system_of(folder)).collect::<Result<Vec<_>, _>>()?;
        let share = |folder: &PathBuf, system| {
            let sharing = systems.iter().filter(|other| **other == system).count() as u64;
            Ok::<_, TierError>(file::free_bytes(folder)? / sharing)
        };
        let shares = folders.iter().zip(&systems).map(|(folder, system)| share(folder, *system));
        let least = shares.collect::<Result<Vec<_>, _>>()?.into_iter().min().unwrap_or(0);
        Ok(least * folders.len() as u64)
    }

    /// Whether a folder is in memory itself, so that nothing is spared by what is in it.
    pub fn is_in_memory(folder: &Path) -> bool {
        system::file_system(folder).is_ok_and(|kind| kind == system::TMPFS)
    }

    /// Files in `folders` with as much room together as is said, equally in each.
    ///
    /// # Errors
    /// [`TierError`]: no folder, a folder that is not there or is full, a capacity of less than a block for each.
    pub fn open(folders: &[PathBuf], options: DiskOptions) -> Result<Self, TierError> {
        Self::with_engine(folders, options, |memory, chunks| match Ring::start(memory) {
            Ok(ring) => Ok(Box::new(ring)),
            // Containers often forbid it.
            Err(_) => Ok(Box::new(Threads::start(chunks.min(16))?)),
        })
    }

    fn with_engine(
        folders: &[PathBuf],
        options: DiskOptions,
        engine: impl FnOnce(&Arc<Memory>, usize) -> std::io::Result<Box<dyn Engine>>,
    ) -> Result<Self, TierError> {
        let what = || folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        let unit = (BLOCK * folders.len()) as u64;
        let each = options.capacity.checked_div(unit).ok_or(TierError::NoFolder)? * BLOCK as u64;
        if each == 0 {
            let (capacity, alignment) = (options.capacity, unit);
            return Err(TierError::TooSmall { what: what(), capacity, alignment });
        }
        let failed = |call| move |source| TierError::System { what: what(), call, source };
        let count = (options.staging_bytes / CHUNK).clamp(2, 96);
        let chunks = Memory::chunks(count).map_err(failed("mmap"))?;
        let files = folders.iter().map(|folder| ExtentFile::create(folder, each, &chunks[0]).map(Arc::new));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        let engine = engine(chunks[0].memory(), count).map_err(failed("starting"))?;
        let free = files.iter().map(|_| Arena::new(0, each)).collect();
        let shared = Arc::new(Shared {
            files,
            engine,
            options,
            extents: Unforked::new(Extents { free, turn: 0, day: (Instant::now(), 0) }),
            state: Mutex::new(State::new(chunks)),
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

    /// Begins to write bytes, which are kept until they are on disk. It does not wait.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Worn`] and [`DiskError::Forked`]; the ticket has those of the disk.
    pub fn write(
        &self,
        name: impl Into<String>,
        source: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Ticket<Spilled>, DiskError> {
        self.write_encoded(name, source, Coding::NONE)
    }

    /// The same, by a codec: each piece of a megabyte alone, in the memory that it passes through anyway.
    ///
    /// # Errors
    /// As of [`write`](Self::write): what it takes is set aside as if nothing got smaller.
    pub fn write_encoded(
        &self,
        name: impl Into<String>,
        source: impl AsRef<[u8]> + Send + 'static,
        coding: Coding,
    ) -> Result<Ticket<Spilled>, DiskError> {
        let bytes = source.as_ref().len();
        self.reserve(name, bytes, coding)?.write(source)
    }

    /// Room for what is going to be written, which is free again when it is dropped instead.
    ///
    /// # Errors
    /// [`DiskError::Full`] and [`DiskError::Forked`].
    pub(crate) fn reserve(&self, name: impl Into<String>, bytes: usize, coding: Coding) -> Result<Room, DiskError> {
        let (shared, name) = (&self.running.shared, name.into());
        self.expect_threads(&name)?;
        let pieces = shared.take_extents(&name, bytes)?;
        Ok(Room { stored: Stored { name, bytes: bytes as u64, coding, pieces, shared: Arc::clone(shared) } })
    }

    /// Begins to read what was written into a buffer of as many bytes, which the ticket has. It does not wait, and goes
    /// before what is to be written.
    ///
    /// # Errors
    /// [`DiskError::Size`] and [`DiskError::Forked`]; the ticket has those of the disk.
    pub fn read<B: AsMut<[u8]> + Send + 'static>(&self, spilled: &Spilled, into: B) -> Result<Ticket<B>, DiskError> {
        self.expect_threads(spilled.name())?;
        // It stays where it is until it is read.
        let buffer = Arc::new(Mutex::new(Some(into)));
        let (start, given) = match buffer.lock().as_mut().map(B::as_mut) {
            Some(bytes) => (bytes.as_mut_ptr(), bytes.len() as u64),
            None => unreachable!("it was put in"),
        };
        if given != spilled.bytes() {
            return Err(DiskError::Size { name: spilled.name().into(), bytes: spilled.bytes(), given });
        }
        let transfer = Transfer::new(Direction::In, &spilled.stored, start, Box::new(Arc::clone(&buffer)));
        self.running.shared.begin(&transfer, &spilled.stored);
        Ok(Ticket::new(transfer, buffer))
    }

    /// By what such bytes would be encoded as things are, and what would become of each of them: by a small sample.
    pub fn sample(&self, raw: &[u8], coding: Coding) -> (Codec, f64) {
        let Shared { state, speeds, .. } = &*self.running.shared;
        let bandwidth = state.lock().bandwidth();
        let codec = coding.codec(raw, speeds, bandwidth);
        (codec, coding.sampled_ratio(codec, raw))
    }

    /// Has codecs that lose nothing encode something and decode it, so that their speeds are known.
    ///
    /// # Errors
    /// As of what it does.
    pub(crate) fn probe_codecs(&self, name: &str) -> Result<(), DiskError> {
        let sparse = |number: u32| {
            let mixed = number.wrapping_mul(0x9e37_79b9);
            // As many are 0 as are from 1 to 2.
            if mixed >> 31 == 0 { 0.0_f32 } else { 1.0 + (mixed & 0xff_ffff) as f32 / (1 << 24) as f32 }
        };
        let raw: Arc<[u8]> = (0..2 * CHUNK as u32 / 4).flat_map(|number| sparse(number).to_le_bytes()).collect();
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

    /// Where its files are, in words.
    pub fn folders(&self) -> String {
        self.running.shared.folders()
    }

    /// What it is, in words: its folders, how they are reached, and whether a GPU could do that itself.
    pub fn nature(&self) -> String {
        let Shared { files, engine, .. } = &*self.running.shared;
        let direct =
            if files.iter().all(|file| file.is_direct) { "direct access" } else { "through the system's cache" };
        let in_memory =
            if files.iter().any(|file| Self::is_in_memory(&file.folder)) { ", in memory itself" } else { "" };
        format!("files in {}{in_memory}, {direct}, by {}, {}", self.folders(), engine.name(), GpuDirect::probe())
    }

    /// Bytes that it can hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.running.shared.extents.lock().free.iter().map(Arena::bytes).sum()
    }

    /// What it did so far.
    pub fn statistics(&self) -> DiskStatistics {
        let Shared { extents, state, .. } = &*self.running.shared;
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

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.nature())
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

impl Shared {
    /// Where the files are.
    fn folders(&self) -> String {
        self.files.iter().map(|file| file.folder.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Room for so many bytes, in pieces, in the folders in turn.
    fn take_extents(&self, name: &str, bytes: usize) -> Result<Vec<Piece>, DiskError> {
        let mut extents = self.extents.lock();
        let mut pieces = Vec::with_capacity(bytes.div_ceil(CHUNK));
        for begin in (0..bytes).step_by(CHUNK) {
            let count = (bytes - begin).min(CHUNK);
            match extents.take(count) {
                Some((file, offset)) => pieces.push(Piece { file, offset, bytes: count, written: OnceLock::new() }),
                None => {
                    extents.give_back(&pieces);
                    let free = extents.free.iter().map(Arena::free_bytes).sum();
                    let capacity = extents.free.iter().map(Arena::bytes).sum();
                    return Err(DiskError::Full {
                        name: name.into(),
                        folders: self.folders(),
                        bytes: bytes.next_multiple_of(BLOCK) as u64,
                        free,
                        capacity,
                    });
                }
            }
        }
        Ok(pieces)
    }

    /// Counts what is about to be written, if so much may be today.
    fn wear(&self, stored: &Stored) -> Result<(), DiskError> {
        let whole = stored.bytes.next_multiple_of(BLOCK as u64);
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
    /// A file and an offset for a piece.
    fn take(&mut self, bytes: usize) -> Option<(usize, u64)> {
        let files = self.free.len();
        let found = (0..files)
            .map(|next| (self.turn + next) % files)
            .find_map(|file| Some((file, self.free[file].allocate_low(bytes.next_multiple_of(BLOCK) as u64)?.address)));
        self.turn = found.map_or(self.turn, |(file, _)| (file + 1) % files);
        found
    }

    fn give_back(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            // It is in use, and given back once, by its owner.
            let _ = self.free[piece.file].free(piece.offset);
        }
    }
}
