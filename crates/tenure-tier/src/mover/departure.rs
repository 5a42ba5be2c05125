//! What is stored: copied out to pinned memory, and from there or from the host's memory written to disk.

use std::sync::{Arc, Weak};

use tenure_device::pinned::{PinnedBuffer, PinnedError};
use tenure_device::{DriverError, Event};

use super::bytes::{Bytes, Part};
use super::link::Copy;
use super::stored::{Held, Piece, Pinned, Place, Progress, Source};
use super::{DeviceSide, MoverError, Shared, pinned};
use crate::codec::Coding;
use crate::disk::Room;
use crate::{Disk, DiskError};

/// What is on its way to disk.
#[derive(Default)]
pub(super) struct Departures {
    bytes: u64,
    /// The last that failed.
    failed: Option<Arc<DiskError>>,
}

/// Bytes on their way to disk, as long as this lives.
struct Departure {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Departure {
    fn new(shared: &Arc<Shared>, leaving: &mut Departures, bytes: usize) -> Self {
        leaving.bytes += bytes as u64;
        Self { shared: Arc::clone(shared), bytes: bytes as u64 }
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.shared.leaving.lock().bytes -= self.bytes;
        self.shared.left.notify_all();
    }
}

/// What becomes of something stored.
pub(super) struct Departing {
    pub(super) pieces: Vec<Arc<Piece>>,
    pub(super) progress: Arc<Progress>,
    pub(super) source: Arc<Source>,
}

impl Shared {
    /// From a device to memory where it stays.
    pub(super) fn store_pinned(&self, side: &DeviceSide, name: &str, source: Bytes) -> Result<Departing, MoverError> {
        let (ready, source) = (side.leave(name, &source)?, Arc::new(source));
        let room = |bytes: usize| match side.pool.allocate(bytes) {
            Err(PinnedError::LimitReached { .. }) => Err(self.no_room(name, bytes, &self.leaving.lock())),
            allocated => allocated.map_err(pinned(name)),
        };
        let with_room = |part: Part| Ok((room(part.count)?, part));
        let mut parts =
            Arc::clone(&source).pieces(self.piece_bytes).map(with_room).collect::<Result<Vec<_>, MoverError>>()?;
        let copies: Vec<Copy> = parts.iter_mut().map(|(buffer, part)| copy(buffer, part)).collect();
        // SAFETY: the buffers are nobody else's, and both ends are kept until the stream has passed.
        let event = unsafe { side.outward.copy(&[&ready], &copies) }.map_err(MoverError::driver(name))?;
        let stream = side.outward.stream.id();
        let pieces = parts
            .into_iter()
            .map(|(buffer, _)| Piece::new(Held::Pinned(Pinned::new(buffer, Arc::clone(&event), stream))))
            .collect();
        let source = side.keep(source, &event);
        Ok(Departing { pieces, progress: Progress::new(0, Some(event)), source })
    }

    /// The pieces of what goes to a disk, each with room there: for all of them, or none.
    fn with_room(
        &self,
        disk: &Disk,
        name: &str,
        source: Arc<Bytes>,
        coding: Coding,
    ) -> Result<Vec<(Part, Room)>, MoverError> {
        let with_room = |part: Part| disk.reserve(name, part.count, coding).map(|room| (part, room));
        source.pieces(self.piece_bytes).map(with_room).collect::<Result<_, _>>().map_err(MoverError::disk)
    }

    /// From a device through memory to a disk, piece by piece.
    pub(super) fn store_through(
        self: &Arc<Self>,
        side: &DeviceSide,
        disk: &Disk,
        name: &str,
        source: Bytes,
        coding: Coding,
    ) -> Result<Departing, MoverError> {
        let (ready, source) = (side.leave(name, &source)?, Arc::new(source));
        let parts = self.with_room(disk, name, Arc::clone(&source), coding)?;
        let (mut pieces, progress) = (Vec::with_capacity(parts.len()), Progress::new(parts.len(), None));
        let mut pass = |(part, room): (Part, Room)| {
            let mut buffer = self.passage(side, name, part.count)?;
            let copies = [copy(&mut buffer, &part)];
            // SAFETY: the buffer is nobody else's, and both ends are kept until the stream has passed.
            let event = unsafe { side.outward.copy(&[&ready], &copies) }.map_err(MoverError::driver(name))?;
            progress.mark(&event);
            let departure = Departure::new(self, &mut self.leaving.lock(), part.count);
            let piece = Piece::new(Held::Pinned(Pinned::new(buffer, Arc::clone(&event), side.outward.stream.id())));
            let (weak, progress) = (Arc::downgrade(&piece), Arc::clone(&progress));
            pieces.push(piece);
            side.departures.when_passed(event, move |passed| departure.copied(passed, &weak, progress, room));
            Ok(())
        };
        let passed = parts.into_iter().try_for_each(&mut pass);
        // Also if not all of them pass.
        let source = progress.event().map(|event| side.keep(source, &event)).unwrap_or_default();
        passed.map(|()| Departing { pieces, progress, source })
    }

