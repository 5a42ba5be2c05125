//! Bytes that are somebody else's, while the mover has to do with them.

use std::sync::Arc;

use tenure_core::{Device, Storage};
use tenure_device::Stream;

/// Bytes on a device or on the host, with what keeps them there.
pub struct Bytes {
    start: *mut u8,
    count: usize,
    /// Of a device: what was put on it so far comes before the bytes are moved.
    stream: Option<Stream>,
    _owner: Box<dyn Send>,
}

// SAFETY: an address and what keeps it; who touches the bytes when is promised where they are named.
unsafe impl Send for Bytes {}
// SAFETY: as above; the owner is only dropped.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `count` bytes from `start` on: on the device of a stream, in whose order they are used, or else on the host.
    ///
    /// # Safety
    /// They are there until `owner` is dropped. What is stored nobody writes to any more, but behind
    /// [`Stored::lead_to`](super::Stored::lead_to) or [`wait`](super::Stored::wait). What is fetched into nobody else
    /// touches before it has arrived, but for what was put on `stream` before.
    pub unsafe fn new(start: *mut u8, count: usize, stream: Option<&Stream>, owner: impl Send + 'static) -> Self {
        Self { start, count, stream: stream.cloned(), _owner: Box::new(owner) }
    }

    /// All bytes of a storage.
    ///
    /// # Safety
    /// As of [`new`](Self::new); and the storage is not resized meanwhile.
    pub unsafe fn of(storage: &Storage, stream: Option<&Stream>) -> Self {
        let (start, count) = {
            let guard = storage.lock();
            (guard.as_ptr(), guard.bytes())
        };
        // SAFETY: a storage keeps its bytes; the rest is promised.
        unsafe { Self::new(start, count, stream, storage.clone()) }
    }

    /// How many.
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

    /// In pieces of at most `piece` bytes. They share the owner.
    pub(super) fn pieces(self: Arc<Self>, piece: usize) -> impl ExactSizeIterator<Item = Part> {
        let (count, whole) = (self.count, self);
        (0..count.div_ceil(piece)).map(move |number| {
            let offset = number * piece;
            Part { whole: Arc::clone(&whole), offset, count: piece.min(count - offset) }
        })
    }
}

/// A part of bytes. The last that is dropped lets them go.
#[derive(Clone)]
pub(super) struct Part {
    whole: Arc<Bytes>,
    offset: usize,
    pub(super) count: usize,
}

impl Part {
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

/// Bytes for a disk to read or write, which whoever waits for it keeps.
pub(super) struct Raw {
    pub(super) start: *mut u8,
    pub(super) count: usize,
}

// SAFETY: the bytes are kept, and nobody else touches them so that it would matter, until the disk is done with them.
unsafe impl Send for Raw {}

impl AsRef<[u8]> for Raw {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl AsMut<[u8]> for Raw {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and they are this one's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.count) }
    }
}
