//! The state that the handles of a device's streams share: the pools, each thread's current stream, and noted copies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_alloc::Address;
use tenure_core::StreamId;

use crate::{CallError, Driver, Event, Priority};

/// The number of streams of each priority that a device's pool has.
pub const STREAMS_PER_POOL: usize = 32;

/// The origin of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// The device's null stream.
    Null,
    /// A pool of [`Streams`](crate::Streams), whose streams several callers share.
    Pooled(Priority),
    /// A [`Graph`](crate::graph::Graph)'s capture, which has the stream to itself while it lasts.
    Capture,
    /// Code outside Tenure, which created the stream and will destroy it.
    External,
}

/// The id and the origin of a stream, without its device.
#[derive(Clone, Copy)]
pub(crate) struct StreamInfo {
    pub(crate) id: StreamId,
    pub(crate) kind: StreamKind,
}

impl StreamInfo {
    pub(crate) const NULL: Self = Self { id: StreamId::NULL, kind: StreamKind::Null };
}

/// The state that all handles of a device's streams share.
pub(crate) struct Pools {
    driver: Arc<dyn Driver>,
    /// Whether a stream other than the null stream was ever current.
    pub(crate) has_several: AtomicBool,
    /// The pools, by priority.
    pools: [Mutex<PriorityPool>; Priority::ALL.len()],
    /// Streams of finished captures. They are kept, since memory may still belong to them.
    pub(crate) idle_capture_streams: Mutex<Vec<StreamId>>,
    copies: Copies,
}

/// The copies out of one device's memory that are noted.
#[derive(Default)]
pub(crate) struct Copies {
    /// How many are noted: a write looks here first.
    pub(crate) count: AtomicUsize,
    /// The events after the copies, by the address of the bytes that they read.
    pub(crate) events: Mutex<HashMap<Address, Vec<Arc<Event>>>>,
}

thread_local! {
    /// The current streams of this thread, by device; a device without an entry has the null stream. The address of its
    /// pools identifies a device, and the weak pointer keeps that address from being used again.
    static CURRENT: RefCell<Vec<(Weak<Pools>, StreamInfo)>> = const { RefCell::new(Vec::new()) };
}

impl Pools {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            has_several: AtomicBool::new(false),
            pools: Default::default(),
            idle_capture_streams: Mutex::default(),
            copies: Copies::default(),
        }
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Returns the stream of a pool whose turn it is.
    pub(crate) fn next_pooled(&self, priority: Priority) -> Result<StreamId, CallError> {
        self.pools[priority as usize].lock().next(|| self.driver.create_stream(priority))
    }

    pub(crate) fn current(self: &Arc<Self>) -> StreamInfo {
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
