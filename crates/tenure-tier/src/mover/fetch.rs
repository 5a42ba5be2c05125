//! Fetches: bytes in memory are copied at once, bytes on disk as soon as there is staging memory for them.

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

/// Bytes that are on their way back. If this is dropped, they still arrive, but no thread can wait for them.
///
/// The target is kept until [`lead_to`](Self::lead_to) is called with its own stream, or until [`wait`](Self::wait)
/// returns. From then on it may be freed in the order of that stream, whatever else the mover's stream still has to do:
/// a fetch ahead holds back no memory.
#[must_use = "bytes may be used only behind their arrival"]
pub struct PendingFetch {
    pub(super) fetch: Arc<FetchState>,
}

/// The state of a fetch. It lives as long as its [`PendingFetch`] or any piece that is still to be read.
pub(super) struct FetchState {
    pub(super) shared: Arc<MoverShared>,
    pub(super) name: String,
    pub(super) urgency: Urgency,
    /// On a device: the event after which the target may be written.
    pub(super) ready: Option<Event>,
    /// The target, until its stream or the host has waited for the copies.
    pub(super) target: Mutex<Option<Arc<MovableBytes>>>,
    pub(super) progress: Arc<Progress>,
}

impl FetchState {
    /// Drops the target if `may_free` returns `true` for it: if memory that is freed now is reused only after the
    /// copies.
    fn release(&self, may_free: impl FnOnce(&MovableBytes) -> bool) {
        let target = self.target.lock().take_if(|target| may_free(target));
        // The drop may free it, so it happens when nothing is locked.
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
            // Another allocator frees it, which does not know of the stream.
            side.arrivals.when_passed(event, move |_| drop(target));
        }
    }
}

impl PendingFetch {
    /// Makes later work of a stream wait, on the device, until the bytes are there. The host waits only for bytes from
    /// a disk whose copy to the device is not queued yet. These bytes then go before those that no thread waits for.
    ///
    /// # Errors
    /// The first error on the way, each time it is called. The contents of the target are then unspecified.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        if let Some(event) = self.arrival_event()? {
            event.wait(stream).map_err(MoverError::driver(&self.fetch.name))?;
            self.fetch.release(|target| target.stream() == Some(stream));
        }
        Ok(())
    }

    /// Waits, on the host, until the bytes are there.
    ///
    /// # Errors
    /// The errors of [`lead_to`](Self::lead_to).
    pub fn wait(&self) -> Result<(), MoverError> {
        if let Some(event) = self.arrival_event()? {
            let stalls = &self.fetch.shared.stalls.host_to_device;
            stalls.wait(|| event.synchronize()).map_err(MoverError::driver(&self.fetch.name))?;
        }
        self.fetch.release(|_| true);
        Ok(())
    }

    /// Returns the event after which the bytes are there, if they are on a device. Waits until all copies are queued.
    fn arrival_event(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let FetchState { shared, progress, .. } = &*self.fetch;
        if progress.is_over() {
            return progress.wait();
        }
        shared.hurry(&self.fetch);
        shared.stalls.disk_read.wait(|| progress.wait())
    }
}

impl fmt::Debug for PendingFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.fetch.progress.is_over() { "on its way" } else { "to be read" };
        write!(f, "PendingFetch({:?}, {state})", self.fetch.name)
    }
}

/// The staging buffer for a piece that is read: pinned memory for a device, `None` where the piece is read in place.
pub(super) type ReadLane = Option<PinnedBuffer>;

/// A piece to be read from disk.
pub(super) struct PieceRead {
    pub(super) spilled: Spilled,
    pub(super) to: BytesPart,
    pub(super) fetch: Arc<FetchState>,
}

/// The pieces that wait for lanes.
pub(super) struct ReadQueue {
    pub(super) lanes: Vec<ReadLane>,
    /// The queue of each urgency.
    pub(super) waiting: [VecDeque<PieceRead>; 2],
    /// Whether a thread is already giving lanes to waiting reads.
    is_pumped: bool,
}

impl ReadQueue {
    pub(super) fn new(lanes: Vec<ReadLane>) -> Self {
        Self { lanes, waiting: Default::default(), is_pumped: false }
    }

