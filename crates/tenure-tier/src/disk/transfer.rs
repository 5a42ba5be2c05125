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

/// A write or read of all bytes of one [`SpilledInner`].
pub(super) struct DiskTransfer {
    name: String,
    direction: Direction,
    /// The start of the bytes in memory.
    start: *mut u8,
    /// The number of pieces that are not done.
    left: AtomicUsize,
    completion: Mutex<TransferCompletion>,
    ended: Condvar,
}

/// The completion of a transfer: whether it is over, its error, and the function to call when it is.
struct TransferCompletion {
    is_over: bool,
    /// The first error.
    error: Option<DiskError>,
    /// The owner that keeps the bytes in memory alive. It is dropped at the end.
    owner: Option<Box<dyn Send>>,
    /// The function to call at the end.
    then: Option<Box<dyn FnOnce(Option<DiskError>) + Send>>,
}

// SAFETY: the bytes at `start` are kept until the transfer is over, and one thread at a time touches each piece.
unsafe impl Send for DiskTransfer {}
// SAFETY: as above.
unsafe impl Sync for DiskTransfer {}

impl DiskTransfer {
    pub(super) fn new(direction: Direction, spilled: &SpilledInner, start: *mut u8, owner: Box<dyn Send>) -> Arc<Self> {
        let left = AtomicUsize::new(spilled.pieces.len());
        let completion = Mutex::new(TransferCompletion {
            is_over: spilled.pieces.is_empty(),
            error: None,
            owner: Some(owner),
            then: None,
        });
        Arc::new(Self { name: spilled.name.clone(), direction, start, left, completion, ended: Condvar::new() })
    }
}

