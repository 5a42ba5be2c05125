//! Stored bytes: their pieces in memory or on a disk, and the progress of moving them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use tenure_core::StreamId;
use tenure_device::pinned::PinnedBuffer;
use tenure_device::{Event, NotedCopy, Stream};

use super::MoverError;
use super::bytes::{BytesPart, MovableBytes, Raw};
use super::link::Watcher;
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
    /// The size of each piece but the last.
    pub(super) piece_bytes: usize,
    /// The pieces still to be written to disk, the first error, and the last event of copies out of a device.
    pub(super) progress: Arc<Progress>,
    /// The source on a device, until the program has waited for the copies. Empty for a source in host memory, which
    /// the pieces keep.
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
                PiecePlace::Memory(bytes) => bytes.count() as u64,
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

    /// Makes later work of `stream` wait, on the device, until the source has been copied out. That work may then
    /// overwrite the source. If `stream` is the source's own, the mover drops the source at once: its memory is freed
    /// in the order of that stream, so after the copies. For a source in host memory this does nothing.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        let event = self.inner.progress.event();
        event.map_or(Ok(()), |event| event.wait(stream)).map_err(MoverError::driver(self.name()))?;
        self.inner.source.release(|source| source.stream() == Some(stream));
        Ok(())
    }

    /// Returns whether the mover still keeps the source alive. It keeps a source on a device until
    /// [`lead_to`](Self::lead_to) with the source's stream, or [`wait`](Self::wait), returns `Ok`. It keeps a source in
    /// host memory until all of it is on disk: if a write fails, as long as the `Stored` lives.
    pub fn keeps_source(&self) -> bool {
        let StoredInner { source, pieces, progress, .. } = &*self.inner;
        if source.is_kept.load(Ordering::Acquire) {
            return true;
        }
        // Only copies out of a device have an event; then nothing but `source` keeps the bytes.
        let is_on_host = progress.event().is_none();
        is_on_host && (!progress.is_over() || pieces.iter().any(|piece| piece.is_source()))
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

/// The source bytes on a device, kept until the program has waited for the copies, with their stream or on the host.
///
/// The program's own calls drop them, not the end of the copies. So the memory that is free at each point of the
/// program does not depend on how long the copies take.
#[derive(Default)]
pub(super) struct KeptSource {
    bytes: Mutex<Option<Source>>,
    /// Whether `bytes` are still kept. It becomes `false` only after they were dropped, so that a caller who reads
    /// `false` finds their memory freed, unless they have another owner.
    is_kept: AtomicBool,
    /// The event after the copies, and the thread that keeps the bytes until it has passed if this is dropped before.
    copied: Option<(Arc<Event>, Weak<Watcher>)>,
}

/// Bytes on a device, for whose copies work that writes to them waits.
struct Source {
    bytes: Arc<MovableBytes>,
    _noted: NotedCopy,
}

impl KeptSource {
    pub(super) fn new(bytes: Arc<MovableBytes>, noted: NotedCopy, event: Arc<Event>, watcher: Weak<Watcher>) -> Self {
        let source = Source { bytes, _noted: noted };
        Self { bytes: Mutex::new(Some(source)), is_kept: AtomicBool::new(true), copied: Some((event, watcher)) }
    }

    /// Drops the bytes if `may_free` returns `true` for them: if memory that is freed now is reused only after the
    /// copies.
    pub(super) fn release(&self, may_free: impl FnOnce(&MovableBytes) -> bool) {
        let Some(source) = self.bytes.lock().take_if(|source| may_free(&source.bytes)) else { return };
        // The drop may free memory, so it happens while no lock is held.
        drop(source);
        self.is_kept.store(false, Ordering::Release);
    }
}

impl Drop for KeptSource {
    fn drop(&mut self) {
        let (Some(source), Some((event, watcher))) = (self.bytes.get_mut().take(), self.copied.take()) else { return };
        if matches!(event.query(), Ok(true)) {
            return;
        }
        match watcher.upgrade() {
            Some(watcher) => watcher.when_passed(event, move |_| drop(source)),
            None => {
                // The mover is gone, so this thread waits. After an error the device copies no more, so it is ignored.
                let _ = event.synchronize();
            }
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:?}, {} bytes, {} in memory)", self.name(), self.bytes(), self.host_bytes())
    }
}

/// A piece of the bytes of a [`Stored`]. Each piece is written to disk and read back separately.
pub(super) struct StoredPiece {
    pub(super) place: Mutex<PiecePlace>,
}

/// The place of a piece's bytes.
pub(super) enum PiecePlace {
    /// They are in host memory: to stay, to be written, or because the write failed.
    Memory(Arc<HostBytes>),
    Disk(Spilled),
    /// The device failed before the bytes were copied out of it.
    Lost(MoverError),
}

impl StoredPiece {
    pub(super) fn new(bytes: HostBytes) -> Arc<Self> {
        Arc::new(Self { place: Mutex::new(PiecePlace::Memory(Arc::new(bytes))) })
    }

    /// Returns the piece's bytes if they are in host memory.
    pub(super) fn in_memory(&self) -> Option<Arc<HostBytes>> {
        match &*self.place.lock() {
            PiecePlace::Memory(bytes) => Some(Arc::clone(bytes)),
            PiecePlace::Disk(_) | PiecePlace::Lost(_) => None,
        }
    }