    fn next(&mut self) -> Option<(ReadLane, PieceRead)> {
        let [now, ahead] = &mut self.waiting;
        let lane = self.lanes.pop()?;
        match now.pop_front().or_else(|| ahead.pop_front()) {
            Some(read) => Some((lane, read)),
            None => {
                self.lanes.push(lane);
                None
            }
        }
    }
}

impl MoverShared {
    /// Copies the pieces that are in memory. On a device they are there after the returned event.
    pub(super) fn fetch_held(
        &self,
        name: &str,
        urgency: Urgency,
        ready: Option<&Event>,
        held: &[(Arc<HostBytes>, BytesPart)],
    ) -> Result<Option<Arc<Event>>, MoverError> {
        let mut after: Vec<&Event> = ready.into_iter().collect();
        let mut copies = Vec::with_capacity(held.len());
        for (from, to) in held {
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
        for (from, _) in held {
            if let HostBytes::Pinned(pinned) = &**from {
                pinned.record_use(&event, inward.stream.id());
            }
        }
        Ok(Some(event))
    }

    /// Queues pieces that are on disk. Each is read as soon as there is a lane.
    pub(super) fn read(self: &Arc<Self>, reads: impl Iterator<Item = PieceRead>) {
        let mut waiting = self.reads.lock();
        reads.for_each(|read| waiting.waiting[read.fetch.urgency as usize].push_back(read));
        drop(waiting);
        self.pump();
    }

    /// Moves the waiting reads of a fetch before those that no thread waits for.
    fn hurry(&self, fetch: &Arc<FetchState>) {
        let reads = &mut *self.reads.lock();
        let [now, ahead] = &mut reads.waiting;
        let (hurried, others) = ahead.drain(..).partition(|read| Arc::ptr_eq(&read.fetch, fetch));
        *ahead = others;
        now.extend::<VecDeque<_>>(hurried);
    }

    /// Gives lanes to the waiting reads. Only one thread does so at a time, since a read may be over at once.
    pub(super) fn pump(self: &Arc<Self>) {
        let mut reads = self.reads.lock();
        if reads.is_pumped {
            return;
        }
        reads.is_pumped = true;
        while let Some((lane, read)) = reads.next() {
            drop(reads);
            self.begin(lane, read);
            reads = self.reads.lock();
        }
        reads.is_pumped = false;
    }

    fn begin(self: &Arc<Self>, mut lane: ReadLane, read: PieceRead) {
        let Some(disk) = &self.disk else { unreachable!("what is on disk came there by one") };
        self.stalls.disk_read.add_transfer();
        let target = match &mut lane {
            Some(buffer) => Raw { start: buffer.as_mut_ptr(), count: read.to.count },
            None => read.to.raw(),
        };
        match disk.read(&read.spilled, target) {
            Ok(ticket) => {
                let shared = Arc::clone(self);
                ticket.then(move |result| shared.arrived(lane, read, result.map(drop).map_err(MoverError::disk)));
            }
            Err(error) => self.arrived(lane, read, Err(MoverError::disk(error))),
        }
    }

    /// Copies a piece that was read from disk to the device, or records why it was not read.
    fn arrived(self: &Arc<Self>, mut lane: ReadLane, read: PieceRead, result: Result<(), MoverError>) {
        let PieceRead { to, fetch, spilled } = read;
        drop(spilled);
        let (Some(side), Some(buffer), Ok(())) = (&self.side, &mut lane, &result) else {
            drop(to);
            fetch.progress.finish_piece(|| result.map(|()| None));
            return self.free(lane);
        };
        let copy = DeviceCopy { host: buffer.as_mut_ptr(), device: to.address(), bytes: to.count };
        let after: Vec<&Event> = fetch.ready.iter().collect();
        let event = fetch.progress.finish_piece(|| {
            // SAFETY: the lane is used by nothing else until the event has passed, and the target is kept until its
            // owner has waited for it.
            let event = unsafe { side.inward[fetch.urgency as usize].copy(&after, &[copy]) };
            drop(to);
            event.map(Some).map_err(MoverError::driver(&fetch.name))
        });
        let shared = Arc::clone(self);
        match event {
            Some(event) => side.arrivals.when_passed(event, move |_| shared.free(lane)),
            None => self.free(lane),
        }
    }

    fn free(self: &Arc<Self>, lane: ReadLane) {
        self.reads.lock().lanes.push(lane);
        self.pump();
    }
}