/// A write or read that is under way, with a result of type `T`. If this is dropped, the transfer goes on, but its
/// result is lost.
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
        self.transfer.completion.lock().is_over
    }

    /// Waits until the transfer is over and returns its result.
    ///
    /// # Errors
    /// The first error: [`DiskError::Io`] or [`DiskError::Changed`].
    pub fn wait(self) -> Result<T, DiskError> {
        let mut end = self.transfer.completion.lock();
        self.transfer.ended.wait_while(&mut end, |end| !end.is_over);
        result(end.error.take(), &self.result)
    }

    /// Calls `function` with the result when the transfer is over. The thread that ends the transfer calls it, so it
    /// must not block for long. If the transfer is already over, this thread calls it at once.
    pub(crate) fn then(self, function: impl FnOnce(Result<T, DiskError>) + Send + 'static)
    where
        T: Send + 'static,
    {
        let Self { transfer, result: slot } = self;
        let mut end = transfer.completion.lock();
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

/// The transfer of one piece.
#[derive(Clone)]
struct TransferPart {
    transfer: Arc<DiskTransfer>,
    /// Keeps the piece's room on disk until the transfer of the piece is done.
    spilled: Arc<SpilledInner>,
    number: usize,
}

impl TransferPart {
    fn piece(&self) -> &SpilledPiece {
        &self.spilled.pieces[self.number]
    }

    /// Returns the address of the piece in memory.
    fn memory(&self) -> *mut u8 {
        // SAFETY: all pieces but the last are as long as a chunk, and together they are as long as the bytes at
        // `start`.
        unsafe { self.transfer.start.add(self.number * CHUNK) }
    }

    /// Copies the piece from memory into a chunk, encoded if that makes it smaller, and records its codec and checksum.
    fn copy_to_chunk(&self, chunk: &mut Chunk, speeds: &Speeds, link_bytes_per_second: f64) {
        let piece = self.piece();
        // SAFETY: the owner keeps the bytes, and nothing changes them.
        let raw = unsafe { slice::from_raw_parts(self.memory(), piece.bytes) };
        let coding = &self.spilled.coding;
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
        // Each piece is written once, so this cannot fail.
        let _ = piece.written.set(Written { codec, bytes, checksum });
    }

    /// Decodes the piece from a chunk into memory. Returns `false` if the bytes in the chunk are not those that were
    /// written.
    fn copy_from_chunk(&self, chunk: &Chunk, speeds: &Speeds) -> bool {
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

    /// Returns whether any part of the transfer has failed.
    fn has_failed(&self) -> bool {
        self.transfer.completion.lock().error.is_some()
    }

    /// Ends the transfer of this piece. With the last piece, the transfer is over: wakes the threads that wait for it
    /// and calls its function.
    fn end(self, error: Option<DiskError>) {
        let Self { transfer, spilled, .. } = self;
        // A thread that waits for the transfer and then drops its `Spilled` must find the room free at once.
        drop(spilled);
        let mut completion = transfer.completion.lock();
        completion.error = completion.error.take().or(error);
        if transfer.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            completion.is_over = true;
            let owner = completion.owner.take();
            let then = completion.then.take();
            // Without a function, the error stays for the thread that waits.
            let error = if then.is_some() { completion.error.take() } else { None };
            transfer.ended.notify_all();
            drop(completion);
            drop(owner);
            if let Some(then) = then {
                then(error);
            }
        }
    }
}

/// The free chunks and queues of a tier, and its statistics.
pub(super) struct DiskState {
    /// The free chunks.
    chunks: Vec<Chunk>,
    /// The parts that wait for a chunk: first those to be read, then those to be written.
    waiting: [VecDeque<TransferPart>; 2],
    /// The parts that have a chunk and wait for a copying thread.
    tasks: VecDeque<(TransferPart, Chunk)>,
    /// The parts that are done, and their errors. [`unlock`] ends them after it has released the lock.
    done: Vec<(TransferPart, Option<DiskError>)>,
    /// The number of parts that are not done.
    unfinished: usize,
    /// Whether the engine has stopped. All further parts fail.
    is_broken: bool,
    /// The traffic of each [`Direction`].
    traffic: [DiskTraffic; 2],
    /// Traffic in both directions while both were under way.
    together: DiskTraffic,
    /// Bytes saved by encoding, in whole blocks.
    pub(super) saved_bytes: u64,
    /// Whether the last [`Disk`](super::Disk) was dropped, so that no more transfers will begin.
    pub(super) is_closed: bool,
}

/// The traffic in one direction, or while both directions were busy.
#[derive(Clone, Copy, Default)]
struct DiskTraffic {
    bytes: u64,
    /// The number of requests under way.
    under_way: usize,
    /// The time since which requests have been under way without a break.
    busy_since: Option<Instant>,
    /// The time in which requests were under way before `busy_since`.
    busy: Duration,
}

impl DiskTraffic {
    fn begin(&mut self) {
        self.under_way += 1;
        self.busy_since.get_or_insert_with(Instant::now);
    }

    /// Returns the bytes moved, and the time in which requests were under way.
    fn moved(&self) -> (u64, Duration) {
        (self.bytes, self.busy + self.busy_since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn end(&mut self, bytes: usize) {
        self.under_way -= 1;
        self.bytes += bytes as u64;
        if self.under_way == 0 {
            self.busy += self.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
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

    /// Records that a request was passed to the engine.
    pub(super) fn begin_request(&mut self, direction: Direction) {
        self.traffic[direction as usize].begin();
        if self.traffic.iter().all(|traffic| traffic.under_way > 0) && self.together.under_way == 0 {
            self.together.begin();
        }
    }

    /// Records that a request has ended, and the bytes that it moved.
    pub(super) fn end_request(&mut self, direction: Direction, bytes: usize) {
        self.traffic[direction as usize].end(bytes);
        if self.together.under_way > 0 {
            self.together.bytes += bytes as u64;
            if self.traffic.iter().any(|traffic| traffic.under_way == 0) {
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

    /// Returns the measured bandwidth of the slower direction in bytes per second, or 1e9 before the first transfer.
    pub(super) fn bandwidth(&self) -> f64 {
        let timed = self.moved().into_iter().filter(|(bytes, busy)| *bytes > 0 && !busy.is_zero());
        timed.map(|(bytes, busy)| bytes as f64 / busy.as_secs_f64()).min_by(f64::total_cmp).unwrap_or(1e9)
    }
}

/// Unlocks the state, then ends the parts that are done.
fn unlock(mut state: MutexGuard<'_, DiskState>) {
    let done = mem::take(&mut state.done);
    drop(state);
    for (part, error) in done {
        part.end(error);
    }
}

impl DiskShared {
    /// Begins a transfer: queues a part for each piece.
    pub(super) fn begin(self: &Arc<Self>, transfer: &Arc<DiskTransfer>, spilled: &Arc<SpilledInner>) {
        let pieces = spilled.pieces.len();
        let parts = (0..pieces).map(|number| TransferPart {
            transfer: Arc::clone(transfer),
            spilled: Arc::clone(spilled),
            number,
        });
        let mut state = self.state.lock();
        state.waiting[transfer.direction as usize].extend(parts);
        state.unfinished += pieces;
        self.assign_chunks(&mut state);
        unlock(state);
    }

    /// Gives free chunks to the parts that wait for them: reads go to the engine, writes to the copying threads. If the
    /// engine has stopped, all waiting parts fail.
    fn assign_chunks(self: &Arc<Self>, state: &mut DiskState) {
        if state.is_broken {
            let parts: Vec<TransferPart> = state.waiting.iter_mut().flat_map(|parts| parts.drain(..)).collect();
            for part in parts {
                let error = self.io_error(&part, io::ErrorKind::BrokenPipe.into());
                self.end_part(state, part, None, Some(error));
            }
        }
        while let Some(chunk) = state.chunks.pop() {
            let [reads, writes] = &mut state.waiting;
            if let Some(part) = reads.pop_front() {
                self.submit(state, part, chunk);
            } else if let Some(part) = writes.pop_front() {
                state.tasks.push_back((part, chunk));
                self.work_changed.notify_one();
            } else {
                state.chunks.push(chunk);
                return;
            }
        }
    }

    /// Passes a part to the engine, which reads it into the chunk or writes it from there.
    fn submit(self: &Arc<Self>, state: &mut DiskState, part: TransferPart, chunk: Chunk) {
        let direction = part.transfer.direction;
        state.begin_request(direction);
        let piece = part.piece();
        let shared = Arc::clone(self);
        let submitted = part.clone();
        let file = Arc::clone(&self.files[piece.file]);
        let offset = piece.offset;
        let bytes = piece.bytes_in_file();
        let done = Box::new(move |chunk, result| shared.handle_result(submitted, chunk, result));
        if let Err(refused) = self.engine.begin(Request { direction, file, offset, bytes, chunk, done }) {
            state.end_request(direction, 0);
            state.is_broken = true;
            let error = self.io_error(&part, io::ErrorKind::BrokenPipe.into());
            self.end_part(state, part, Some(refused.chunk), Some(error));
        }
    }

    /// Handles the engine's result for a part: a piece that was read goes to the copying threads, any other part is
    /// done.
    fn handle_result(self: &Arc<Self>, part: TransferPart, chunk: Option<Chunk>, result: io::Result<()>) {
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
                self.work_changed.notify_one();
            }
            (_, result, chunk) => {
                let error = result.err().map(|source| self.io_error(&part, source));
                state.is_broken |= chunk.is_none();
                self.end_part(&mut state, part, chunk, error);
                self.assign_chunks(&mut state);
            }
        }
        unlock(state);
    }

    /// Marks a part as done and takes back its chunk. The part itself ends when the state is [unlocked](unlock).
    fn end_part(&self, state: &mut DiskState, part: TransferPart, chunk: Option<Chunk>, error: Option<DiskError>) {
        state.done.push((part, error));
        state.chunks.extend(chunk);
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.work_changed.notify_all();
        }
    }

    /// Runs a copying thread until the tier is closed and no part is left.
    pub(super) fn run_copier(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some((part, mut chunk)) = state.tasks.pop_front() {
                let bandwidth = state.bandwidth();
                drop(state);
                let mut is_to_be_written = false;
                let mut error = None;
                // The other parts of a failed transfer end without being copied.
                if !part.has_failed() {
                    match part.transfer.direction {
                        Direction::Out => {
                            part.copy_to_chunk(&mut chunk, &self.speeds, bandwidth);
                            is_to_be_written = true;
                        }
                        Direction::In => {
                            if !part.copy_from_chunk(&chunk, &self.speeds) {
                                error = Some(self.changed_error(&part));
                            }
                        }
                    }
                }
                state = self.state.lock();
                if is_to_be_written {
                    self.submit(&mut state, part, chunk);
                } else {
                    self.end_part(&mut state, part, Some(chunk), error);
                }
                self.assign_chunks(&mut state);
                unlock(state);
                state = self.state.lock();
            } else if state.is_closed && state.unfinished == 0 {
                return;
            } else {
                self.work_changed.wait(&mut state);
            }
        }
    }

    fn io_error(&self, part: &TransferPart, source: io::Error) -> DiskError {
        let call = if part.transfer.direction == Direction::In { "reading" } else { "writing" };
        let (name, folder, offset) = self.location(part);
        DiskError::Io { name, call, folder, offset, source }
    }

    fn changed_error(&self, part: &TransferPart) -> DiskError {
        let (name, folder, offset) = self.location(part);
        DiskError::Changed { name, folder, offset }
    }

    /// Returns the tensor's name, the folder of the part's file, and the offset in the file.
    fn location(&self, part: &TransferPart) -> (String, std::path::PathBuf, u64) {
        let piece = part.piece();
        (part.transfer.name.clone(), self.files[piece.file].folder.clone(), piece.offset)
    }
}
