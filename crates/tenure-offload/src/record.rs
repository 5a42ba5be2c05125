//! The record of a step: when each saved tensor was moved, and samples of the bytes on each tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_tier::Disk;

use crate::engine::Engine;
use crate::report::{SavedRecord, since};

/// The record of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// The saved tensors, the first first.
    pub saved: Vec<SavedRecord>,
    /// The samples of the tiers, the earliest first.
    pub moments: Vec<TierMoment>,
    /// The memory budget in bytes, if there is one.
    pub budget_bytes: Option<u64>,
    /// The length of the record in microseconds.
    pub elapsed_us: u64,
}

/// A sample of the tiers: the bytes on each at one moment, and the bytes moved until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierMoment {
    /// The time of the sample, in microseconds since the record began.
    pub at_us: u64,
    /// Bytes that are allocated of the memory that the budget limits.
    pub memory_bytes: u64,
    /// Bytes that are stored in the host's pinned memory.
    pub host_bytes: u64,
    /// Bytes of room that are taken on disks.
    pub disk_bytes: u64,
    /// Bytes that had been copied from the device to the host.
    pub device_to_host: u64,
    /// Bytes that had been copied from the host to the device.
    pub host_to_device: u64,
    /// Bytes that had been written to disks.
    pub disk_write: u64,
    /// Bytes that had been read from disks.
    pub disk_read: u64,
}

impl TierMoment {
    /// Takes a sample.
    fn now(engine: &Engine, began: Instant) -> Self {
        let mover = engine.mover();
        let at_us = since(began);
        let links = mover.links();
        Self {
            at_us,
            memory_bytes: engine.memory().statistics().all.allocated_bytes.current,
            host_bytes: mover.pinned().map_or(0, |pinned| pinned.live_bytes),
            disk_bytes: mover.disk().map_or(0, |disk: &Disk| disk.capacity_bytes() - disk.statistics().free_bytes),
            device_to_host: links.device_to_host.bytes,
            host_to_device: links.host_to_device.bytes,
            disk_write: links.disk_write.bytes,
            disk_read: links.disk_read.bytes,
        }
    }
}

/// Records a step: makes the engine record when each saved tensor is moved, and samples the tiers at an interval.
pub struct StepRecorder {
    engine: Engine,
    is_over: Arc<AtomicBool>,
    /// The thread that samples the tiers.
    sampler: Option<JoinHandle<()>>,
    moments: Arc<Mutex<Vec<TierMoment>>>,
    began: Instant,
}

impl StepRecorder {
    /// Begins a record with a sample every `interval`, or as often as the system allows. An engine has one recorder at
    /// a time: the last.
    pub fn begin(engine: &Engine, interval: Duration) -> Self {
        let engine = engine.clone();
        let began = Instant::now();
        engine.record_since(began);
        let is_over = Arc::new(AtomicBool::new(false));
        let sampled_engine = engine.clone();
        let thread_is_over = Arc::clone(&is_over);
        // The thread may begin late, so the first sample is taken here.
        let moments = Arc::new(Mutex::new(vec![TierMoment::now(&engine, began)]));
        let samples = Arc::clone(&moments);
        Self {
            engine,
            is_over,
            sampler: Some(thread::spawn(move || {
                while !thread_is_over.load(Ordering::Relaxed) {
                    thread::sleep(interval);
                    add_sample(&samples, &sampled_engine, began);
                }
            })),
            moments,
            began,
        }
    }

    /// Takes a sample now, too.
    pub fn look(&self) {
        add_sample(&self.moments, &self.engine, self.began);
    }

    /// Ends the record, and returns it. Its last sample is taken by this call.
    pub fn finish(mut self) -> StepRecord {
        let elapsed_us = since(self.began);
        self.is_over.store(true, Ordering::Relaxed);
        // The thread does not panic.
        self.sampler.take().map(JoinHandle::join);
        self.look();
        let moments = std::mem::take(&mut *self.moments.lock());
        let saved = self.engine.take_notes();
        let budget_bytes = self.engine.budget_bytes();
        StepRecord { saved, moments, budget_bytes, elapsed_us }
    }
}

/// Takes a sample and adds it. The samples are locked meanwhile, so that they stay in order.
fn add_sample(moments: &Mutex<Vec<TierMoment>>, engine: &Engine, began: Instant) {
    let mut moments = moments.lock();
    moments.push(TierMoment::now(engine, began));
}

impl Drop for StepRecorder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.engine.take_notes());
    }
}
