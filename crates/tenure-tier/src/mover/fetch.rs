//! Fetching stored bytes: pieces in memory are copied at once, pieces on disk are read when a read slot is free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{fmt, ptr};

use parking_lot::Mutex;
use tenure_device::pinned::PinnedBuffer;
use tenure_device::{Event, Stream};

use super::bytes::{BytesPart, MovableBytes, Raw};
use super::link::DeviceCopy;
use super::stored::{HostBytes, Progress};
use super::{MoverError, MoverShared, Urgency};
use crate::Spilled;

/// A fetch that is under way. If this is dropped, the fetch goes on, but no thread can wait for it.
///
/// The mover keeps the target until [`lead_to`](Self::lead_to) is called with the target's own stream, or until
/// [`wait`](Self::wait) returns. From then on its owner may free it in the order of that stream, without waiting for
/// other copies on the mover's stream.
#[must_use = "bytes may be used only behind their arrival"]
pub struct PendingFetch {
    pub(super) fetch: Arc<FetchState>,
}

/// The state of a fetch. It lives as long as its [`PendingFetch`] or a piece that is not yet read from disk.
pub(super) struct FetchState {
    pub(super) shared: Arc<MoverShared>,
    pub(super) name: String,
    pub(super) urgency: Urgency,
    /// The event after which the target may be written, if it is on a device.
    pub(super) ready: Option<Event>,
    /// The target, until its stream or the host has waited for the copies.
    pub(super) target: Mutex<Option<Arc<MovableBytes>>>,
    pub(super) progress: Arc<Progress>,
}

impl FetchState {
    /// Drops the target if `may_release` returns `true`: then the owner, when dropped, frees the memory after the
    /// copies.
    fn release_if(&self, may_release: impl FnOnce(&MovableBytes) -> bool) {
        let target = self.target.lock().take_if(|target| may_release(target));
        // Dropping it may free the memory, so the lock is released before.
        drop(target);
    }
}

impl Drop for FetchState {
    /// Keeps the target until the copies on the mover's stream are done, if neither a stream nor the host has waited
    /// for them.
    fn drop(&mut self) {
        let (Some(target), Some(side)) = (self.target.get_mut().take(), &self.shared.side) else { return };
        let Some(event) = self.progress.event() else { return };
        let stream = side.inward[self.urgency as usize].stream.id();
        if !matches!(side.memory.record_use(target.address(), stream), Ok(true)) {
            // The device's allocator does not own the memory, so it cannot delay the free until the copies are done.
            side.inward_watcher.when_passed(event, move |_| drop(target));
        }
    }
}

impl PendingFetch {
    /// Makes later work of `stream` wait, on the device, until the bytes are in the target. This call itself waits only
    /// until all pieces have been read from disk and their copies to the device are queued. Its pieces are then read
    /// before those that no thread waits for.
    ///
    /// # Errors
    /// The first error of the fetch, on every call. The contents of the target are then unspecified.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        if let Some(event) = self.wait_until_queued()? {
            event.wait(stream).map_err(MoverError::driver(&self.fetch.name))?;
            self.fetch.release_if(|target| target.stream() == Some(stream));
        }
        Ok(())
    }

    /// Waits, on the host, until the bytes are in the target.
    ///
    /// # Errors
    /// The errors of [`lead_to`](Self::lead_to).
    pub fn wait(&self) -> Result<(), MoverError> {
        if let Some(event) = self.wait_until_queued()? {
            let stalls = &self.fetch.shared.stalls.host_to_device;
            stalls.wait(|| event.synchronize()).map_err(MoverError::driver(&self.fetch.name))?;
        }
        self.fetch.release_if(|_| true);
        Ok(())
    }

    /// Waits until all pieces are read and their copies are queued. Returns the event after which the bytes are in the
    /// target, if it is on a device.
    fn wait_until_queued(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let FetchState { shared, progress, .. } = &*self.fetch;
        if progress.is_over() {
            return progress.wait();
        }
        shared.prioritize(&self.fetch);
        shared.stalls.disk_read.wait(|| progress.wait())
    }
}

impl fmt::Debug for PendingFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.fetch.progress.is_over() { "on its way" } else { "to be read" };
        write!(f, "PendingFetch({:?}, {state})", self.fetch.name)
    }
}

/// One of the mover's few read slots, which a piece occupies while it is read from disk: a pinned staging buffer for a
/// device, or `None` for host memory, where pieces are read into the target itself.
pub(super) type ReadSlot = Option<PinnedBuffer>;

/// A piece to be read from disk, and the part of the target that it is read into.
pub(super) struct PieceRead {
    pub(super) spilled: Spilled,
    pub(super) to: BytesPart,
    pub(super) fetch: Arc<FetchState>,
}

/// The free read slots, and the pieces that wait for one.
pub(super) struct ReadQueue {
    pub(super) slots: Vec<ReadSlot>,
    /// The queue of each urgency.
    pub(super) waiting: [VecDeque<PieceRead>; 2],
    /// Whether a thread is starting reads now.
    is_starting: bool,
}

impl ReadQueue {
    pub(super) fn new(slots: Vec<ReadSlot>) -> Self {
        Self { slots, waiting: Default::default(), is_starting: false }
    }

    /// Takes a free slot and the next piece to read into it, if there are both.
    fn next(&mut self) -> Option<(ReadSlot, PieceRead)> {
        let [now, ahead] = &mut self.waiting;
        let slot = self.slots.pop()?;
        match now.pop_front().or_else(|| ahead.pop_front()) {
            Some(read) => Some((slot, read)),
            None => {
                self.slots.push(slot);
                None
            }
        }
    }
}

