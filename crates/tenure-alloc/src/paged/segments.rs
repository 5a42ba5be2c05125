//! The segments of private pools: one chunk each, mapped into a range of its own.
//!
//! They are chunks and not memory from `malloc`, so that a block of a private pool can be shared with other processes
//! like any other block, and because a capture forbids `malloc`.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use crate::{Address, Backing, BackingError, ChunkId, MappedChunk, Mark, MemoryInfo};

/// A backing whose `malloc` maps a chunk. A segment is freed only when no stream has unfinished work on it.
pub(super) struct Segments {
    inner: Arc<dyn Backing>,
    state: Mutex<SegmentsState>,
}

#[derive(Default)]
struct SegmentsState {
    segments: FxHashMap<Address, PrivateSegment>,
    /// Memory that the backing refused to take back, to be offered again.
    leftovers: Vec<PrivateSegment>,
}

/// A segment, possibly only partly made or undone.
#[derive(Clone, Copy)]
struct PrivateSegment {
    bytes: u64,
    /// The first address of its reserved range.
    range: Option<Address>,
    chunk: Option<ChunkId>,
    is_mapped: bool,
}

impl Segments {
    pub(super) fn new(inner: Arc<dyn Backing>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Returns the chunk of the segment at an address.
    pub(super) fn chunk(&self, address: Address) -> Option<MappedChunk> {
        let PrivateSegment { bytes, chunk, .. } = *self.state.lock().segments.get(&address)?;
        Some(MappedChunk { chunk: chunk?, bytes, address })
    }

    /// Returns the bytes of chunks that belong to no segment and that the backing refused to take back.
    pub(super) fn leftover_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.leftovers.iter().filter(|segment| segment.chunk.is_some()).map(|segment| segment.bytes).sum()
    }

    /// Offers the backing again the memory that it refused to take back.
    pub(super) fn tidy(&self) -> Result<(), BackingError> {
        let mut state = self.state.lock();
        while let Some(segment) = state.leftovers.last_mut() {
            segment.undo(&*self.inner)?;
            state.leftovers.pop();
        }
        Ok(())
    }

    /// Undoes a segment that could not be made. If the backing refuses, the memory becomes a leftover.
    fn discard(&self, mut segment: PrivateSegment) {
        if segment.undo(&*self.inner).is_err() {
            self.state.lock().leftovers.push(segment);
        }
    }
}

impl PrivateSegment {
    /// Reserves, creates and maps the segment. After an error, [`undo`](Self::undo) undoes the steps taken.
    fn make(&mut self, backing: &dyn Backing) -> Result<Address, BackingError> {
        let range = backing.reserve(self.bytes)?;
        self.range = Some(range);
        let chunk = backing.create(self.bytes)?;
        self.chunk = Some(chunk);
        backing.map(range, chunk)?;
        self.is_mapped = true;
        backing.set_access(range, self.bytes)?;
        Ok(range)
    }

    /// Undoes the steps taken so far, in order; a step that failed can be tried again.
    fn undo(&mut self, backing: &dyn Backing) -> Result<(), BackingError> {
        if let Some(range) = self.range.filter(|_| self.is_mapped) {
            backing.unmap(range, self.bytes)?;
            self.is_mapped = false;
        }
        if let Some(chunk) = self.chunk {
            backing.release(chunk)?;
            self.chunk = None;
        }
        if let Some(range) = self.range {
            backing.unreserve(range, self.bytes)?;
            self.range = None;
        }
        Ok(())
    }
}

impl Backing for Segments {
    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        let mut segment = PrivateSegment { bytes, range: None, chunk: None, is_mapped: false };
        match segment.make(&*self.inner) {
            Ok(address) => {
                self.state.lock().segments.insert(address, segment);
                Ok(address)
            }
            Err(error) => {
                self.discard(segment);
                Err(error)
            }
        }
    }

    /// Fails only if the segment stays as it is.
    fn free(&self, address: Address) -> Result<(), BackingError> {
        let Some(mut segment) = self.state.lock().segments.remove(&address) else {
            let reason = format!("no segment begins at {address:#x}");
            return Err(BackingError::Failed { call: "free", reason });
        };
        if let Err(error) = segment.undo(&*self.inner) {
            let state = &mut *self.state.lock();
            if segment.is_mapped {
                state.segments.insert(address, segment);
                return Err(error);
            }
            state.leftovers.push(segment);
        }
        Ok(())
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        self.inner.memory_info()
    }

    fn overhead_bytes(&self) -> u64 {
        self.inner.overhead_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        self.inner.reserve(bytes)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.inner.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        self.inner.create(bytes)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.inner.release(chunk)
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        self.inner.map(address, chunk)
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.inner.set_access(address, bytes)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.inner.unmap(address, bytes)
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        self.inner.record(stream)
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        self.inner.completed(mark)
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        self.inner.wait(stream, mark)
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        self.inner.synchronize(mark)
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        self.inner.synchronize_all()
    }
}
