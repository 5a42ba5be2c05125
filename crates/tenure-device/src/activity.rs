//! A record of what devices do: their kernels, copies and fills with times, and changes of the bytes in use.
//!
//! A process has one [`ActivityRecording`] at a time. While there is none, work and allocations look at one flag.
//!
//! - NVIDIA devices are recorded through CUPTI. Without that library there are the times at which the host launched
//!   Tenure's own kernels and copies: see [`CudaTimes`].
//! - A simulated device records its work by its own clock. Work takes no time there, except
//!   [`busy_until`](crate::sim::SimDriver::busy_until).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tenure_core::{Clock, Device};

pub use crate::activity_log::{Activity, ActivityKind, CudaTimes, OnMemory};
use crate::activity_log::{CAUSES, IS_ON, Kept, Log, RECORDING, is_on};
use crate::cuda::cupti;
use crate::host::HostMemory;
use crate::memory;
use crate::platform::MAX_DEVICES;
use crate::{Executor, sim};

/// The result of a recording.
#[derive(Clone, Debug)]
pub struct Activities {
    /// The devices' work, by begin.
    pub activities: Vec<Activity>,
    /// The number of activities that were not kept because there were too many.
    pub dropped: u64,
    /// The source of the times of NVIDIA devices.
    pub cuda: CudaTimes,
}

/// The recording of what devices do. It ends when it is [stopped](Self::stop) or dropped.
pub struct ActivityRecording(Arc<Log>);

impl ActivityRecording {
    /// Starts to record at most `max_activities` activities, or to leave out the work of devices if that is `None`, and
    /// to tell `on_memory` of allocations and frees. Returns `None` if there is a recording already.
    pub fn start(max_activities: Option<usize>, on_memory: Option<OnMemory>) -> Option<Self> {
        // Simulated devices lock their clocks while they record work.
        let sim_started_us = sim_drivers();
        let mut recording = RECORDING.write();
        if recording.is_some() {
            return None;
        }
        let cuda = match max_activities {
            None => CudaTimes::LeftOut,
            Some(_) if !crate::cuda::is_driver_present() => CudaTimes::NoDriver,
            Some(most) => match cupti::start(most) {
                Ok(()) => CudaTimes::Cupti,
                Err(reason) => CudaTimes::Launches { reason },
            },
        };
        let log = Arc::new(Log {
            started: Clock::default().now(),
            sim_started_us,
            max_activities,
            kept: Mutex::default(),
            on_memory,
            cuda,
        });
        *recording = Some(Arc::clone(&log));
        IS_ON.store(true, Ordering::Relaxed);
        Some(Self(log))
    }

    /// Ends the recording and returns the activities. Work that a device has not completed yet is missing: synchronize
    /// first.
    pub fn stop(self) -> Activities {
        let from_cupti = self.end();
        let mut kept = std::mem::take(&mut *self.0.kept.lock());
        kept.activities.extend(from_cupti.activities);
        kept.dropped += from_cupti.dropped;
        kept.activities.sort_by_key(|activity| (activity.begin, activity.end));
        Activities { activities: kept.activities, dropped: kept.dropped, cuda: self.0.cuda.clone() }
    }

    /// Ends the recording, unless it has ended. Returns what CUPTI recorded.
    fn end(&self) -> Kept {
        let mut recording = RECORDING.write();
        if !recording.as_ref().is_some_and(|log| Arc::ptr_eq(log, &self.0)) {
            return Kept::default();
        }
        *recording = None;
        IS_ON.store(false, Ordering::Relaxed);
        if self.0.cuda != CudaTimes::Cupti {
            return Kept::default();
        }
        let (activities, dropped) = cupti::stop();
        Kept { activities, dropped }
    }
}

impl Drop for ActivityRecording {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the bytes in use on each device whose memory is Tenure's, the host included.
pub fn bytes_in_use() -> Vec<(Device, u64)> {
    let host = HostMemory::installed().map(|memory| (Device::CPU, memory.statistics()));
    let devices = (0..MAX_DEVICES).filter_map(memory::installed);
    let devices = devices.map(|memory| (memory.device(), memory.allocator().statistics()));
    host.into_iter().chain(devices).map(|(device, it)| (device, it.all.allocated_bytes.current)).collect()
}

/// Makes `cause` the cause of the work that this thread puts on streams, until [`end_cause`]. Causes may be nested.
pub fn begin_cause(cause: u64) {
    let in_cupti = is_on() && cupti::push(cause);
    let _ = CAUSES.try_with(|causes| causes.borrow_mut().push((cause, in_cupti)));
}

/// Ends the cause that this thread began last.
pub fn end_cause() {
    let ended = CAUSES.try_with(|causes| causes.borrow_mut().pop());
    if let Ok(Some((_, true))) = ended {
        cupti::pop();
    }
}

/// Returns the times that the clocks of this process's simulated devices show, in µs.
fn sim_drivers() -> HashMap<Device, u64> {
    let devices = (0..MAX_DEVICES).filter_map(memory::installed);
    let devices = devices.filter_map(|memory| match memory.driver().executor() {
        Executor::Sim(driver) => Some((memory.device(), sim::SimDriver::now_us(driver))),
        Executor::Cuda(_) => None,
    });
    devices.collect()
}
