//! Streams that copy between a device and the host, threads that wait for their events, and the traffic statistics of
//! each link between tiers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use parking_lot::Mutex;
use tenure_device::{DriverError, Event, EventKind, Stream};

use crate::disk::join_unless_current;

/// One batch of copies in so many is timed, since events that take the time cost the host several microseconds.
const TIMED_PART: u64 = 8;

/// The most timed batches whose times are not collected yet. With one more, the times of those that are done are collected.
const MAX_UNCOLLECTED: usize = 4;

/// The traffic over a link so far. A link moves bytes in one direction between two tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkStatistics {
    /// Bytes moved; for a disk, in whole blocks.
    pub bytes: u64,
    /// The number of transfers.
    pub transfers: u64,
    /// The time in which at least one transfer was under way. For links to or from a device, the sum of the times of
    /// their copies.
    pub busy: Duration,
    /// The time that host threads waited for the link, summed over threads.
    pub stalled: Duration,
}

impl LinkStatistics {
    /// Returns the bandwidth while busy in bytes per second, or `None` before the first timed transfer.
    pub fn bandwidth(&self) -> Option<f64> {
        (!self.busy.is_zero() && self.bytes > 0).then(|| self.bytes as f64 / self.busy.as_secs_f64())
    }

    /// Adds the traffic of another link.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            transfers: self.transfers + other.transfers,
            busy: self.busy + other.busy,
            stalled: self.stalled + other.stalled,
        }
    }
}

/// The traffic over each link of a mover.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// From the device to pinned memory.
    pub device_to_host: LinkStatistics,
    /// From pinned memory to the device.
    pub host_to_device: LinkStatistics,
    /// To the disk. Other movers that share the disk count too.
    pub disk_write: LinkStatistics,
    /// From the disk. Other movers that share the disk count too.
    pub disk_read: LinkStatistics,
    /// Bytes read and written while transfers in both directions were under way. A disk may be no faster then than in
    /// one direction.
    pub disk_together: LinkStatistics,
}

/// Counts a link's transfers and the time that threads waited for it. Bytes and busy time are counted elsewhere.
#[derive(Default)]
pub(super) struct StallCounter {
    stalled_ns: AtomicU64,
    transfers: AtomicU64,
    #[cfg(test)]
    waiting: AtomicU64,
}

impl StallCounter {
    pub(super) fn add_transfer(&self) {
        self.transfers.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `wait`, and adds the time that it took to the stalled time.
    pub(super) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        #[cfg(test)]
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = wait();
        #[cfg(test)]
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.stalled_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        waited
    }

    /// Returns whether a thread waits now.
    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns these counts together with the link's bytes and busy time.
    pub(super) fn statistics(&self, bytes: u64, busy: Duration) -> LinkStatistics {
        let stalled = Duration::from_nanos(self.stalled_ns.load(Ordering::Relaxed));
        LinkStatistics { bytes, transfers: self.transfers.load(Ordering::Relaxed), busy, stalled }
    }
}

/// The direction of copies: out of the device or into it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyDirection {
    Out,
    In,
}

/// The addresses and the size in bytes of a copy between the host and a device.
pub(super) struct DeviceCopy {
    pub(super) host: *mut u8,
    pub(super) device: u64,
    pub(super) bytes: usize,
}

/// A stream for copies in one direction.
pub(super) struct CopyStream {
    pub(super) stream: Stream,
    direction: CopyDirection,
    traffic: Mutex<CopyTraffic>,
}

/// The traffic of a [`CopyStream`] so far, and the events that time it.
#[derive(Default)]
struct CopyTraffic {
    bytes: u64,
    transfers: u64,
    batches: u64,
    /// The time in µs that the copies of `timed_bytes` took.
    busy_us: f64,
    /// The bytes of the batches whose time is in `busy_us`.
    timed_bytes: u64,
    /// The begin event, the end event and the bytes of each timed batch that is under way or not yet collected.
    under_way: VecDeque<(Event, Arc<Event>, u64)>,
    /// Events to be reused.
    spare: Vec<Event>,
}

impl CopyStream {
    pub(super) fn new(stream: Stream, direction: CopyDirection) -> Self {
        Self { stream, direction, traffic: Mutex::default() }
    }

