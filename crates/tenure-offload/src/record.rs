//! What became of what a step saved, and where bytes were meanwhile, for who looks at it later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_tier::Disk;

use crate::engine::Engine;
use crate::notes::{SavedRecord, since};

/// What was seen of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// What was saved, the first first.
    pub saved: Vec<SavedRecord>,
    /// Where bytes were, the earliest first.
    pub moments: Vec<TierMoment>,
    /// What the memory may hold.
    pub budget_bytes: Option<u64>,
    /// How long it was looked at.
    pub elapsed_us: u64,
}

/// Where bytes were at a moment, and what had passed until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierMoment {
    /// Since the record began.
    pub at_us: u64,
    /// Allocated of the memory that the budget is of.
    pub memory_bytes: u64,
    /// In pinned memory of the host, to stay there for a while.
    pub host_bytes: u64,
    /// On disks: the room that it has there.
    pub disk_bytes: u64,
    /// That had been copied from the device to the host.
    pub device_to_host: u64,
    /// That had been copied from the host to the device.
    pub host_to_device: u64,
    /// That had been written to disks.
    pub disk_write: u64,
    /// That had been read from disks.
    pub disk_read: u64,
}

impl TierMoment {
    fn now(engine: &Engine, began: Instant) -> Self {
        let (mover, at_us) = (engine.mover(), since(began));
        let links = mover.links();
        let disk = |disk: &Disk| disk.capacity_bytes() - disk.statistics().free_bytes;
        Self {
            at_us,
            memory_bytes: engine.memory().statistics().all.allocated_bytes.current,
            host_bytes: mover.pinned().map_or(0, |pinned| pinned.blocks.all.allocated_bytes.current),
            disk_bytes: mover.disk().map_or(0, disk),
            device_to_host: links.device_to_host.bytes,
            host_to_device: links.host_to_device.bytes,
            disk_write: links.disk_write.bytes,
            disk_read: links.disk_read.bytes,
        }
    }
}

/// Has an engine note what becomes of what is saved, and looks at tiers again and again, such as during one step.
pub struct StepRecorder {
    engine: Engine,
    is_over: Arc<AtomicBool>,
    looks: Option<JoinHandle<()>>,
    moments: Arc<Mutex<Vec<TierMoment>>>,
    began: Instant,
}

impl StepRecorder {
    /// Looks every `interval`, or as often as the system lets it. An engine has one recorder at a time: the last.
    pub fn begin(engine: &Engine, interval: Duration) -> Self {
        let (engine, began) = (engine.clone(), Instant::now());
        engine.note_from(began);
        let is_over = Arc::new(AtomicBool::new(false));
        let (looked_at, until) = (engine.clone(), Arc::clone(&is_over));
        // The thread may begin late.
        let moments = Arc::new(Mutex::new(vec![TierMoment::now(&engine, began)]));
        let kept = Arc::clone(&moments);
        let look = move || {
            while !until.load(Ordering::Relaxed) {
                thread::sleep(interval);
                look(&kept, &looked_at, began);
            }
        };
        Self { engine, is_over, looks: Some(thread::spawn(look)), moments, began }
    }

    /// Looks now, too.
    pub fn look(&self) {
        look(&self.moments, &self.engine, self.began);
    }

    /// The record of the step. Its last moment is that of this call.
    pub fn finish(mut self) -> StepRecord {
        let elapsed_us = since(self.began);
        self.is_over.store(true, Ordering::Relaxed);
        // It does not panic.
        self.looks.take().map(JoinHandle::join);
        self.look();
        let moments = std::mem::take(&mut *self.moments.lock());
        let (saved, budget_bytes) = (self.engine.take_notes(), self.engine.budget_bytes());
        StepRecord { saved, moments, budget_bytes, elapsed_us }
    }
}

/// Looks with the moments locked, so that the earliest stays first.
fn look(moments: &Mutex<Vec<TierMoment>>, engine: &Engine, began: Instant) {
    let mut moments = moments.lock();
    moments.push(TierMoment::now(engine, began));
}

impl Drop for StepRecorder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.engine.take_notes());
    }
}