    /// Returns whether the piece is still a part of the source, in host memory.
    fn is_source(&self) -> bool {
        matches!(self.in_memory().as_deref(), Some(HostBytes::Source(_)))
    }

    /// Changes the place of the piece's bytes.
    pub(super) fn set_place(&self, place: PiecePlace) {
        let old = std::mem::replace(&mut *self.place.lock(), place);
        // The drop may free memory, so it happens while no lock is held.
        drop(old);
    }
}

/// Bytes in host memory.
pub(super) enum HostBytes {
    /// A part of a source in host memory. It is written to disk from there, without a copy.
    Source(BytesPart),
    /// A copy of a part of a source on a device.
    Pinned(Pinned),
}

impl HostBytes {
    /// Returns the number of bytes.
    fn count(&self) -> usize {
        match self {
            Self::Source(part) => part.count,
            Self::Pinned(pinned) => pinned.buffer.len(),
        }
    }

    /// Returns the bytes' address and number. The caller may only read them, and keeps `self` meanwhile.
    pub(super) fn raw(&self) -> Raw {
        match self {
            Self::Source(part) => part.raw(),
            Self::Pinned(Pinned { buffer, .. }) => Raw { start: buffer.as_ptr().cast_mut(), count: buffer.len() },
        }
    }
}

/// Pinned host memory that a device copies to once, and from at each fetch.
pub(super) struct Pinned {
    pub(super) buffer: PinnedBuffer,
    /// The event after the copy to the memory.
    pub(super) copied: Arc<Event>,
    /// The event after the last copy to or from the memory on each stream.
    uses: Mutex<Vec<(Arc<Event>, StreamId)>>,
}

impl Pinned {
    /// Wraps memory that `stream` copies to until `copied` has passed.
    pub(super) fn new(buffer: PinnedBuffer, copied: Arc<Event>, stream: StreamId) -> Self {
        Self { buffer, uses: Mutex::new(vec![(Arc::clone(&copied), stream)]), copied }
    }

    /// Records that `stream` copies from the memory until `event` has passed.
    pub(super) fn record_use(&self, event: &Arc<Event>, stream: StreamId) {
        let mut uses = self.uses.lock();
        uses.retain(|(_, other)| *other != stream);
        uses.push((Arc::clone(event), stream));
    }
}

impl Drop for Pinned {
    /// Tells the pool which streams still use the memory, so that it is reused only after their work queued so far. It
    /// leaves out streams whose copies are done: the memory would needlessly wait for their later work.
    fn drop(&mut self) {
        for (event, stream) in self.uses.get_mut() {
            if !matches!(event.query(), Ok(true)) {
                self.buffer.record_stream(*stream);
            }
        }
    }
}

/// The progress of a store or fetch: the pieces that the host still has to handle, the first error, and the event after
/// the copies queued on the device.
pub(super) struct Progress {
    state: Mutex<ProgressState>,
    changed: Condvar,
}

struct ProgressState {
    /// The number of pieces that the host has not handled: of a store, those not yet written to disk; of a fetch, those
    /// not yet read from disk or whose copy to the device is not yet queued.
    remaining: usize,
    /// The first error.
    error: Option<MoverError>,
    /// The event after all copies queued so far. They are on one stream, so the latest event is enough. `None` without
    /// a device.
    event: Option<Arc<Event>>,
}

impl Progress {
    pub(super) fn new(remaining: usize, event: Option<Arc<Event>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(ProgressState { remaining, error: None, event }), changed: Condvar::new() })
    }

    /// Records that a copy is queued, after which comes `event`. The host has not handled its piece yet.
    pub(super) fn record_copy(&self, event: &Arc<Event>) {
        self.state.lock().event = Some(Arc::clone(event));
    }

    /// Calls `finish` for one more piece and counts it as handled, also after an error. `finish` returns the event
    /// after the copy that it queued, if any, and so does this. The lock is held meanwhile, so that the last event
    /// recorded comes after all copies.
    pub(super) fn finish_piece(
        &self,
        finish: impl FnOnce() -> Result<Option<Arc<Event>>, MoverError>,
    ) -> Option<Arc<Event>> {
        let mut state = self.state.lock();
        let finished = finish();
        state.remaining -= 1;
        if state.remaining == 0 {
            self.changed.notify_all();
        }
        match finished {
            Ok(event) => {
                if event.is_some() {
                    state.event.clone_from(&event);
                }
                event
            }
            Err(error) => {
                state.error.get_or_insert(error);
                None
            }
        }
    }

    /// Returns whether the host has handled all pieces. Copies on the device may still be running.
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().remaining == 0
    }

    /// Returns whether the host has handled all pieces without an error and the device's copies are done.
    fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.remaining == 0
            && state.error.is_none()
            && state.event.as_ref().is_none_or(|event| matches!(event.query(), Ok(true)))
    }

    /// Returns the event after all copies queued so far, if there are any, even after an error.
    pub(super) fn event(&self) -> Option<Arc<Event>> {
        self.state.lock().event.clone()
    }

    /// Waits until the host has handled all pieces. Returns the event after all copies on the device, which may still
    /// be running, or the first error.
    pub(super) fn wait(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.remaining > 0);
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state.event.clone()),
        }
    }
}
