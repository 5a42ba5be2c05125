use std::cell::RefCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_core::{Device, StreamId};

use crate::{CallError, Driver, DriverError, Priority, Stream, StreamKind};

/// How many streams a device has of each priority.
pub const STREAMS_PER_POOL: usize = 32;

/// The streams of a device: the null stream, three pools, and streams from outside. c10's `CUDAStream.cpp`.
///
/// One for each opened device; cloning gives another handle to it. When the last handle is dropped, and the last
/// [`Stream`] of it, the streams of the pools are ended: keep one until the allocators that know its streams are gone.
#[derive(Clone)]
pub struct Streams(Arc<Pools>);

impl Streams {
    /// The streams of the device of `driver`. Creates none yet.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let (has_several, pools, idle) = (AtomicBool::new(false), Default::default(), Mutex::default());
        Self(Arc::new(Pools { driver, has_several, pools, idle }))
    }

    /// The device that they are streams of.
    pub fn device(&self) -> Device {
        self.driver().device()
    }

    /// The driver of that device.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.0.driver()
    }

    /// The null stream.
    pub fn null(&self) -> Stream {
        Stream::new(&self.0, Place::NULL)
    }

    /// The next stream of a pool: each of [`STREAMS_PER_POOL`] in turn, created when its turn comes first. From the
    /// second round on nothing is created, and streams are shared. c10's `getStreamFromPool`.
    ///
    /// # Errors
    /// The stream could not be created; the next call tries again.
    #[track_caller]
    pub fn pooled(&self, priority: Priority) -> Result<Stream, DriverError> {
        let id = self.0.pools[priority as usize].lock().next(|| self.driver().create_stream(priority))?;
        Ok(Stream::new(&self.0, Place { id, kind: StreamKind::Pooled(priority) }))
    }

    /// A stream for a capture: nobody else is given it meanwhile, or what they put on it would be captured too.
    ///
    /// # Errors
    /// The stream could not be created.
    #[track_caller]
    pub(crate) fn for_capture(&self) -> Result<CaptureStream, DriverError> {
        let idle = self.0.idle.lock().pop();
        let id = idle.map_or_else(|| self.driver().create_stream(Priority::Default), Ok)?;
        Ok(CaptureStream(Stream::new(&self.0, Place { id, kind: StreamKind::Capture })))
    }

    /// A stream that somebody else made and will end, no sooner than the last handle of it is gone. Its driver must know
    /// it: `adopt_stream` of the CUDA and of the simulated driver tells them of streams that they did not make.
    ///
    /// Not for memory: stream 2, CUDA's `cudaStreamPerThread`. It is another stream in each thread, so memory freed on
    /// it in one thread would be used on it in another without a wait; allocators refuse it.
    pub fn external(&self, id: StreamId) -> Stream {
        Stream::new(&self.0, Place { id, kind: StreamKind::External })
    }

    /// The calling thread's current stream of the device: the null stream, until another is
    /// [made current](Stream::make_current).
    pub fn current(&self) -> Stream {
        Stream::new(&self.0, self.0.current())
    }

    /// The driver's name of the [`current`](Self::current) stream, without making a handle, whose count threads share.
    pub fn current_id(&self) -> StreamId {
        if self.is_single() { StreamId::NULL } else { self.0.current().id }
    }

    /// Whether no thread ever made another stream than the null stream current.
    #[inline]
    pub fn is_single(&self) -> bool {
        !self.0.has_several.load(Ordering::Relaxed)
    }
}

/// A stream of a known device.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) id: StreamId,
    pub(crate) kind: StreamKind,
}

impl Place {
    const NULL: Self = Self { id: StreamId::NULL, kind: StreamKind::Null };
}

/// What all handles of a device's streams share.
pub(crate) struct Pools {
    driver: Arc<dyn Driver>,
    /// Whether another stream than the null stream was ever current.
    has_several: AtomicBool,
    /// By priority.
    pools: [Mutex<Pool>; Priority::ALL.len()],
    /// Streams of captures that are over. They are kept, since memory may still be of them.
    idle: Mutex<Vec<StreamId>>,
}

/// A stream of one capture at a time.
pub(crate) struct CaptureStream(Stream);

impl Deref for CaptureStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl Drop for CaptureStream {
    fn drop(&mut self) {
        self.0.pools().idle.lock().push(self.0.id());
    }
}

thread_local! {
    /// The current streams of this thread, by device; where none is named, it is the null stream. A device is told from
    /// others by the address of its pools, which the weak pointer keeps from being used again.
    static CURRENT: RefCell<Vec<(Weak<Pools>, Place)>> = const { RefCell::new(Vec::new()) };
}

impl Pools {
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    fn current(self: &Arc<Self>) -> Place {
        CURRENT.with_borrow(|current| {
            let found = current.iter().find(|(pools, _)| pools.as_ptr() == Arc::as_ptr(self));
            found.map_or(Place::NULL, |&(_, place)| place)
        })
    }

    /// Makes a stream current, and returns the one before.
    pub(crate) fn exchange_current(self: &Arc<Self>, place: Place) -> Place {
        let before = self.current();
        if place.id != StreamId::NULL {
            // This thread sees it by itself; another does when it is told what to use.
            self.has_several.store(true, Ordering::Relaxed);
        }
        CURRENT.with_borrow_mut(|current| {
            current.retain(|(pools, _)| pools.strong_count() > 0 && pools.as_ptr() != Arc::as_ptr(self));
            current.push((Arc::downgrade(self), place));
        });
        before
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        let pooled = self.pools.iter_mut().flat_map(|pool| pool.get_mut().streams.drain(..));
        for id in pooled.chain(self.idle.get_mut().drain(..)) {
            // A lost context took its streams along.
            let _ = self.driver.destroy_stream(id);
        }
    }
}

/// Streams of one priority.
#[derive(Default)]
struct Pool {
    streams: Vec<StreamId>,
    /// The stream whose turn it is: one that exists, or the first that does not.
    turn: usize,
}

impl Pool {
    fn next(&mut self, create: impl FnOnce() -> Result<StreamId, CallError>) -> Result<StreamId, CallError> {
        if self.turn == self.streams.len() {
            self.streams.push(create()?);
        }
        let id = self.streams[self.turn];
        self.turn = (self.turn + 1) % STREAMS_PER_POOL;
        Ok(id)
    }
}
