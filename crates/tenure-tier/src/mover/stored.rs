//! What was stored, and where it is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use tenure_core::StreamId;
use tenure_device::pinned::PinnedBuffer;
use tenure_device::{Event, Stream};

use super::MoverError;
use super::bytes::{Bytes, Part, Raw};
use super::watcher::Watcher;
use crate::Spilled;
use crate::codec::Encoded;

/// Bytes that the mover has, under the name that errors tell. Clones are one; the last that is dropped makes room.
#[derive(Clone)]
pub struct Stored {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Arc<Piece>>,
    /// Of those that go to disk.
    pub(super) progress: Arc<Progress>,
    pub(super) source: Arc<Source>,
}

impl Stored {
    /// What it was called.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// How many of them are in memory of the host: to stay there, to be written, or since that failed.
    pub fn host_bytes(&self) -> u64 {
        let of = |piece: &Arc<Piece>| match &*piece.place.lock() {
            Place::Memory(held) => held.count() as u64,
            Place::Disk(_) | Place::Lost(_) => 0,
        };
        self.inner.pieces.iter().map(of).sum()
    }

    /// What became of those that are on a disk.
    pub fn encoded(&self) -> Encoded {
        Encoded::of_all(self.inner.pieces.iter().filter_map(|piece| match &*piece.place.lock() {
            Place::Disk(spilled) => Some(spilled.encoded()),
            Place::Memory(_) | Place::Lost(_) => None,
        }))
    }

    /// Makes later work of a stream wait, on the device, until the bytes have been read: it may write to what they were
    /// stored from. If it is their own stream, what they were stored from is let go of at once, and freed in its order.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        let event = self.inner.progress.event();
        event.map_or(Ok(()), |event| event.wait(stream)).map_err(MoverError::driver(self.name()))?;
        self.inner.source.release(|source| source.stream() == Some(stream));
        Ok(())
    }

    /// Whether it keeps what it was stored from: on a device until somebody is [behind](Self::lead_to) that, or
    /// [waited](Self::wait); on the host until its bytes are out.
    pub fn keeps_source(&self) -> bool {
        let is_host = |piece: &Arc<Piece>| matches!(piece.held().as_deref(), Some(Held::Host(_)));
        let Inner { source, pieces, progress, .. } = &*self.inner;
        source.is_kept.load(Ordering::Acquire)
            || progress.event().is_none() && (!progress.is_over() || pieces.iter().any(is_host))
    }

    /// Whether it is where it was to go, and nothing went wrong on the way.
    pub fn is_settled(&self) -> bool {
        self.inner.progress.is_settled()
    }

    /// Waits until it is where it was to go. It can be fetched before.
    ///
    /// # Errors
    /// What went wrong on the way, each time. After an error of the disk it stays in memory, and can be fetched; after
    /// one of the device it is lost.
    pub fn wait(&self) -> Result<(), MoverError> {
        let event = self.inner.progress.wait()?;
        event.map_or(Ok(()), |event| event.synchronize()).map_err(MoverError::driver(self.name()))?;
        self.inner.source.release(|_| true);
        Ok(())
    }
}

/// Bytes on a device, until somebody comes behind that they are out: a program, so that what it does next finds the same
/// memory free in each of its steps, however long the copies take.
#[derive(Default)]
pub(super) struct Source {
    bytes: Mutex<Option<Arc<Bytes>>>,
    /// Until they have been freed, if nobody else has them.
    is_kept: AtomicBool,
    /// The event behind which they are out, and the thread that waits for it where they are dropped before.
    out: Option<(Arc<Event>, Weak<Watcher>)>,
}

impl Source {
    pub(super) fn new(bytes: Arc<Bytes>, event: Arc<Event>, watcher: Weak<Watcher>) -> Self {
        Self { bytes: Mutex::new(Some(bytes)), is_kept: AtomicBool::new(true), out: Some((event, watcher)) }
    }

    /// They are behind that for whoever frees them.
    pub(super) fn release(&self, is_behind: impl FnOnce(&Bytes) -> bool) {
        let Some(bytes) = self.bytes.lock().take_if(|bytes| is_behind(bytes)) else { return };
        // When nothing is locked.
        drop(bytes);
        self.is_kept.store(false, Ordering::Release);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let (Some(bytes), Some((event, watcher))) = (self.bytes.get_mut().take(), self.out.take()) else { return };
        if matches!(event.query(), Ok(true)) {
            return;
        }
        match watcher.upgrade() {
            Some(watcher) => watcher.when_passed(event, move |_| drop(bytes)),
            // The mover is gone. An event that fails never passes.
            None => drop(event.synchronize()),
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:?}, {} bytes, {} in memory)", self.name(), self.bytes(), self.host_bytes())
    }
}

