//! Transfers between memory and disks, and the queues that they wait in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, slice};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::engine::{Direction, Request};
use super::staging::{CHUNK, Chunk, DISK_BLOCK};
use super::{DiskError, DiskShared, SpilledInner, SpilledPiece, Written};
use crate::codec::{self, Codec, Speeds, StreamWriter, sequential};

/// A transfer of all bytes of one [`SpilledInner`].
pub(super) struct DiskTransfer {
    name: String,
    direction: Direction,
    /// The start of the bytes in memory.
    start: *mut u8,
    /// The number of pieces that are not done.
    left: AtomicUsize,
    end: Mutex<TransferEnd>,
    ended: Condvar,
}

/// The end of a transfer: its result, and the function to call then.
struct TransferEnd {
    is_over: bool,
    /// The first error.
    error: Option<DiskError>,
    /// The owner that keeps the bytes in memory.
    owner: Option<Box<dyn Send>>,
    /// The function to call at the end.
    then: Option<Box<dyn FnOnce(Option<DiskError>) + Send>>,
}

// SAFETY: the bytes at `start` are kept until the transfer is over, and one thread at a time touches each piece.
unsafe impl Send for DiskTransfer {}
// SAFETY: as above.
unsafe impl Sync for DiskTransfer {}

impl DiskTransfer {
    pub(super) fn new(direction: Direction, stored: &SpilledInner, start: *mut u8, owner: Box<dyn Send>) -> Arc<Self> {
        let left = AtomicUsize::new(stored.pieces.len());
        let end =
            Mutex::new(TransferEnd { is_over: stored.pieces.is_empty(), error: None, owner: Some(owner), then: None });
        Arc::new(Self { name: stored.name.clone(), direction, start, left, end, ended: Condvar::new() })
    }
}

/// A transfer that is under way. If this is dropped, the transfer goes on, but its result is lost.
#[must_use = "waiting for it tells what the disk said"]
pub struct Ticket<T> {
    transfer: Arc<DiskTransfer>,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Ticket<T> {
    /// Returns a ticket for `transfer`. It yields the value in `result` if there was no error.
    pub(super) fn new(transfer: Arc<DiskTransfer>, result: Arc<Mutex<Option<T>>>) -> Self {
        Self { transfer, result }
    }

    /// Returns whether the transfer is over, successful or not.
    pub fn is_over(&self) -> bool {
        self.transfer.end.lock().is_over
    }

    /// Waits until the transfer is over and returns its result.
    ///
    /// # Errors
    /// The first error: [`DiskError::Io`] or [`DiskError::Changed`].
    pub fn wait(self) -> Result<T, DiskError> {
        let mut end = self.transfer.end.lock();
        self.transfer.ended.wait_while(&mut end, |end| !end.is_over);
        result(end.error.take(), &self.result)
    }

    /// Calls a function with the result. The thread that ends the transfer calls it, and it must not block that thread
    /// for long. If the transfer is already over, it is called now.
    pub(crate) fn then(self, function: impl FnOnce(Result<T, DiskError>) + Send + 'static)
    where
        T: Send + 'static,
    {
        let Self { transfer, result: slot } = self;
        let mut end = transfer.end.lock();
        if end.is_over {
            let ended = result(end.error.take(), &slot);
            drop(end);
            return function(ended);
        }
        end.then = Some(Box::new(move |error| function(result(error, &slot))));
    }
}

/// Returns the result of a transfer that is over.
fn result<T>(error: Option<DiskError>, slot: &Mutex<Option<T>>) -> Result<T, DiskError> {
    match (error, slot.lock().take()) {
        (None, Some(result)) => Ok(result),
        (Some(error), _) => Err(error),
        (None, None) => unreachable!("a ticket is waited for once"),
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?}, {})", self.transfer.name, if self.is_over() { "over" } else { "under way" })
    }
}

/// A piece of a transfer.
#[derive(Clone)]
struct TransferPart {
    transfer: Arc<DiskTransfer>,
    /// Keeps the piece's room on disk until the transfer of the piece is done.
    stored: Arc<SpilledInner>,
    number: usize,
}

