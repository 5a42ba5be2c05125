//! What is on its way between memory and disks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, slice};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::engine::{Direction, Request};
use super::staging::{BLOCK, CHUNK, Chunk};
use super::{DiskError, Piece, Shared, Stored, Written};
use crate::codec::{self, Codec, Speeds, Writer, sequential};

/// All of something, on its way.
pub(super) struct Transfer {
    name: String,
    direction: Direction,
    /// Its bytes in memory.
    start: *mut u8,
    /// Pieces that are not done.
    left: AtomicUsize,
    end: Mutex<End>,
    ended: Condvar,
}

/// How it ends.
struct End {
    is_over: bool,
    /// What went wrong first.
    error: Option<DiskError>,
    /// What keeps its bytes in memory.
    owner: Option<Box<dyn Send>>,
    /// Whom to tell.
    then: Option<Box<dyn FnOnce(Option<DiskError>) + Send>>,
}

// SAFETY: the bytes at `start` are there until it is over, and each piece of them is touched by one thread at a time.
unsafe impl Send for Transfer {}
// SAFETY: as above.
unsafe impl Sync for Transfer {}

impl Transfer {
    pub(super) fn new(direction: Direction, stored: &Stored, start: *mut u8, owner: Box<dyn Send>) -> Arc<Self> {
        let left = AtomicUsize::new(stored.pieces.len());
        let end = Mutex::new(End { is_over: stored.pieces.is_empty(), error: None, owner: Some(owner), then: None });
        Arc::new(Self { name: stored.name.clone(), direction, start, left, end, ended: Condvar::new() })
    }
}

