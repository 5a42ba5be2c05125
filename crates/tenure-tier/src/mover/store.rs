//! Storing bytes: copies from a device to pinned memory, and writes to disk from pinned or host memory.

use std::sync::{Arc, Weak};

use tenure_device::pinned::{PinnedBuffer, PinnedError};
use tenure_device::{DriverError, Event};

use super::bytes::{BytesPart, MovableBytes};
use super::link::DeviceCopy;
use super::stored::{HostBytes, KeptSource, PiecePlace, Pinned, Progress, StoredPiece};
use super::{DeviceSide, MoverError, MoverShared, pinned_error};
use crate::codec::Coding;
use crate::disk::Room;
use crate::{Disk, DiskError};

/// The writes to disk that are under way, and the last error.
#[derive(Default)]
pub(super) struct DiskWrites {
    /// The bytes that are being written or copied to be written.
    bytes: u64,
    /// The error of the last write that failed.
    last_error: Option<Arc<DiskError>>,
}

/// A write to disk of one piece. Its bytes count as under way until it is dropped.
struct PieceWrite {
    shared: Arc<MoverShared>,
    bytes: u64,
}

impl PieceWrite {
    fn new(shared: &Arc<MoverShared>, disk_writes: &mut DiskWrites, bytes: usize) -> Self {
        disk_writes.bytes += bytes as u64;
        Self { shared: Arc::clone(shared), bytes: bytes as u64 }
    }
}

impl Drop for PieceWrite {
    fn drop(&mut self) {
        self.shared.disk_writes.lock().bytes -= self.bytes;
        self.shared.write_ended.notify_all();
    }
}

/// The fields of a [`Stored`](super::Stored) whose bytes are being stored.
pub(super) struct BegunStore {
    pub(super) pieces: Vec<Arc<StoredPiece>>,
    /// The size of each piece but the last.
    pub(super) piece_bytes: usize,
    pub(super) progress: Arc<Progress>,
    pub(super) source: Arc<KeptSource>,
}

impl MoverShared {
    /// Queues copies of the source from the device to newly allocated pinned memory, which holds the stored bytes.
    pub(super) fn copy_to_pinned(
        &self,
        side: &DeviceSide,
        name: &str,
        source: MovableBytes,
    ) -> Result<BegunStore, MoverError> {
        let ready = side.record_source_ready(name, &source)?;
        let source = Arc::new(source);
        let allocate = |bytes: usize| match side.pool.allocate(bytes) {
            Err(PinnedError::LimitReached { .. }) => Err(self.no_room(name, bytes, &self.disk_writes.lock())),
            allocated => allocated.map_err(pinned_error(name)),
        };
        let piece_bytes = self.pinned_piece_bytes;
        let mut parts = Arc::clone(&source)
            .pieces(piece_bytes)
            .map(|part| Ok((allocate(part.count)?, part)))
            .collect::<Result<Vec<_>, MoverError>>()?;
        let copies: Vec<DeviceCopy> = parts.iter_mut().map(|(buffer, part)| copy_to_buffer(buffer, part)).collect();
        // SAFETY: nothing else uses the buffers, and both ends are kept until the stream has passed.
        let event = unsafe { side.outward.copy(&[&ready], &copies) }.map_err(MoverError::driver(name))?;
        let stream = side.outward.stream.id();
        let pieces = parts
            .into_iter()
            .map(|(buffer, _)| StoredPiece::new(HostBytes::Pinned(Pinned::new(buffer, Arc::clone(&event), stream))))
            .collect();
        let source = side.keep_source(source, &event);
        Ok(BegunStore { pieces, piece_bytes, progress: Progress::new(0, Some(event)), source })
    }