    /// Queues copies on the stream after the events `after`, and returns an event that passes when they are done. If
    /// this fails, no copy is under way when it returns.
    ///
    /// # Safety
    /// The addresses must be valid as for the asynchronous copies of [`Driver`](tenure_device::Driver), until the
    /// returned event has passed.
    pub(super) unsafe fn copy(&self, after: &[&Event], copies: &[DeviceCopy]) -> Result<Arc<Event>, DriverError> {
        let mut traffic = self.traffic.lock();
        for event in after {
            event.wait(&self.stream)?;
        }
        let driver = self.stream.driver();
        let batches = traffic.batches;
        let mut new_timed = || traffic.spare.pop().unwrap_or_else(|| Event::new(Arc::clone(driver), EventKind::Timing));
        let (start, mut end) = if batches.is_multiple_of(TIMED_PART) {
            let mut start = new_timed();
            start.record(&self.stream)?;
            (Some(start), new_timed())
        } else {
            (None, Event::new(Arc::clone(driver), EventKind::Order))
        };
        let queued = copies.iter().try_for_each(|&DeviceCopy { host, device, bytes }| match self.direction {
            // SAFETY: the caller's promise.
            CopyDirection::Out => unsafe {
                driver.copy_from_device_async(host, device, bytes as u64, self.stream.id())
            },
            // SAFETY: the caller's promise.
            CopyDirection::In => unsafe { driver.copy_to_device_async(device, host, bytes as u64, self.stream.id()) },
        });
        if let Err(error) = queued.map_err(DriverError::from).and_then(|()| end.record(&self.stream)) {
            // An error here means that the context is lost, and then no copy is under way either.
            let _ = self.stream.synchronize();
            return Err(error);
        }
        let end = Arc::new(end);
        let bytes = copies.iter().map(|copy| copy.bytes as u64).sum();
        traffic.bytes += bytes;
        traffic.transfers += copies.len() as u64;
        traffic.batches += 1;
        if let Some(start) = start {
            traffic.under_way.push_back((start, Arc::clone(&end), bytes));
            if traffic.under_way.len() > MAX_UNCOLLECTED {
                traffic.collect_times();
            }
        }
        Ok(end)
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let mut traffic = self.traffic.lock();
        traffic.collect_times();
        // Assumes that untimed copies take as long per byte as timed ones.
        let share = if traffic.timed_bytes == 0 { 0.0 } else { traffic.bytes as f64 / traffic.timed_bytes as f64 };
        let busy = Duration::from_secs_f64(traffic.busy_us * share / 1e6);
        LinkStatistics { bytes: traffic.bytes, transfers: traffic.transfers, busy, stalled: Duration::ZERO }
    }
}

impl CopyTraffic {
    /// Adds the times of the batches that are done to `busy_us`, and takes their events for reuse.
    fn collect_times(&mut self) {
        while let Some((start, end, bytes)) = self.under_way.front() {
            match end.query() {
                Ok(false) => return,
                Ok(true) => {
                    if let Ok(us) = start.elapsed_us(end) {
                        self.busy_us += us.max(0.0);
                        self.timed_bytes += bytes;
                    }
                }
                // A failed transfer is reported by its own call, not here.
                Err(_) => {}
            }
            let Some((start, end, _)) = self.under_way.pop_front() else { return };
            self.spare.push(start);
            self.spare.extend(Arc::into_inner(end));
        }
    }
}

/// The function to call after an event.
type Then = Box<dyn FnOnce(Result<(), DriverError>) + Send>;

/// A thread that waits for events one after the other, and calls a function after each. Dropping it waits until all are
/// done.
pub(super) struct Watcher {
    events: Option<mpsc::Sender<(Arc<Event>, Then)>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (events, queue) = mpsc::channel::<(Arc<Event>, Then)>();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            for (event, then) in queue {
                then(event.synchronize());
            }
        })?;
        Ok(Self { events: Some(events), thread: Some(thread) })
    }

    /// Calls `then` on the watcher's thread when the device has passed `event`, or with the error if waiting fails.
    /// Since the thread waits for events in the order of these calls, an event also delays those given after it.
    pub(super) fn when_passed(&self, event: Arc<Event>, then: impl FnOnce(Result<(), DriverError>) + Send + 'static) {
        let Some(events) = &self.events else { return };
        if let Err(refused) = events.send((event, Box::new(then))) {
            // The thread is gone, because an earlier function panicked.
            let (event, then) = refused.0;
            then(event.synchronize());
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.events = None;
        if let Some(thread) = self.thread.take() {
            join_unless_current(thread);
        }
    }
}
