//! What is fetched: from memory at once, from disk as soon as there is memory for it to pass through.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{fmt, ptr};

use parking_lot::Mutex;
use tenure_device::pinned::PinnedBuffer;
use tenure_device::{Event, Stream};

use super::bytes::{Bytes, Part, Raw};
use super::link::Copy;
use super::stored::{Held, Progress};
use super::{MoverError, Shared, Urgency};
use crate::Spilled;

/// Bytes that are on their way back. If this is dropped, they arrive, and nobody is told.
///
/// What is fetched into is kept until the arrival leads to the stream that it is of, or was waited for. Then it may be
/// freed in that stream's order, whatever else is on the mover's: what is fetched ahead holds back nothing.
#[must_use = "bytes may be used only behind their arrival"]
pub struct Arrival {
    pub(super) coming: Arc<Coming>,
}

/// What is coming, for as long as somebody waits for it or pieces of it are to be read.
pub(super) struct Coming {
    pub(super) shared: Arc<Shared>,
    pub(super) name: String,
    pub(super) urgency: Urgency,
    /// On a device: from when on the bytes may be written to.
    pub(super) ready: Option<Event>,
    /// What is written to, until its stream or the host comes behind that.
    pub(super) target: Mutex<Option<Arc<Bytes>>>,
    pub(super) progress: Arc<Progress>,
}

impl Coming {
    /// What is written to is behind that for whoever frees it.
    fn release(&self, is_behind: impl FnOnce(&Bytes) -> bool) {
        let target = self.target.lock().take_if(|target| is_behind(target));
        // It may be freed here, when nothing is locked.
        drop(target);
    }
}

impl Drop for Coming {
    /// All copies are on the stream, and nobody came behind them.
    fn drop(&mut self) {
        let (Some(target), Some(side)) = (self.target.get_mut().take(), &self.shared.side) else { return };
        let Some(event) = self.progress.event() else { return };
        let stream = side.inward[self.urgency as usize].stream.id();
        if !matches!(side.memory.record_use(target.address(), stream), Ok(true)) {
            // Somebody else frees it, who does not know of the stream.
            side.arrivals.when_passed(event, move |_| drop(target));
        }
    }
}

impl Arrival {
    /// Makes later work of a stream wait, on the device, until the bytes are there. The host waits only for bytes from a
    /// disk whose copy to the device could not be asked for yet: they then go before those that nobody waits for.
    ///
    /// # Errors
    /// What went wrong on the way, each time; the bytes are then anything.
    pub fn lead_to(&self, stream: &Stream) -> Result<(), MoverError> {
        if let Some(event) = self.behind()? {
            event.wait(stream).map_err(MoverError::driver(&self.coming.name))?;
            self.coming.release(|target| target.stream() == Some(stream));
        }
        Ok(())
    }

    /// Waits, on the host, until the bytes are there.
    ///
    /// # Errors
    /// As of [`lead_to`](Self::lead_to).
    pub fn wait(&self) -> Result<(), MoverError> {
        if let Some(event) = self.behind()? {
            let stalls = &self.coming.shared.stalls.host_to_device;
            stalls.wait(|| event.synchronize()).map_err(MoverError::driver(&self.coming.name))?;
        }
        self.coming.release(|_| true);
        Ok(())
    }

    /// The event behind which they are there, if that is on a device.
    fn behind(&self) -> Result<Option<Arc<Event>>, MoverError> {
        let Coming { shared, progress, .. } = &*self.coming;
        if progress.is_over() {
            return progress.wait();
        }
        shared.hurry(&self.coming);
        shared.stalls.disk_read.wait(|| progress.wait())
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.coming.progress.is_over() { "on its way" } else { "to be read" };
        write!(f, "Arrival({:?}, {state})", self.coming.name)
    }
}

/// Room for a piece that is read: pinned memory for a device, nothing where it is read in place.
pub(super) type Lane = Option<PinnedBuffer>;

/// A piece to be read from disk.
pub(super) struct Read {
    pub(super) spilled: Spilled,
    pub(super) to: Part,
    pub(super) coming: Arc<Coming>,
}