    /// Divides the source into pieces and reserves disk room for each. If one has no room, nothing stays reserved.
    fn reserve_pieces(
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

    /// Begins to write bytes from a device to a disk, piece by piece, through pinned staging memory.
    pub(super) fn write_from_device(
        self: &Arc<Self>,
        side: &DeviceSide,
        disk: &Disk,
        name: &str,
        source: MovableBytes,
        coding: Coding,
    ) -> Result<BegunStore, MoverError> {
        let ready = side.record_source_ready(name, &source)?;
        let source = Arc::new(source);
        let parts = self.reserve_pieces(disk, name, Arc::clone(&source), coding)?;
        let mut pieces = Vec::with_capacity(parts.len());
        let progress = Progress::new(parts.len(), None);
        let begun = parts.into_iter().try_for_each(|(part, room)| {
            pieces.push(self.copy_piece(side, name, &ready, &part, room, &progress)?);
            Ok(())
        });
        // Copies may be under way even if a later piece failed.
        let source = progress.event().map(|event| side.keep_source(source, &event)).unwrap_or_default();
        begun.map(|()| BegunStore { pieces, piece_bytes: self.piece_bytes, progress, source })
    }

    /// Queues a copy of a part of the source to staging memory, after the event `ready`. When the copy is done, the
    /// watcher's thread begins to write the piece to disk.
    fn copy_piece(
        self: &Arc<Self>,
        side: &DeviceSide,
        name: &str,
        ready: &Event,
        part: &BytesPart,
        room: Room,
        progress: &Arc<Progress>,
    ) -> Result<Arc<StoredPiece>, MoverError> {
        let mut buffer = self.staging_buffer(side, name, part.count)?;
        let copies = [copy_to_buffer(&mut buffer, part)];
        // SAFETY: nothing else uses the buffer, and both ends are kept until the stream has passed.
        let event = unsafe { side.outward.copy(&[ready], &copies) }.map_err(MoverError::driver(name))?;
        progress.record_copy(&event);
        let write = PieceWrite::new(self, &mut self.disk_writes.lock(), part.count);
        let piece =
            StoredPiece::new(HostBytes::Pinned(Pinned::new(buffer, Arc::clone(&event), side.outward.stream.id())));
        let weak = Arc::downgrade(&piece);
        let progress = Arc::clone(progress);
        side.outward_watcher.when_passed(event, move |passed| write.begin_copied(passed, &weak, progress, room));
        Ok(piece)
    }

    /// Begins to write bytes from host memory to a disk. Waits while more than the mover's memory would be under way.
    pub(super) fn write_from_host(
        self: &Arc<Self>,
        disk: &Disk,
        name: &str,
        source: MovableBytes,
        coding: Coding,
    ) -> Result<BegunStore, MoverError> {
        let parts = self.reserve_pieces(disk, name, Arc::new(source), coding)?;
        let mut pieces = Vec::with_capacity(parts.len());
        let progress = Progress::new(parts.len(), None);
        for (part, room) in parts {
            let is_full =
                |disk_writes: &mut DiskWrites| disk_writes.bytes + part.count as u64 > self.memory_bytes as u64;
            let mut disk_writes = self.disk_writes.lock();
            if is_full(&mut disk_writes) {
                self.stalls.disk_write.wait(|| self.write_ended.wait_while(&mut disk_writes, is_full));
            }
            let write = PieceWrite::new(self, &mut disk_writes, part.count);
            drop(disk_writes);
            let piece = StoredPiece::new(HostBytes::Source(part));
            pieces.push(Arc::clone(&piece));
            write.begin(piece, Arc::clone(&progress), room);
        }
        Ok(BegunStore { pieces, piece_bytes: self.piece_bytes, progress, source: Arc::default() })
    }

    /// Allocates staging memory for a piece. If there is none, waits for writes to disk that will free some.
    fn staging_buffer(&self, side: &DeviceSide, name: &str, bytes: usize) -> Result<PinnedBuffer, MoverError> {
        let mut disk_writes = self.disk_writes.lock();
        let mut has_synchronized = false;
        loop {
            match side.staging.allocate(self.piece_bytes) {
                Ok(mut buffer) => {
                    buffer.truncate(bytes);
                    return Ok(buffer);
                }
                Err(PinnedError::LimitReached { .. }) if disk_writes.bytes > 0 => {
                    self.stalls.disk_write.wait(|| self.write_ended.wait(&mut disk_writes));
                }
                // Freed buffers can be reused once their copies are done.
                Err(PinnedError::LimitReached { .. }) if !has_synchronized => {
                    side.synchronize().map_err(MoverError::driver(name))?;
                    has_synchronized = true;
                }
                Err(PinnedError::LimitReached { .. }) => return Err(self.no_room(name, bytes, &disk_writes)),
                Err(error) => return Err(pinned_error(name)(error)),
            }
        }
    }

    /// Returns the error for a piece that finds no pinned memory.
    fn no_room(&self, name: &str, bytes: usize, disk_writes: &DiskWrites) -> MoverError {
        let failed = disk_writes.last_error.clone();
        MoverError::NoRoom { name: name.into(), bytes: bytes as u64, limit: self.memory_bytes as u64, failed }
    }
}

impl DeviceSide {
    /// Records an event on the source's stream, after which the source may be copied.
    fn record_source_ready(&self, name: &str, source: &MovableBytes) -> Result<Event, MoverError> {
        let Some(stream) = source.stream() else { unreachable!("bytes on a device have a stream") };
        self.record_event(name, stream)
    }

