//! The caller's bytes that the mover copies from or into.

use std::sync::Arc;

use tenure_core::{Device, Storage};
use tenure_device::Stream;

/// The address range of bytes on a device or on the host, with the owner that keeps them alive.
pub struct MovableBytes {
    start: *mut u8,
    count: usize,
    /// The stream that uses the bytes, if they are on a device. They are moved after the work queued on it so far.
    stream: Option<Stream>,
    _owner: Box<dyn Send>,
}

// SAFETY: this is an address and its owner; the safety contract of `new` says who may touch the bytes when.
unsafe impl Send for MovableBytes {}
// SAFETY: as above; the owner is only dropped.
unsafe impl Sync for MovableBytes {}

impl MovableBytes {
    /// Wraps the `count` bytes from `start` on. With a stream they are on its device and used in its order, otherwise
    /// they are in host memory.
    ///
    /// # Safety
    /// The bytes stay valid until `owner` is dropped. Bytes to be stored may be written again only after
    /// [`Stored::lead_to`](super::Stored::lead_to) or [`wait`](super::Stored::wait). Only work queued on `stream`
    /// before the fetch may touch its target until the bytes have arrived.
    pub unsafe fn new(start: *mut u8, count: usize, stream: Option<&Stream>, owner: impl Send + 'static) -> Self {
        Self { start, count, stream: stream.cloned(), _owner: Box::new(owner) }
    }

    /// Wraps all bytes of a storage.
    ///
    /// # Safety
    /// As for [`new`](Self::new). The storage must not be resized meanwhile.
    pub unsafe fn of(storage: &Storage, stream: Option<&Stream>) -> Self {
        let (start, count) = {
            let guard = storage.lock();
            (guard.as_ptr(), guard.bytes())
        };
        // SAFETY: a storage keeps its bytes; the caller promises the rest.
        unsafe { Self::new(start, count, stream, storage.clone()) }
    }

    /// Returns the number of bytes.
    pub fn count(&self) -> u64 {
        self.count as u64
    }

    pub(super) fn device(&self) -> Device {
        self.stream.as_ref().map_or(Device::CPU, Stream::device)
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    pub(super) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    /// Divides the bytes into pieces of at most `piece` bytes, which share the owner.
    pub(super) fn pieces(self: Arc<Self>, piece: usize) -> impl ExactSizeIterator<Item = BytesPart> {
        let count = self.count;
        let whole = self;
        (0..count.div_ceil(piece)).map(move |number| {
            let offset = number * piece;
            BytesPart { whole: Arc::clone(&whole), offset, count: piece.min(count - offset) }
        })
    }
}

/// A part of some [`MovableBytes`]. The owner is dropped with the last part.
#[derive(Clone)]
pub(super) struct BytesPart {
    whole: Arc<MovableBytes>,
    offset: usize,
    pub(super) count: usize,
}

impl BytesPart {
    pub(super) fn start(&self) -> *mut u8 {
        self.whole.start.wrapping_add(self.offset)
    }

    pub(super) fn address(&self) -> u64 {
        self.start().addr() as u64
    }

    pub(super) fn raw(&self) -> Raw {
        Raw { start: self.start(), count: self.count }
    }
}

/// The address range of bytes in host memory that a disk reads or writes, without their owner: the code that waits for
/// the disk keeps them alive.
pub(super) struct Raw {
    pub(super) start: *mut u8,
    pub(super) count: usize,
}

// SAFETY: until the disk is done with the bytes they are kept, and nothing writes bytes that it reads or touches bytes
// that it writes.
unsafe impl Send for Raw {}

impl AsRef<[u8]> for Raw {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl AsMut<[u8]> for Raw {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nothing else uses them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.count) }
    }
}
