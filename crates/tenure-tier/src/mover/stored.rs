//! Stored bytes, and the tier that each piece is in.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use tenure_core::StreamId;
use tenure_device::pinned::PinnedBuffer;
use tenure_device::{Event, Stream};

use super::MoverError;
use super::bytes::{BytesPart, MovableBytes, Raw};
use super::watcher::Watcher;
use crate::Spilled;
use crate::codec::Encoded;

/// Bytes that the mover stores, under the name that errors use. Clones share them; dropping the last clone frees their
/// room.
#[derive(Clone)]
pub struct Stored {
    pub(super) inner: Arc<StoredInner>,
}

pub(super) struct StoredInner {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Arc<StoredPiece>>,
    /// The progress of the pieces that go to disk.
    pub(super) progress: Arc<Progress>,
    pub(super) source: Arc<KeptSource>,
}

impl Stored {
    /// Returns the name that the bytes were stored under.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Returns the number of bytes that are in host memory: those that stay there, wait to be written, or could not be
    /// written.
    pub fn host_bytes(&self) -> u64 {
        self.inner
            .pieces
            .iter()
            .map(|piece| match &*piece.place.lock() {
                PiecePlace::Memory(held) => held.count() as u64,
                PiecePlace::Disk(_) | PiecePlace::Lost(_) => 0,
            })
            .sum()
    }

    /// Returns how the pieces on a disk were encoded.
    pub fn encoded(&self) -> Encoded {
        Encoded::of_all(self.inner.pieces.iter().filter_map(|piece| match &*piece.place.lock() {
            PiecePlace::Disk(spilled) => Some(spilled.encoded()),
            PiecePlace::Memory(_) | PiecePlace::Lost(_) => None,
        }))
    }

    /// Makes later work of a stream wait, on the device, until the source has been read. That work may write to the
    /// source. If it is the source's own stream, the mover lets the source go at once, to be freed in the order of that
    /// stream.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        let event = self.inner.progress.event();
        event.map_or(Ok(()), |event| event.wait(stream)).map_err(MoverError::driver(self.name()))?;
        self.inner.source.release(|source| source.stream() == Some(stream));
        Ok(())
    }

    /// Returns whether the mover still keeps the source. On a device it does until [`lead_to`](Self::lead_to) is called
    /// with the source's stream or [`wait`](Self::wait) returns; on the host, until the bytes are out.
    pub fn keeps_source(&self) -> bool {
        let StoredInner { source, pieces, progress, .. } = &*self.inner;
        source.is_kept.load(Ordering::Acquire)
            || progress.event().is_none() && (!progress.is_over() || pieces.iter().any(|piece| piece.is_source()))
    }

    /// Returns whether all bytes are at their destination and there was no error on the way.
    pub fn is_settled(&self) -> bool {
        self.inner.progress.is_settled()
    }

    /// Waits until all bytes are at their destination. They can be fetched before.
    ///
    /// # Errors
    /// The first error on the way, each time it is called. After an error of the disk the bytes stay in memory and can
    /// be fetched. After an error of the device they are lost.
    pub fn wait(&self) -> Result<(), MoverError> {
        let event = self.inner.progress.wait()?;
        event.map_or(Ok(()), |event| event.synchronize()).map_err(MoverError::driver(self.name()))?;
        self.inner.source.release(|_| true);
        Ok(())
    }
}

/// Source bytes on a device, kept until the program has waited for their copy, on its stream or on the host. Since the
/// program's own calls free them, each of its steps finds the same memory free, however long the copies take.
#[derive(Default)]
pub(super) struct KeptSource {
    bytes: Mutex<Option<Arc<MovableBytes>>>,
    /// Whether the bytes are kept; set to `false` once they have been freed, if this was the last owner.
    is_kept: AtomicBool,
    /// The event after which the bytes are out, and the thread that waits for it if this is dropped before.
    out: Option<(Arc<Event>, Weak<Watcher>)>,
}

impl KeptSource {
    pub(super) fn new(bytes: Arc<MovableBytes>, event: Arc<Event>, watcher: Weak<Watcher>) -> Self {
        Self { bytes: Mutex::new(Some(bytes)), is_kept: AtomicBool::new(true), out: Some((event, watcher)) }
    }

    /// Lets the bytes go if `is_behind` says that their owner may now free them: its frees come after the copies.
    pub(super) fn release(&self, is_behind: impl FnOnce(&MovableBytes) -> bool) {
        let Some(bytes) = self.bytes.lock().take_if(|bytes| is_behind(bytes)) else { return };
        // This may free them, so it happens when nothing is locked.
        drop(bytes);
        self.is_kept.store(false, Ordering::Release);
    }
}

impl Drop for KeptSource {
    fn drop(&mut self) {
        let (Some(bytes), Some((event, watcher))) = (self.bytes.get_mut().take(), self.out.take()) else { return };
        if matches!(event.query(), Ok(true)) {
            return;
        }
        match watcher.upgrade() {
            Some(watcher) => watcher.when_passed(event, move |_| drop(bytes)),
            // The mover is gone. If waiting fails, the event never passes.
            None => drop(event.synchronize()),
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:?}, {} bytes, {} in memory)", self.name(), self.bytes(), self.host_bytes())
    }
}