/// A part of what was stored, which goes to disk and comes back by itself.
pub(super) struct Piece {
    pub(super) place: Mutex<Place>,
}

pub(super) enum Place {
    Memory(Arc<Held>),
    Disk(Spilled),
    /// The device failed before its bytes were out.
    Lost(MoverError),
}

impl Piece {
    pub(super) fn new(held: Held) -> Arc<Self> {
        Arc::new(Self { place: Mutex::new(Place::Memory(Arc::new(held))) })
    }

    pub(super) fn held(&self) -> Option<Arc<Held>> {
        match &*self.place.lock() {
            Place::Memory(held) => Some(Arc::clone(held)),
            Place::Disk(_) | Place::Lost(_) => None,
        }
    }

    pub(super) fn set(&self, place: Place) {
        // What was held is let go when nothing is locked.
        let held = std::mem::replace(&mut *self.place.lock(), place);
        drop(held);
    }
}

/// Bytes in memory of the host.
pub(super) enum Held {
    /// They never left it.
    Host(Part),
    Pinned(Pinned),
}

impl Held {
    fn count(&self) -> usize {
        match self {
            Self::Host(part) => part.count,
            Self::Pinned(pinned) => pinned.buffer.len(),
        }
    }

    /// To be read only.
    pub(super) fn raw(&self) -> Raw {
        match self {
            Self::Host(part) => part.raw(),
            Self::Pinned(Pinned { buffer, .. }) => Raw { start: buffer.as_ptr().cast_mut(), count: buffer.len() },
        }
    }
}

/// Pinned memory that a device copies from and to.
pub(super) struct Pinned {
    pub(super) buffer: PinnedBuffer,
    /// When the bytes are there.
    pub(super) copied: Arc<Event>,
    /// The last use on each stream.
    uses: Mutex<Vec<(Arc<Event>, StreamId)>>,
}

impl Pinned {
    /// Memory that a stream copies to until an event.
    pub(super) fn new(buffer: PinnedBuffer, copied: Arc<Event>, stream: StreamId) -> Self {
        Self { buffer, uses: Mutex::new(vec![(Arc::clone(&copied), stream)]), copied }
    }

    /// Says that a stream copies from it until an event.
    pub(super) fn used(&self, event: &Arc<Event>, stream: StreamId) {
        let mut uses = self.uses.lock();
        uses.retain(|(_, other)| *other != stream);
        uses.push((Arc::clone(event), stream));
    }
}

impl Drop for Pinned {
    /// What was passed is not recorded: the memory would wait for all that the stream has to do by now.
    fn drop(&mut self) {
        for (event, stream) in self.uses.get_mut() {
            if !matches!(event.query(), Ok(true)) {
                // A stream of the pool's device is never refused.
                let _ = self.buffer.record_stream(*stream);
            }
        }
    }
}

/// How far something came that the host has to do with.
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Pieces that are not there, or whose copy is not on its stream.
    left: usize,
    /// What went wrong first.
    error: Option<MoverError>,
    /// Behind all copies, which are on one stream.
    event: Option<Arc<Event>>,
}

impl Progress {
    pub(super) fn new(left: usize, event: Option<Arc<Event>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { left, error: None, event }), changed: Condvar::new() })
    }

    /// One copy more is on the stream, and the host has to do with its piece yet.
    pub(super) fn mark(&self, event: &Arc<Event>) {
        self.state.lock().event = Some(Arc::clone(event));
    }

    /// One piece more is done with, by a function that may put a copy on the stream: one at a time, so that the last
    /// event is behind all of them.
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
        let is_passed = || state.event.as_ref().is_none_or(|event| matches!(event.query(), Ok(true)));
        state.left == 0 && state.error.is_none() && is_passed()
    }

    /// Behind all copies that were put on the stream, if there is any, whatever else went wrong.
    pub(super) fn event(&self) -> Option<Arc<Event>> {
        self.state.lock().event.clone()
    }

    /// Waits until nothing is left for the host to do. The event is behind all that the device has to.
    pub(super) fn wait(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.left > 0);
        state.error.clone().map_or_else(|| Ok(state.event.clone()), Err)
    }
}