/// Pieces that wait for lanes.
pub(super) struct Reads {
    pub(super) lanes: Vec<Lane>,
    /// By urgency.
    pub(super) waiting: [VecDeque<Read>; 2],
    /// Somebody is about to give lanes to what waits.
    is_pumped: bool,
}

impl Reads {
    pub(super) fn new(lanes: Vec<Lane>) -> Self {
        Self { lanes, waiting: Default::default(), is_pumped: false }
    }

    fn next(&mut self) -> Option<(Lane, Read)> {
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

impl Shared {
    /// Pieces that are in memory. On a device they are there behind the event.
    pub(super) fn fetch_held(
        &self,
        name: &str,
        urgency: Urgency,
        ready: Option<&Event>,
        held: &[(Arc<Held>, Part)],
    ) -> Result<Option<Arc<Event>>, MoverError> {
        let mut after: Vec<&Event> = ready.into_iter().collect();
        let mut copies = Vec::with_capacity(held.len());
        for (from, to) in held {
            match &**from {
                Held::Pinned(pinned) => {
                    if !after.last().is_some_and(|last| ptr::eq(*last, &*pinned.copied)) {
                        after.push(&pinned.copied);
                    }
                    copies.push(Copy { host: from.raw().start, device: to.address(), bytes: to.count });
                }
                // SAFETY: as many bytes of each, which are apart and kept.
                Held::Host(_) => unsafe { from.raw().start.copy_to_nonoverlapping(to.start(), to.count) },
            }
        }
        let Some(side) = self.side.as_ref().filter(|_| !copies.is_empty()) else { return Ok(None) };
        let inward = &side.inward[urgency as usize];
        // SAFETY: the buffers are said to be used, and what is written to is kept until somebody comes behind that.
        let event = unsafe { inward.copy(&after, &copies) }.map_err(MoverError::driver(name))?;
        for (from, _) in held {
            if let Held::Pinned(pinned) = &**from {
                pinned.used(&event, inward.stream.id());
            }
        }
        Ok(Some(event))
    }

    /// Pieces that are on disk, as soon as there are lanes.
    pub(super) fn read(self: &Arc<Self>, reads: impl Iterator<Item = Read>) {
        let mut waiting = self.reads.lock();
        reads.for_each(|read| waiting.waiting[read.coming.urgency as usize].push_back(read));
        drop(waiting);
        self.pump();
    }

    /// Somebody waits: what is to be read for it goes before what nobody waits for.
    fn hurry(&self, coming: &Arc<Coming>) {
        let reads = &mut *self.reads.lock();
        let [now, ahead] = &mut reads.waiting;
        let (hurried, others) = ahead.drain(..).partition(|read| Arc::ptr_eq(&read.coming, coming));
        *ahead = others;
        now.extend::<VecDeque<_>>(hurried);
    }

    /// Gives lanes to what waits for them. One thread does at a time, since a read may be over at once.
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

    fn begin(self: &Arc<Self>, mut lane: Lane, read: Read) {
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

    /// A piece came from disk, or did not.
    fn arrived(self: &Arc<Self>, mut lane: Lane, read: Read, result: Result<(), MoverError>) {
        let Read { to, coming, spilled } = read;
        drop(spilled);
        let (Some(side), Some(buffer), Ok(())) = (&self.side, &mut lane, &result) else {
            drop(to);
            coming.progress.step(|| result.map(|()| None));
            return self.free(lane);
        };
        let copy = Copy { host: buffer.as_mut_ptr(), device: to.address(), bytes: to.count };
        let after: Vec<&Event> = coming.ready.iter().collect();
        let event = coming.progress.step(|| {
            // SAFETY: the lane is nobody else's until the event is passed, and what is written to is kept until somebody
            // comes behind that.
            let event = unsafe { side.inward[coming.urgency as usize].copy(&after, &[copy]) };
            drop(to);
            event.map(Some).map_err(MoverError::driver(&coming.name))
        });
        let shared = Arc::clone(self);
        match event {
            Some(event) => side.arrivals.when_passed(event, move |_| shared.free(lane)),
            None => self.free(lane),
        }
    }

    fn free(self: &Arc<Self>, lane: Lane) {
        self.reads.lock().lanes.push(lane);
        self.pump();
    }
}