impl TransferPart {
    fn piece(&self) -> &SpilledPiece {
        &self.stored.pieces[self.number]
    }

    /// Returns the address of the piece in memory.
    fn memory(&self) -> *mut u8 {
        // SAFETY: all pieces but the last are as long as a chunk, and together they are as long as the bytes at
        // `start`.
        unsafe { self.transfer.start.add(self.number * CHUNK) }
    }

    /// Copies the piece from memory into a chunk, encoded if that makes it smaller, and computes its checksum.
    fn fill(&self, chunk: &mut Chunk, speeds: &Speeds, link_bytes_per_second: f64) {
        let piece = self.piece();
        // SAFETY: the owner keeps the bytes, and nothing changes them.
        let raw = unsafe { slice::from_raw_parts(self.memory(), piece.bytes) };
        let coding = &self.stored.coding;
        let codec = match coding.codec(raw, speeds, link_bytes_per_second) {
            Codec::None => None,
            codec => speeds.encode(codec, raw.len(), || {
                let writer = StreamWriter::new(codec, coding.dtype, raw, &sequential);
                let bytes = writer.encoded().bytes;
                let is_smaller = bytes.next_multiple_of(DISK_BLOCK) < raw.len();
                is_smaller.then(|| writer.write(&mut chunk.bytes_mut()[..bytes], &sequential)).map(|()| (codec, bytes))
            }),
        };
        let (codec, bytes) = codec.unwrap_or_else(|| {
            chunk.bytes_mut()[..raw.len()].copy_from_slice(raw);
            (Codec::None, raw.len())
        });
        let checksum = crc32fast::hash(&chunk.bytes()[..bytes]);
        chunk.bytes_mut()[bytes..bytes.next_multiple_of(DISK_BLOCK)].fill(0);
        // A piece is filled once.
        let _ = piece.written.set(Written { codec, bytes, checksum });
    }

    /// Copies the piece from a chunk into memory. Returns whether the chunk has the bytes that were written.
    fn empty(&self, chunk: &Chunk, speeds: &Speeds) -> bool {
        let piece = self.piece();
        let Some(written) = piece.written.get() else { unreachable!("what is read was written") };
        let bytes = &chunk.bytes()[..written.bytes];
        if crc32fast::hash(bytes) != written.checksum {
            return false;
        }
        // SAFETY: the owner keeps the bytes, and nothing else touches this piece of them.
        let raw = unsafe { slice::from_raw_parts_mut(self.memory(), piece.bytes) };
        match written.codec {
            Codec::None => raw.copy_from_slice(bytes),
            codec => return speeds.decode(codec, raw.len(), || codec::decode(bytes, raw).is_ok()),
        }
        true
    }

    fn has_failed(&self) -> bool {
        self.transfer.end.lock().error.is_some()
    }

    fn end(self, error: Option<DiskError>) {
        let Self { transfer, stored, .. } = self;
        // A thread that waits for this and then drops its handle finds the room free at once.
        drop(stored);
        let mut end = transfer.end.lock();
        end.error = end.error.take().or(error);
        if transfer.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            end.is_over = true;
            let owner = end.owner.take();
            let then = end.then.take();
            let error = then.is_some().then(|| end.error.take()).flatten();
            transfer.ended.notify_all();
            drop((end, owner));
            if let Some(then) = then {
                then(error);
            }
        }
    }
}

/// The queues of a tier, and its statistics.
pub(super) struct DiskState {
    /// The free chunks.
    chunks: Vec<Chunk>,
    /// The parts that wait for a chunk: first those to be read, then those to be written.
    waiting: [VecDeque<TransferPart>; 2],
    /// The parts that wait for a thread that copies.
    tasks: VecDeque<(TransferPart, Chunk)>,
    /// The parts that are done, and their errors. They are reported when nothing is locked.
    done: Vec<(TransferPart, Option<DiskError>)>,
    /// The number of parts that are not done.
    unfinished: usize,
    /// Whether the engine has stopped.
    is_broken: bool,
    traffic: [DiskTraffic; 2],
    /// Traffic in both directions while both were under way.
    together: DiskTraffic,
    /// Bytes saved by encoding, in whole blocks.
    pub(super) saved_bytes: u64,
    /// Whether no more requests will come.
    pub(super) is_closed: bool,
}