    /// Returns an owner that keeps the source, and lets work that writes to it wait for `event`, until a thread or the source's stream has waited for `event`, or, if the
    /// `Stored` is dropped before, until `event` has passed.
    fn keep_source(&self, source: Arc<MovableBytes>, event: &Arc<Event>) -> Arc<KeptSource> {
        let Some(stream) = source.stream() else { unreachable!("bytes on a device have a stream") };
        let noted = stream.note_copy(source.address(), Arc::clone(event));
        Arc::new(KeptSource::new(source, noted, Arc::clone(event), Arc::downgrade(&self.outward_watcher)))
    }

    /// Waits until all queued copies in both directions are done.
    fn synchronize(&self) -> Result<(), DriverError> {
        std::iter::once(&self.outward).chain(&self.inward).try_for_each(|copies| copies.stream.synchronize())
    }
}

impl PieceWrite {
    /// Begins to write a piece that the device has copied to staging memory, unless its [`Stored`](super::Stored) has
    /// been dropped meanwhile. If the copy failed, marks the piece as lost.
    fn begin_copied(
        self,
        passed: Result<(), DriverError>,
        piece: &Weak<StoredPiece>,
        progress: Arc<Progress>,
        room: Room,
    ) {
        match (piece.upgrade(), passed) {
            (Some(piece), Ok(())) => self.begin(piece, progress, room),
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

    /// Begins to write a piece to disk. If the write fails, the piece stays in memory.
    fn begin(self, piece: Arc<StoredPiece>, progress: Arc<Progress>, room: Room) {
        let Some(bytes) = piece.in_memory() else { unreachable!("only what is in memory goes to a disk") };
        self.shared.stalls.disk_write.add_transfer();
        let written = move |result: Result<_, DiskError>| {
            let result = match result {
                Ok(spilled) => {
                    piece.set_place(PiecePlace::Disk(spilled));
                    Ok(None)
                }
                Err(error) => {
                    let error = Arc::new(error);
                    self.shared.disk_writes.lock().last_error = Some(Arc::clone(&error));
                    Err(MoverError::Disk(error))
                }
            };
            // A thread that waits for this piece finds its staging memory free.
            drop((piece, self));
            progress.finish_piece(|| result);
        };
        match room.write(bytes.raw()) {
            Ok(ticket) => {
                drop(bytes);
                ticket.then(written);
            }
            Err(error) => written(Err(error)),
        }
    }
}

/// Returns the copy of a part of the source from the device to a buffer.
fn copy_to_buffer(buffer: &mut PinnedBuffer, part: &BytesPart) -> DeviceCopy {
    DeviceCopy { host: buffer.as_mut_ptr(), device: part.address(), bytes: part.count }
}
