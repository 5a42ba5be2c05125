//! The streams of a device: pools of streams, and each thread's current stream.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_core::{Device, StreamId};

use crate::copies::Copies;
use crate::{CallError, Driver, DriverError, Priority, Stream, StreamKind};

/// The number of streams of each priority that a device's pool has.
pub const STREAMS_PER_POOL: usize = 32;

/// The streams of a device: the null stream, three pools, and streams from outside. c10's `CUDAStream.cpp`.
///
/// Each opened device has one; a clone is another handle to it. The pools' streams are destroyed when the last handle
/// and the last [`Stream`] are dropped: keep one of them until the allocators that know its streams are gone.
#[derive(Clone)]
pub struct Streams(Arc<Pools>);

impl Streams {
    /// Returns the streams of the device of `driver`. Creates none yet.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let has_several = AtomicBool::new(false);
        let pools = Default::default();
        let idle_capture_streams = Mutex::default();
        let copies = Copies::default();
        Self(Arc::new(Pools { driver, has_several, pools, idle_capture_streams, copies }))
    }

    /// Returns the device of the streams.
    pub fn device(&self) -> Device {
        self.driver().device()
    }

    /// Returns the driver of that device.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.0.driver()
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.0
    }

    /// Returns the null stream.
    pub fn null(&self) -> Stream {
        Stream::new(&self.0, StreamInfo::NULL)
    }

    /// Returns the next stream of a pool. The [`STREAMS_PER_POOL`] streams take turns, and each is created at its first
    /// turn. From the second round on no stream is created, and callers share them. c10's `getStreamFromPool`.
    ///
    /// # Errors
    /// The stream could not be created; the next call tries again.
    #[track_caller]
    pub fn pooled(&self, priority: Priority) -> Result<Stream, DriverError> {
        let id = self.0.pools[priority as usize].lock().next(|| self.driver().create_stream(priority))?;
        Ok(Stream::new(&self.0, StreamInfo { id, kind: StreamKind::Pooled(priority) }))
    }

    /// Returns a stream for a capture. No other code gets it meanwhile: its work would be captured too.
    ///
    /// # Errors
    /// The stream could not be created.
    #[track_caller]
    pub(crate) fn for_capture(&self) -> Result<CaptureStream, DriverError> {
        let idle_capture_streams = self.0.idle_capture_streams.lock().pop();
        let id = idle_capture_streams.map_or_else(|| self.driver().create_stream(Priority::Default), Ok)?;
        Ok(CaptureStream(Stream::new(&self.0, StreamInfo { id, kind: StreamKind::Capture })))
    }

    /// Returns a handle to a stream that other code created. That code must destroy it only after the last handle is
    /// dropped. The driver must know the stream: `adopt_stream` of the CUDA and of the simulated driver tells them of
    /// streams that they did not create.
    ///
    /// Do not use stream 2, CUDA's `cudaStreamPerThread`, for memory. It is another stream in each thread, so memory
    /// that one thread freed on it would be used by another thread without a wait; allocators refuse it.
    pub fn external(&self, id: StreamId) -> Stream {
        Stream::new(&self.0, StreamInfo { id, kind: StreamKind::External })
    }

    /// Returns the calling thread's current stream of the device: the null stream, until another is [made
    /// current](Stream::make_current).
    pub fn current(&self) -> Stream {
        Stream::new(&self.0, self.0.current())
    }

    /// Returns the driver's id of the [`current`](Self::current) stream. Creates no handle, whose reference count
    /// threads share.
    pub fn current_id(&self) -> StreamId {
        if self.is_single() { StreamId::NULL } else { self.0.current().id }
    }

    /// Returns whether the null stream is the only one that any thread ever made current.
    #[inline]
    pub fn is_single(&self) -> bool {
        !self.0.has_several.load(Ordering::Relaxed)
    }
}

/// The id and the origin of a stream, without its device.
#[derive(Clone, Copy)]
pub(crate) struct StreamInfo {
    pub(crate) id: StreamId,
    pub(crate) kind: StreamKind,
}

impl StreamInfo {
    const NULL: Self = Self { id: StreamId::NULL, kind: StreamKind::Null };
}

/// The state that all handles of a device's streams share.
pub(crate) struct Pools {
    driver: Arc<dyn Driver>,
    /// Whether a stream other than the null stream was ever current.
    has_several: AtomicBool,
    /// The pools, by priority.
    pools: [Mutex<PriorityPool>; Priority::ALL.len()],
    /// Streams of finished captures. They are kept, since memory may still belong to them.
    idle_capture_streams: Mutex<Vec<StreamId>>,
    copies: Copies,
}

/// A stream that one capture at a time uses.
pub(crate) struct CaptureStream(Stream);

impl Deref for CaptureStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl Drop for CaptureStream {
    fn drop(&mut self) {
        self.0.pools().idle_capture_streams.lock().push(self.0.id());
    }
}

thread_local! {
    /// The current streams of this thread, by device; a device without an entry has the null stream. The address of its
    /// pools identifies a device, and the weak pointer keeps that address from being used again.
    static CURRENT: RefCell<Vec<(Weak<Pools>, StreamInfo)>> = const { RefCell::new(Vec::new()) };
}

impl Pools {
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    fn current(self: &Arc<Self>) -> StreamInfo {
        CURRENT.with_borrow(|current| {
            let found = current.iter().find(|(pools, _)| pools.as_ptr() == Arc::as_ptr(self));
            found.map_or(StreamInfo::NULL, |&(_, info)| info)
        })
    }

    /// Makes a stream current, and returns the previous one.
    pub(crate) fn exchange_current(self: &Arc<Self>, info: StreamInfo) -> StreamInfo {
        let before = self.current();
        if info.id != StreamId::NULL {
            // This thread sees its own store; another thread sees it once it is told which stream to use.
            self.has_several.store(true, Ordering::Relaxed);
        }
        CURRENT.with_borrow_mut(|current| {
            current.retain(|(pools, _)| pools.strong_count() > 0 && pools.as_ptr() != Arc::as_ptr(self));
            current.push((Arc::downgrade(self), info));
        });
        before
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        let pooled = self.pools.iter_mut().flat_map(|pool| pool.get_mut().streams.drain(..));
        for id in pooled.chain(self.idle_capture_streams.get_mut().drain(..)) {
            // If the context is lost, its streams are gone too.
            let _ = self.driver.destroy_stream(id);
        }
    }
}

/// Streams of one priority.
#[derive(Default)]
struct PriorityPool {
    streams: Vec<StreamId>,
    /// The index of the next stream: an existing one, or the next to create.
    next_index: usize,
}

impl PriorityPool {
    /// Returns the stream whose turn it is, which `create` creates in the first round.
    fn next(&mut self, create: impl FnOnce() -> Result<StreamId, CallError>) -> Result<StreamId, CallError> {
        if self.next_index == self.streams.len() {
            self.streams.push(create()?);
        }
        let id = self.streams[self.next_index];
        self.next_index = (self.next_index + 1) % STREAMS_PER_POOL;
        Ok(id)
    }
}