/// Something that is under way. If this is dropped, it goes on, and nobody is told how it ended.
#[must_use = "waiting for it tells what the disk said"]
pub struct Ticket<T> {
    transfer: Arc<Transfer>,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Ticket<T> {
    /// `result` has what comes of it.
    pub(super) fn new(transfer: Arc<Transfer>, result: Arc<Mutex<Option<T>>>) -> Self {
        Self { transfer, result }
    }

    /// Whether it is over, well or not.
    pub fn is_over(&self) -> bool {
        self.transfer.end.lock().is_over
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// What went wrong first: [`DiskError::Io`] or [`DiskError::Changed`].
    pub fn wait(self) -> Result<T, DiskError> {
        let mut end = self.transfer.end.lock();
        self.transfer.ended.wait_while(&mut end, |end| !end.is_over);
        result(end.error.take(), &self.result)
    }

    /// Has a function called with how it ended: by the thread that ends it, which must not be kept for long, or now if
    /// it is over.
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

/// How something that is over ended.
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

/// A piece of something.
#[derive(Clone)]
struct Part {
    transfer: Arc<Transfer>,
    /// Its room is nobody else's before it is done.
    stored: Arc<Stored>,
    number: usize,
}

impl Part {
    fn piece(&self) -> &Piece {
        &self.stored.pieces[self.number]
    }

    /// Its bytes in memory.
    fn memory(&self) -> *mut u8 {
        // SAFETY: all pieces but the last are as long as a chunk, and all of them are as long as what is at `start`.
        unsafe { self.transfer.start.add(self.number * CHUNK) }
    }

    /// Out of memory into a chunk, encoded if that makes it smaller, with a checksum.
    fn fill(&self, chunk: &mut Chunk, speeds: &Speeds, link_bytes_per_second: f64) {
        let piece = self.piece();
        // SAFETY: the owner keeps them, and nobody changes them.
        let raw = unsafe { slice::from_raw_parts(self.memory(), piece.bytes) };
        let coding = &self.stored.coding;
        let codec = match coding.codec(raw, speeds, link_bytes_per_second) {
            Codec::None => None,
            codec => speeds.encode(codec, raw.len(), || {
                let writer = Writer::new(codec, coding.dtype, raw, &sequential);
                let bytes = writer.encoded().bytes;
                let is_smaller = bytes.next_multiple_of(BLOCK) < raw.len();
                is_smaller.then(|| writer.write(&mut chunk.bytes_mut()[..bytes], &sequential)).map(|()| (codec, bytes))
            }),
        };
        let (codec, bytes) = codec.unwrap_or_else(|| {
            chunk.bytes_mut()[..raw.len()].copy_from_slice(raw);
            (Codec::None, raw.len())
        });
        let checksum = crc32fast::hash(&chunk.bytes()[..bytes]);
        chunk.bytes_mut()[bytes..bytes.next_multiple_of(BLOCK)].fill(0);
        // A piece is filled once.
        let _ = piece.written.set(Written { codec, bytes, checksum });
    }

    /// Out of a chunk into memory, if it is what was written.
    fn empty(&self, chunk: &Chunk, speeds: &Speeds) -> bool {
        let piece = self.piece();
        let Some(written) = piece.written.get() else { unreachable!("what is read was written") };
        let bytes = &chunk.bytes()[..written.bytes];
        if crc32fast::hash(bytes) != written.checksum {
            return false;
        }
        // SAFETY: the owner keeps them, and nobody else touches this piece of them.
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
        // Whoever waits and then drops it finds room at once.
        drop(stored);
        let mut end = transfer.end.lock();
        end.error = end.error.take().or(error);
        if transfer.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            end.is_over = true;
            let (owner, then) = (end.owner.take(), end.then.take());
            let error = then.is_some().then(|| end.error.take()).flatten();
            transfer.ended.notify_all();
            drop((end, owner));
            if let Some(then) = then {
                then(error);
            }
        }
    }
}

/// What waits, and for what.
pub(super) struct State {
    /// Those that nobody has.
    chunks: Vec<Chunk>,
    /// For a chunk: those to be read first.
    waiting: [VecDeque<Part>; 2],
    /// For a thread that copies.
    tasks: VecDeque<(Part, Chunk)>,
    /// Parts that are done, and how: whoever waits is told when nothing is locked.
    done: Vec<(Part, Option<DiskError>)>,
    /// Parts that are not done.
    unfinished: usize,
    /// The engine carries out nothing any more.
    is_broken: bool,
    flows: [Flow; 2],
    /// Either way while both are under way.
    together: Flow,
    /// Bytes that were not written since what was to be written got smaller.
    pub(super) saved_bytes: u64,
    /// Nothing is added any more.
    pub(super) is_closed: bool,
}

/// What went one way.
#[derive(Clone, Copy, Default)]
struct Flow {
    bytes: u64,
    /// Requests under way.
    begun: usize,
    since: Option<Instant>,
    busy: Duration,
}

impl Flow {
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

impl State {
    pub(super) fn new(chunks: Vec<Chunk>) -> Self {
        Self {
            chunks,
            waiting: Default::default(),
            tasks: VecDeque::new(),
            done: Vec::new(),
            unfinished: 0,
            is_broken: false,
            flows: Default::default(),
            together: Flow::default(),
            saved_bytes: 0,
            is_closed: false,
        }
    }

    pub(super) fn begin_request(&mut self, direction: Direction) {
        self.flows[direction as usize].begin();
        if self.flows.iter().all(|flow| flow.begun > 0) && self.together.begun == 0 {
            self.together.begin();
        }
    }

    pub(super) fn end_request(&mut self, direction: Direction, bytes: usize) {
        self.flows[direction as usize].end(bytes);
        if self.together.begun > 0 {
            self.together.bytes += bytes as u64;
            if self.flows.iter().any(|flow| flow.begun == 0) {
                self.together.end(0);
            }
        }
    }

    /// Bytes that were read and written, and the time that it took.
    pub(super) fn moved(&self) -> [(u64, Duration); 2] {
        self.flows.each_ref().map(Flow::moved)
    }

    /// Those that went either way while both were under way.
    pub(super) fn moved_together(&self) -> (u64, Duration) {
        self.together.moved()
    }

    /// Bytes a second on the slower way; a gigabyte if nobody knows.
    pub(super) fn bandwidth(&self) -> f64 {
        let known = self.moved().into_iter().filter(|(bytes, busy)| *bytes > 0 && !busy.is_zero());
        known.map(|(bytes, busy)| bytes as f64 / busy.as_secs_f64()).min_by(f64::total_cmp).unwrap_or(1e9)
    }
}

/// Tells whoever waits for what is done.
fn unlock(mut state: MutexGuard<'_, State>) {
    let done = mem::take(&mut state.done);
    drop(state);
    for (part, error) in done {
        part.end(error);
    }
}

impl Shared {
    pub(super) fn begin(self: &Arc<Self>, transfer: &Arc<Transfer>, stored: &Arc<Stored>) {
        let pieces = stored.pieces.len();
        let part = |number| Part { transfer: Arc::clone(transfer), stored: Arc::clone(stored), number };
        let parts = (0..pieces).map(part);
        let mut state = self.state.lock();
        state.waiting[transfer.direction as usize].extend(parts);
        state.unfinished += pieces;
        self.pump(&mut state);
        unlock(state);
    }

    /// Gives chunks to what waits for them.
    fn pump(self: &Arc<Self>, state: &mut State) {
        if state.is_broken {
            let parts: Vec<Part> = state.waiting.iter_mut().flat_map(|parts| parts.drain(..)).collect();
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

    /// Has the engine read or write a part.
    fn request(self: &Arc<Self>, state: &mut State, part: Part, chunk: Chunk) {
        let direction = part.transfer.direction;
        state.begin_request(direction);
        let (piece, shared, its) = (part.piece(), Arc::clone(self), part.clone());
        let (file, offset, bytes) = (Arc::clone(&self.files[piece.file]), piece.offset, piece.whole_blocks());
        let done = Box::new(move |chunk, result| shared.requested(its, chunk, result));
        if let Err(refused) = self.engine.begin(Request { direction, file, offset, bytes, chunk, done }) {
            state.end_request(direction, 0);
            state.is_broken = true;
            let error = self.io_error(&part, io::ErrorKind::BrokenPipe.into());
            self.end(state, part, Some(refused.chunk), Some(error));
        }
    }

    /// The engine is done with a part.
    fn requested(self: &Arc<Self>, part: Part, chunk: Option<Chunk>, result: io::Result<()>) {
        let direction = part.transfer.direction;
        let mut state = self.state.lock();
        let moved = if result.is_ok() { part.piece().whole_blocks() } else { 0 };
        state.end_request(direction, moved);
        if direction == Direction::Out && moved > 0 {
            state.saved_bytes += (part.piece().bytes.next_multiple_of(BLOCK) - moved) as u64;
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

    fn end(&self, state: &mut State, part: Part, chunk: Option<Chunk>, error: Option<DiskError>) {
        state.done.push((part, error));
        state.chunks.extend(chunk);
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.work.notify_all();
        }
    }

    /// A thread that copies, until nothing is left and nothing will come.
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

    fn io_error(&self, part: &Part, source: io::Error) -> DiskError {
        let call = if part.transfer.direction == Direction::In { "reading" } else { "writing" };
        let (name, folder, offset) = self.place(part);
        DiskError::Io { name, call, folder, offset, source }
    }

    fn changed(&self, part: &Part) -> DiskError {
        let (name, folder, offset) = self.place(part);
        DiskError::Changed { name, folder, offset }
    }

    fn place(&self, part: &Part) -> (String, std::path::PathBuf, u64) {
        let piece = part.piece();
        (part.transfer.name.clone(), self.files[piece.file].folder.clone(), piece.offset)
    }
}