    /// From the host's memory to a disk.
    pub(super) fn store_host(
        self: &Arc<Self>,
        disk: &Disk,
        name: &str,
        source: Bytes,
        coding: Coding,
    ) -> Result<Departing, MoverError> {
        let parts = self.with_room(disk, name, Arc::new(source), coding)?;
        let (mut pieces, progress) = (Vec::with_capacity(parts.len()), Progress::new(parts.len(), None));
        for (part, room) in parts {
            let is_full = |leaving: &mut Departures| leaving.bytes + part.count as u64 > self.memory_bytes as u64;
            let mut leaving = self.leaving.lock();
            if is_full(&mut leaving) {
                self.stalls.disk_write.wait(|| self.left.wait_while(&mut leaving, is_full));
            }
            let departure = Departure::new(self, &mut leaving, part.count);
            drop(leaving);
            let piece = Piece::new(Held::Host(part));
            pieces.push(Arc::clone(&piece));
            departure.write(piece, Arc::clone(&progress), room);
        }
        Ok(Departing { pieces, progress, source: Arc::default() })
    }

    /// Pinned memory for a piece to pass through: waits as long as what is on its way to disk makes room.
    fn passage(&self, side: &DeviceSide, name: &str, bytes: usize) -> Result<PinnedBuffer, MoverError> {
        let (mut leaving, mut is_settled) = (self.leaving.lock(), false);
        loop {
            match side.passage.allocate(self.piece_bytes) {
                Ok(mut buffer) => {
                    buffer.truncate(bytes);
                    return Ok(buffer);
                }
                Err(PinnedError::LimitReached { .. }) if leaving.bytes > 0 => {
                    self.stalls.disk_write.wait(|| self.left.wait(&mut leaving));
                }
                // Buffers that were freed wait for their copies.
                Err(PinnedError::LimitReached { .. }) if !is_settled => {
                    side.settle().map_err(MoverError::driver(name))?;
                    is_settled = true;
                }
                Err(PinnedError::LimitReached { .. }) => return Err(self.no_room(name, bytes, &leaving)),
                Err(error) => return Err(pinned(name)(error)),
            }
        }
    }

    fn no_room(&self, name: &str, bytes: usize, leaving: &Departures) -> MoverError {
        let failed = leaving.failed.clone();
        MoverError::NoRoom { name: name.into(), bytes: bytes as u64, limit: self.memory_bytes as u64, failed }
    }
}

impl DeviceSide {
    /// What comes before the bytes may leave.
    fn leave(&self, name: &str, source: &Bytes) -> Result<Event, MoverError> {
        let Some(stream) = source.stream() else { unreachable!("bytes on a device have a stream") };
        self.mark(name, stream)
    }

    /// Keeps what leaves until it is [released](Stored::lead_to); or, where who stored it drops it, until an event has passed.
    fn keep(&self, source: Arc<Bytes>, event: &Arc<Event>) -> Arc<Source> {
        Arc::new(Source::new(source, Arc::clone(event), Arc::downgrade(&self.departures)))
    }
}

impl DeviceSide {
    /// Waits until all copies that were asked for are done.
    fn settle(&self) -> Result<(), DriverError> {
        std::iter::once(&self.outward).chain(&self.inward).try_for_each(|copies| copies.stream.synchronize())
    }
}

impl Departure {
    /// The device has copied a piece out. It is written, unless nobody wants it any more.
    fn copied(self, passed: Result<(), DriverError>, piece: &Weak<Piece>, progress: Arc<Progress>, room: Room) {
        match (piece.upgrade(), passed) {
            (Some(piece), Ok(())) => self.write(piece, progress, room),
            (Some(piece), Err(error)) => {
                let error = MoverError::driver(room.name())(error);
                piece.set(Place::Lost(error.clone()));
                progress.step(|| Err(error));
            }
            (None, _) => drop(progress.step(|| Ok(None))),
        }
    }

    /// Begins to write a piece, which stays in memory if that fails.
    fn write(self, piece: Arc<Piece>, progress: Arc<Progress>, room: Room) {
        let Some(held) = piece.held() else { unreachable!("only what is in memory goes to a disk") };
        self.shared.stalls.disk_write.add_transfer();
        let written = move |result: Result<_, DiskError>| {
            let result = match result {
                Ok(spilled) => {
                    piece.set(Place::Disk(spilled));
                    Ok(None)
                }
                Err(error) => {
                    let error = Arc::new(error);
                    self.shared.leaving.lock().failed = Some(Arc::clone(&error));
                    Err(MoverError::Disk(error))
                }
            };
            // Whoever waits finds its room.
            drop((piece, self));
            progress.step(|| result);
        };
        match room.write(held.raw()) {
            Ok(ticket) => {
                drop(held);
                ticket.then(written);
            }
            Err(error) => written(Err(error)),
        }
    }
}

/// The copy of a part out to a buffer.
fn copy(buffer: &mut PinnedBuffer, part: &Part) -> Copy {
    Copy { host: buffer.as_mut_ptr(), device: part.address(), bytes: part.count }
}
