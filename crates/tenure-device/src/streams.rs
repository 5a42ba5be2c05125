//! The streams of a device: pools of streams, and each thread's current stream.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::{Device, StreamId};

use crate::stream_pools::{Pools, StreamInfo, StreamKind};
use crate::{Driver, DriverError, Priority, Stream};

/// The streams of a device: the null stream, three pools, and streams from outside. c10's `CUDAStream.cpp`.
///
/// Each opened device has one; a clone is another handle to it. The pools' streams are destroyed when the last handle
/// and the last [`Stream`] are dropped: keep one of them until the allocators that know its streams are gone.
#[derive(Clone)]
pub struct Streams(Arc<Pools>);

impl Streams {
    /// Returns the streams of the device of `driver`. Creates none yet.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self(Arc::new(Pools::new(driver)))
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

    /// Returns the next stream of a pool. The [`STREAMS_PER_POOL`](crate::STREAMS_PER_POOL) streams take turns, and each is created at its first
    /// turn. From the second round on no stream is created, and callers share them. c10's `getStreamFromPool`.
    ///
    /// # Errors
    /// The stream could not be created; the next call tries again.
    #[track_caller]
    pub fn pooled(&self, priority: Priority) -> Result<Stream, DriverError> {
        let id = self.0.next_pooled(priority)?;
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