/// A piece of a [`Stored`], which goes to disk and comes back on its own.
pub(super) struct StoredPiece {
    pub(super) place: Mutex<PiecePlace>,
}

pub(super) enum PiecePlace {
    Memory(Arc<HostBytes>),
    Disk(Spilled),
    /// The device failed before the bytes were out.
    Lost(MoverError),
}

impl StoredPiece {
    pub(super) fn new(held: HostBytes) -> Arc<Self> {
        Arc::new(Self { place: Mutex::new(PiecePlace::Memory(Arc::new(held))) })
    }

    pub(super) fn held(&self) -> Option<Arc<HostBytes>> {
        match &*self.place.lock() {
            PiecePlace::Memory(held) => Some(Arc::clone(held)),
            PiecePlace::Disk(_) | PiecePlace::Lost(_) => None,
        }
    }

    /// Returns whether the piece is still a part of the source, in host memory.
    fn is_source(&self) -> bool {
        matches!(self.held().as_deref(), Some(HostBytes::Host(_)))
    }

    pub(super) fn set(&self, place: PiecePlace) {
        // The old place is dropped when nothing is locked.
        let held = std::mem::replace(&mut *self.place.lock(), place);
        drop(held);
    }
}

/// Bytes in host memory.
pub(super) enum HostBytes {
    /// A source in host memory, which is not copied.
    Host(BytesPart),
    Pinned(Pinned),
}

impl HostBytes {
    fn count(&self) -> usize {
        match self {
            Self::Host(part) => part.count,
            Self::Pinned(pinned) => pinned.buffer.len(),
        }
    }

    /// Returns the bytes, which may only be read.
    pub(super) fn raw(&self) -> Raw {
        match self {
            Self::Host(part) => part.raw(),
            Self::Pinned(Pinned { buffer, .. }) => Raw { start: buffer.as_ptr().cast_mut(), count: buffer.len() },
        }
    }
}

/// Pinned memory that a device copies to and from.
pub(super) struct Pinned {
    pub(super) buffer: PinnedBuffer,
    /// The event after which the bytes are there.
    pub(super) copied: Arc<Event>,
    /// The last use on each stream.
    uses: Mutex<Vec<(Arc<Event>, StreamId)>>,
}

impl Pinned {
    /// Wraps memory that `stream` copies to until `copied` has passed.
    pub(super) fn new(buffer: PinnedBuffer, copied: Arc<Event>, stream: StreamId) -> Self {
        Self { buffer, uses: Mutex::new(vec![(Arc::clone(&copied), stream)]), copied }
    }

    /// Records that a stream copies from it until `event` has passed.
    pub(super) fn used(&self, event: &Arc<Event>, stream: StreamId) {
        let mut uses = self.uses.lock();
        uses.retain(|(_, other)| *other != stream);
        uses.push((Arc::clone(event), stream));
    }
}

impl Drop for Pinned {
    /// Records the uses that have not passed. If it recorded those that have, the memory would wait for all later work
    /// of their streams.
    fn drop(&mut self) {
        for (event, stream) in self.uses.get_mut() {
            if !matches!(event.query(), Ok(true)) {
                // This cannot fail: the stream belongs to the pool's device.
                let _ = self.buffer.record_stream(*stream);
            }
        }
    }
}

/// The part of a store or fetch that the host has to carry out.
pub(super) struct Progress {
    state: Mutex<ProgressState>,
    changed: Condvar,
}

struct ProgressState {
    /// The pieces that are not done: still on disk, or their copy is not yet queued.
    left: usize,
    /// The first error.
    error: Option<MoverError>,
    /// The event after all copies so far, which are on one stream.
    event: Option<Arc<Event>>,
}

impl Progress {
    pub(super) fn new(left: usize, event: Option<Arc<Event>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(ProgressState { left, error: None, event }), changed: Condvar::new() })
    }

    /// Records that one more copy is on the stream. The host still has to finish its piece.
    pub(super) fn mark(&self, event: &Arc<Event>) {
        self.state.lock().event = Some(Arc::clone(event));
    }

    /// Finishes one more piece by calling `step`, which may queue a copy. Calls come one at a time, so that the last
    /// event comes after all copies.
    pub(super) fn step(&self, step: impl FnOnce() -> Result<Option<Arc<Event>>, MoverError>) -> Option<Arc<Event>> {
        let mut state = self.state.lock();
        let stepped = step();
        state.left -= 1;
        if state.left == 0 {
            self.changed.notify_all();
        }
        match stepped {
            Ok(event) => {
                state.event = event.clone().or(state.event.take());
                event
            }
            Err(error) => {
                state.error.get_or_insert(error);
                None
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().left == 0
    }

    fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.left == 0
            && state.error.is_none()
            && state.event.as_ref().is_none_or(|event| matches!(event.query(), Ok(true)))
    }

    /// Returns the event after all queued copies, if there are any. Errors do not change it.
    pub(super) fn event(&self) -> Option<Arc<Event>> {
        self.state.lock().event.clone()
    }

    /// Waits until the host has nothing left to do. The returned event comes after all the device's work.
    pub(super) fn wait(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.left > 0);
        state.error.clone().map_or_else(|| Ok(state.event.clone()), Err)
    }
}
