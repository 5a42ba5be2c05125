//! Stores: bytes are copied out to pinned memory, or written to disk from there or from host memory.

use std::sync::{Arc, Weak};

use tenure_device::pinned::{PinnedBuffer, PinnedError};
use tenure_device::{DriverError, Event};

use super::bytes::{BytesPart, MovableBytes};
use super::link::DeviceCopy;
use super::stored::{HostBytes, KeptSource, PiecePlace, Pinned, Progress, StoredPiece};
use super::{DeviceSide, MoverError, MoverShared, pinned};
use crate::codec::Coding;
use crate::disk::Room;
use crate::{Disk, DiskError};

/// The bytes on their way to disk, and the last error.
#[derive(Default)]
pub(super) struct Departures {
    bytes: u64,
    /// The last write that failed.
    failed: Option<Arc<DiskError>>,
}

/// Counts bytes as on their way to disk, as long as it lives.
struct Departure {
    shared: Arc<MoverShared>,
    bytes: u64,
}

impl Departure {
    fn new(shared: &Arc<MoverShared>, leaving: &mut Departures, bytes: usize) -> Self {
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

/// The parts of a [`Stored`](super::Stored) whose store has begun.
pub(super) struct Departing {
    pub(super) pieces: Vec<Arc<StoredPiece>>,
    pub(super) progress: Arc<Progress>,
    pub(super) source: Arc<KeptSource>,
}

impl MoverShared {
    /// Copies bytes from a device to the pinned memory that they stay in.
    pub(super) fn store_pinned(
        &self,
        side: &DeviceSide,
        name: &str,
        source: MovableBytes,
    ) -> Result<Departing, MoverError> {
        let ready = side.leave(name, &source)?;
        let source = Arc::new(source);
        let room = |bytes: usize| match side.pool.allocate(bytes) {
            Err(PinnedError::LimitReached { .. }) => Err(self.no_room(name, bytes, &self.leaving.lock())),
            allocated => allocated.map_err(pinned(name)),
        };
        let mut parts = Arc::clone(&source)
            .pieces(self.piece_bytes)
            .map(|part| Ok((room(part.count)?, part)))
            .collect::<Result<Vec<_>, MoverError>>()?;
        let copies: Vec<DeviceCopy> = parts.iter_mut().map(|(buffer, part)| copy(buffer, part)).collect();
        // SAFETY: nothing else uses the buffers, and both ends are kept until the stream has passed.
        let event = unsafe { side.outward.copy(&[&ready], &copies) }.map_err(MoverError::driver(name))?;
        let stream = side.outward.stream.id();
        let pieces = parts
            .into_iter()
            .map(|(buffer, _)| StoredPiece::new(HostBytes::Pinned(Pinned::new(buffer, Arc::clone(&event), stream))))
            .collect();
        let source = side.keep(source, &event);
        Ok(Departing { pieces, progress: Progress::new(0, Some(event)), source })
    }

    /// Divides the source into pieces and reserves disk room for each. Reserves all of it or nothing.
    fn with_room(
        &self,
        disk: &Disk,
        name: &str,
        source: Arc<MovableBytes>,
        coding: Coding,
    ) -> Result<Vec<(BytesPart, Room)>, MoverError> {
        source
            .pieces(self.piece_bytes)
            .map(|part| disk.reserve(name, part.count, coding).map(|room| (part, room)))
            .collect::<Result<_, _>>()
            .map_err(MoverError::disk)
    }

    /// Copies bytes from a device through pinned memory to a disk, piece by piece.
    pub(super) fn store_through(
        self: &Arc<Self>,
        side: &DeviceSide,
        disk: &Disk,
        name: &str,
        source: MovableBytes,
        coding: Coding,
    ) -> Result<Departing, MoverError> {
        let ready = side.leave(name, &source)?;
        let source = Arc::new(source);
        let parts = self.with_room(disk, name, Arc::clone(&source), coding)?;
        let mut pieces = Vec::with_capacity(parts.len());
        let progress = Progress::new(parts.len(), None);
        let begun = parts.into_iter().try_for_each(|(part, room)| {
            pieces.push(self.store_piece(side, name, &ready, &part, room, &progress)?);
            Ok(())
        });
        // Copies may be under way even if a later piece failed.
        let source = progress.event().map(|event| side.keep(source, &event)).unwrap_or_default();
        begun.map(|()| Departing { pieces, progress, source })
    }

    /// Begins to copy a part of the source, after the event `ready`, to staging memory, from where it is written to
    /// disk.
    fn store_piece(
        self: &Arc<Self>,
        side: &DeviceSide,
        name: &str,
        ready: &Event,
        part: &BytesPart,
        room: Room,
        progress: &Arc<Progress>,
    ) -> Result<Arc<StoredPiece>, MoverError> {
        let mut buffer = self.staging_buffer(side, name, part.count)?;
        let copies = [copy(&mut buffer, part)];
        // SAFETY: nothing else uses the buffer, and both ends are kept until the stream has passed.
        let event = unsafe { side.outward.copy(&[ready], &copies) }.map_err(MoverError::driver(name))?;
        progress.record_copy(&event);
        let departure = Departure::new(self, &mut self.leaving.lock(), part.count);
        let piece =
            StoredPiece::new(HostBytes::Pinned(Pinned::new(buffer, Arc::clone(&event), side.outward.stream.id())));
        let weak = Arc::downgrade(&piece);
        let progress = Arc::clone(progress);
        side.departures.when_passed(event, move |passed| departure.copied(passed, &weak, progress, room));
        Ok(piece)
    }

    /// Writes bytes from host memory to a disk.
    pub(super) fn store_host(
        self: &Arc<Self>,
        disk: &Disk,
        name: &str,
        source: MovableBytes,
        coding: Coding,
    ) -> Result<Departing, MoverError> {
        let parts = self.with_room(disk, name, Arc::new(source), coding)?;
        let mut pieces = Vec::with_capacity(parts.len());
        let progress = Progress::new(parts.len(), None);
        for (part, room) in parts {
            let is_full = |leaving: &mut Departures| leaving.bytes + part.count as u64 > self.memory_bytes as u64;
            let mut leaving = self.leaving.lock();
            if is_full(&mut leaving) {
                self.stalls.disk_write.wait(|| self.left.wait_while(&mut leaving, is_full));
            }
            let departure = Departure::new(self, &mut leaving, part.count);
            drop(leaving);
            let piece = StoredPiece::new(HostBytes::Source(part));
            pieces.push(Arc::clone(&piece));
            departure.write(piece, Arc::clone(&progress), room);
        }
        Ok(Departing { pieces, progress, source: Arc::default() })
    }

    /// Allocates staging memory for a piece. Waits as long as bytes on their way to disk are about to free room.
    fn staging_buffer(&self, side: &DeviceSide, name: &str, bytes: usize) -> Result<PinnedBuffer, MoverError> {
        let mut leaving = self.leaving.lock();
        let mut is_settled = false;
        loop {
            match side.staging.allocate(self.piece_bytes) {
                Ok(mut buffer) => {
                    buffer.truncate(bytes);
                    return Ok(buffer);
                }
                Err(PinnedError::LimitReached { .. }) if leaving.bytes > 0 => {
                    self.stalls.disk_write.wait(|| self.left.wait(&mut leaving));
                }
                // Freed buffers wait for their copies.
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
    /// Records the event after which the source may be copied out.
    fn leave(&self, name: &str, source: &MovableBytes) -> Result<Event, MoverError> {
        let Some(stream) = source.stream() else { unreachable!("bytes on a device have a stream") };
        self.mark(name, stream)
    }

    /// Keeps the source until it is [released](super::Stored::lead_to), or, if the `Stored` is dropped before, until
    /// `event` has passed.
    fn keep(&self, source: Arc<MovableBytes>, event: &Arc<Event>) -> Arc<KeptSource> {
        Arc::new(KeptSource::new(source, Arc::clone(event), Arc::downgrade(&self.departures)))
    }
}

impl DeviceSide {
    /// Waits until all queued copies are done.
    fn settle(&self) -> Result<(), DriverError> {
        std::iter::once(&self.outward).chain(&self.inward).try_for_each(|copies| copies.stream.synchronize())
    }
}

impl Departure {
    /// Writes a piece that the device has copied out, unless it has been dropped meanwhile.
    fn copied(self, passed: Result<(), DriverError>, piece: &Weak<StoredPiece>, progress: Arc<Progress>, room: Room) {
        match (piece.upgrade(), passed) {
            (Some(piece), Ok(())) => self.write(piece, progress, room),
            (Some(piece), Err(error)) => {
                let error = MoverError::driver(room.name())(error);
                piece.set_place(PiecePlace::Lost(error.clone()));
                progress.finish_piece(|| Err(error));
            }
            (None, _) => {
                progress.finish_piece(|| Ok(None));
            }
        }
    }

    /// Begins to write a piece. It stays in memory if that fails.
    fn write(self, piece: Arc<StoredPiece>, progress: Arc<Progress>, room: Room) {
        let Some(held) = piece.in_memory() else { unreachable!("only what is in memory goes to a disk") };
        self.shared.stalls.disk_write.add_transfer();
        let written = move |result: Result<_, DiskError>| {
            let result = match result {
                Ok(spilled) => {
                    piece.set_place(PiecePlace::Disk(spilled));
                    Ok(None)
                }
                Err(error) => {
                    let error = Arc::new(error);
                    self.shared.leaving.lock().failed = Some(Arc::clone(&error));
                    Err(MoverError::Disk(error))
                }
            };
            // A thread that waits for this finds the room free.
            drop((piece, self));
            progress.finish_piece(|| result);
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

/// Returns the copy of a part out to a buffer.
fn copy(buffer: &mut PinnedBuffer, part: &BytesPart) -> DeviceCopy {
    DeviceCopy { host: buffer.as_mut_ptr(), device: part.address(), bytes: part.count }
}