/// The traffic in one direction.
#[derive(Clone, Copy, Default)]
struct DiskTraffic {
    bytes: u64,
    /// The number of requests under way.
    begun: usize,
    since: Option<Instant>,
    busy: Duration,
}

impl DiskTraffic {
    fn begin(&mut self) {
        self.begun += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn moved(&self) -> (u64, Duration) {
        (self.bytes, self.busy + self.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn end(&mut self, bytes: usize) {
        self.begun -= 1;
        self.bytes += bytes as u64;
        if self.begun == 0 {
            self.busy += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

impl DiskState {
    pub(super) fn new(chunks: Vec<Chunk>) -> Self {
        Self {
            chunks,
            waiting: Default::default(),
            tasks: VecDeque::new(),
            done: Vec::new(),
            unfinished: 0,
            is_broken: false,
            traffic: Default::default(),
            together: DiskTraffic::default(),
            saved_bytes: 0,
            is_closed: false,
        }
    }

    pub(super) fn begin_request(&mut self, direction: Direction) {
        self.traffic[direction as usize].begin();
        if self.traffic.iter().all(|traffic| traffic.begun > 0) && self.together.begun == 0 {
            self.together.begin();
        }
    }

    pub(super) fn end_request(&mut self, direction: Direction, bytes: usize) {
        self.traffic[direction as usize].end(bytes);
        if self.together.begun > 0 {
            self.together.bytes += bytes as u64;
            if self.traffic.iter().any(|traffic| traffic.begun == 0) {
                self.together.end(0);
            }
        }
    }

    /// Returns the bytes read and the bytes written, each with the time that it took.
    pub(super) fn moved(&self) -> [(u64, Duration); 2] {
        self.traffic.each_ref().map(DiskTraffic::moved)
    }

    /// Returns the bytes moved in either direction while both were under way, and that time.
    pub(super) fn moved_together(&self) -> (u64, Duration) {
        self.together.moved()
    }

    /// Returns the bandwidth of the slower direction in bytes per second, or 1e9 if none is known.
    pub(super) fn bandwidth(&self) -> f64 {
        let known = self.moved().into_iter().filter(|(bytes, busy)| *bytes > 0 && !busy.is_zero());
        known.map(|(bytes, busy)| bytes as f64 / busy.as_secs_f64()).min_by(f64::total_cmp).unwrap_or(1e9)
    }
}

/// Unlocks the state, then reports the parts that are done.
fn unlock(mut state: MutexGuard<'_, DiskState>) {
    let done = mem::take(&mut state.done);
    drop(state);
    for (part, error) in done {
        part.end(error);
    }
}

impl DiskShared {
    pub(super) fn begin(self: &Arc<Self>, transfer: &Arc<DiskTransfer>, stored: &Arc<SpilledInner>) {
        let pieces = stored.pieces.len();
        let parts = (0..pieces).map(|number| TransferPart {
            transfer: Arc::clone(transfer),
            stored: Arc::clone(stored),
            number,
        });
        let mut state = self.state.lock();
        state.waiting[transfer.direction as usize].extend(parts);
        state.unfinished += pieces;
        self.pump(&mut state);
        unlock(state);
    }

    /// Gives free chunks to the parts that wait for them.
    fn pump(self: &Arc<Self>, state: &mut DiskState) {
        if state.is_broken {
            let parts: Vec<TransferPart> = state.waiting.iter_mut().flat_map(|parts| parts.drain(..)).collect();
            for part in parts {
                let error = self.io_error(&part, io::ErrorKind::BrokenPipe.into());
                self.end(state, part, None, Some(error));
            }
        }
        while let Some(chunk) = state.chunks.pop() {
            let [reads, writes] = &mut state.waiting;
            if let Some(part) = reads.pop_front() {
                self.request(state, part, chunk);
            } else if let Some(part) = writes.pop_front() {
                state.tasks.push_back((part, chunk));
                self.work.notify_one();
            } else {
                state.chunks.push(chunk);
                return;
            }
        }
    }

    /// Passes a part to the engine to read or write.
    fn request(self: &Arc<Self>, state: &mut DiskState, part: TransferPart, chunk: Chunk) {
        let direction = part.transfer.direction;
        state.begin_request(direction);
        let piece = part.piece();
        let shared = Arc::clone(self);
        let its = part.clone();
        let file = Arc::clone(&self.files[piece.file]);
        let offset = piece.offset;
        let bytes = piece.bytes_in_file();
        let done = Box::new(move |chunk, result| shared.requested(its, chunk, result));
        if let Err(refused) = self.engine.begin(Request { direction, file, offset, bytes, chunk, done }) {
            state.end_request(direction, 0);
            state.is_broken = true;
            let error = self.io_error(&part, io::ErrorKind::BrokenPipe.into());
            self.end(state, part, Some(refused.chunk), Some(error));
        }
    }

    /// Handles the engine's result for a part.
    fn requested(self: &Arc<Self>, part: TransferPart, chunk: Option<Chunk>, result: io::Result<()>) {
        let direction = part.transfer.direction;
        let mut state = self.state.lock();
        let moved = if result.is_ok() { part.piece().bytes_in_file() } else { 0 };
        state.end_request(direction, moved);
        if direction == Direction::Out && moved > 0 {
            state.saved_bytes += (part.piece().bytes.next_multiple_of(DISK_BLOCK) - moved) as u64;
        }
        match (direction, result, chunk) {
            (Direction::In, Ok(()), Some(chunk)) => {
                state.tasks.push_back((part, chunk));
                self.work.notify_one();
            }
            (_, result, chunk) => {
                let error = result.err().map(|source| self.io_error(&part, source));
                state.is_broken |= chunk.is_none();
                self.end(&mut state, part, chunk, error);
                self.pump(&mut state);
            }
        }
        unlock(state);
    }

    fn end(&self, state: &mut DiskState, part: TransferPart, chunk: Option<Chunk>, error: Option<DiskError>) {
        state.done.push((part, error));
        state.chunks.extend(chunk);
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.work.notify_all();
        }
    }

    /// Runs a copying thread until the tier is closed and no part is left.
    pub(super) fn copy(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some((part, mut chunk)) = state.tasks.pop_front() {
                let bandwidth = state.bandwidth();
                drop(state);
                let error = match part.transfer.direction {
                    _ if part.has_failed() => Err(None),
                    Direction::Out => {
                        part.fill(&mut chunk, &self.speeds, bandwidth);
                        Ok(())
                    }
                    Direction::In if part.empty(&chunk, &self.speeds) => Err(None),
                    Direction::In => Err(Some(self.changed(&part))),
                };
                state = self.state.lock();
                match error {
                    Ok(()) => self.request(&mut state, part, chunk),
                    Err(error) => self.end(&mut state, part, Some(chunk), error),
                }
                self.pump(&mut state);
                unlock(state);
                state = self.state.lock();
            } else if state.is_closed && state.unfinished == 0 {
                return;
            } else {
                self.work.wait(&mut state);
            }
        }
    }

    fn io_error(&self, part: &TransferPart, source: io::Error) -> DiskError {
        let call = if part.transfer.direction == Direction::In { "reading" } else { "writing" };
        let (name, folder, offset) = self.place(part);
        DiskError::Io { name, call, folder, offset, source }
    }

    fn changed(&self, part: &TransferPart) -> DiskError {
        let (name, folder, offset) = self.place(part);
        DiskError::Changed { name, folder, offset }
    }

    fn place(&self, part: &TransferPart) -> (String, std::path::PathBuf, u64) {
        let piece = part.piece();
        (part.transfer.name.clone(), self.files[piece.file].folder.clone(), piece.offset)
    }
}