impl MoverShared {
    /// Copies pieces that are in host memory into the target. Returns the event after which they are there, if it is on
    /// a device.
    pub(super) fn fetch_from_memory(
        &self,
        name: &str,
        urgency: Urgency,
        ready: Option<&Event>,
        pieces: &[(Arc<HostBytes>, BytesPart)],
    ) -> Result<Option<Arc<Event>>, MoverError> {
        let mut after: Vec<&Event> = ready.into_iter().collect();
        let mut copies = Vec::with_capacity(pieces.len());
        for (from, to) in pieces {
            match &**from {
                HostBytes::Pinned(pinned) => {
                    if !after.last().is_some_and(|last| ptr::eq(*last, &*pinned.copied)) {
                        after.push(&pinned.copied);
                    }
                    copies.push(DeviceCopy { host: from.raw().start, device: to.address(), bytes: to.count });
                }
                // SAFETY: both ends have the same length, do not overlap, and are kept.
                HostBytes::Source(_) => unsafe { from.raw().start.copy_to_nonoverlapping(to.start(), to.count) },
            }
        }
        let Some(side) = self.side.as_ref().filter(|_| !copies.is_empty()) else { return Ok(None) };
        let inward = &side.inward[urgency as usize];
        // SAFETY: the buffers record this use, and the target is kept until its owner has waited for the event.
        let event = unsafe { inward.copy(&after, &copies) }.map_err(MoverError::driver(name))?;
        for (from, _) in pieces {
            if let HostBytes::Pinned(pinned) = &**from {
                pinned.record_use(&event, inward.stream.id());
            }
        }
        Ok(Some(event))
    }

    /// Queues pieces to be read from disk. Each is read when a slot is free.
    pub(super) fn queue_reads(self: &Arc<Self>, reads: impl Iterator<Item = PieceRead>) {
        let mut queue = self.reads.lock();
        reads.for_each(|read| queue.waiting[read.fetch.urgency as usize].push_back(read));
        drop(queue);
        self.start_reads();
    }

    /// Moves the waiting reads of a fetch from the queue of [`Urgency::Ahead`] to that of [`Urgency::Now`].
    fn prioritize(&self, fetch: &Arc<FetchState>) {
        let reads = &mut *self.reads.lock();
        let [now, ahead] = &mut reads.waiting;
        let (hurried, others) = ahead.drain(..).partition(|read| Arc::ptr_eq(&read.fetch, fetch));
        *ahead = others;
        now.extend::<VecDeque<_>>(hurried);
    }

    /// Starts waiting reads until no slot is free. If another thread is doing that, returns at once: a read may be over
    /// at once and call this again.
    pub(super) fn start_reads(self: &Arc<Self>) {
        let mut reads = self.reads.lock();
        if reads.is_starting {
            return;
        }
        reads.is_starting = true;
        while let Some((slot, read)) = reads.next() {
            drop(reads);
            self.start_read(slot, read);
            reads = self.reads.lock();
        }
        reads.is_starting = false;
    }

    /// Starts to read a piece from disk into its slot or target.
    fn start_read(self: &Arc<Self>, mut slot: ReadSlot, read: PieceRead) {
        let Some(disk) = &self.disk else { unreachable!("what is on disk came there by one") };
        self.stalls.disk_read.add_transfer();
        let target = match &mut slot {
            Some(buffer) => Raw { start: buffer.as_mut_ptr(), count: read.to.count },
            None => read.to.raw(),
        };
        match disk.read(&read.spilled, target) {
            Ok(ticket) => {
                let shared = Arc::clone(self);
                ticket.then(move |result| shared.finish_read(slot, read, result.map(drop).map_err(MoverError::disk)));
            }
            Err(error) => self.finish_read(slot, read, Err(MoverError::disk(error))),
        }
    }

    /// Ends the read of a piece: queues its copy from the slot to the device, if there is one, or records the error of
    /// the read. Frees the slot when the copy is done.
    fn finish_read(self: &Arc<Self>, mut slot: ReadSlot, read: PieceRead, result: Result<(), MoverError>) {
        let PieceRead { to, fetch, spilled } = read;
        drop(spilled);
        let (Some(side), Some(buffer), Ok(())) = (&self.side, &mut slot, &result) else {
            drop(to);
            fetch.progress.finish_piece(|| result.map(|()| None));
            return self.free_slot(slot);
        };
        let copy = DeviceCopy { host: buffer.as_mut_ptr(), device: to.address(), bytes: to.count };
        let after: Vec<&Event> = fetch.ready.iter().collect();
        let event = fetch.progress.finish_piece(|| {
            // SAFETY: the slot is used by nothing else until the event has passed, and the target is kept until its
            // owner has waited for it.
            let event = unsafe { side.inward[fetch.urgency as usize].copy(&after, &[copy]) };
            drop(to);
            event.map(Some).map_err(MoverError::driver(&fetch.name))
        });
        let shared = Arc::clone(self);
        match event {
            Some(event) => side.inward_watcher.when_passed(event, move |_| shared.free_slot(slot)),
            None => self.free_slot(slot),
        }
    }

    fn free_slot(self: &Arc<Self>, slot: ReadSlot) {
        self.reads.lock().slots.push(slot);
        self.start_reads();
    }
}
