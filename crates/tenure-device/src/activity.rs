//! A record of what devices do: their kernels, copies and fills with times, and changes of the bytes in use.
//!
//! A process has one [`ActivityRecording`] at a time. While there is none, work and allocations look at one flag.
//!
//! - NVIDIA devices are recorded through CUPTI. Without that library there are the times at which the host launched
//!   Tenure's own kernels and copies: see [`CudaTimes`].
//! - A simulated device records its work by its own clock. Work takes no time there, except
//!   [`busy_until`](crate::sim::SimDriver::busy_until).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tenure_core::{Clock, Device, StreamId};

use crate::cuda::cupti;
use crate::host::HostMemory;
use crate::memory::{self, MAX_DEVICES};
use crate::{Call, Executor, sim};

/// The kind of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivityKind {
    /// A kernel.
    Kernel,
    /// A copy from the host's memory.
    CopyToDevice,
    /// A copy to the host's memory.
    CopyFromDevice,
    /// A copy within a device, or between devices.
    CopyOnDevice,
    /// A fill.
    Fill,
}

impl ActivityKind {
    /// Returns the kind of a driver call's work, given the call's name. `None` for functions of the host.
    pub(crate) fn of_call(name: &str) -> Option<Self> {
        use Call::{CopyFromDevice, CopyFromDeviceAsync, CopyOnDevice, CopyToDevice, CopyToDeviceAsync, CopyToPeer};
        let is = |calls: [Call; 2]| calls.map(Call::name).contains(&name);
        match name {
            _ if name == Call::Launch.name() => Some(Self::Kernel),
            _ if is([CopyToDevice, CopyToDeviceAsync]) => Some(Self::CopyToDevice),
            _ if is([CopyFromDevice, CopyFromDeviceAsync]) => Some(Self::CopyFromDevice),
            _ if is([CopyOnDevice, CopyToPeer]) => Some(Self::CopyOnDevice),
            _ if name == Call::Memset.name() => Some(Self::Fill),
            _ => None,
        }
    }
}

/// A kernel, copy or fill that a device has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The device.
    pub device: Device,
    /// The stream. With [`CudaTimes::Cupti`], this is CUPTI's number of it.
    pub stream: StreamId,
    /// The kind of work.
    pub kind: ActivityKind,
    /// The kernel's name, or that of the driver's call.
    pub name: Cow<'static, str>,
    /// The time from the recording's start to the work's begin, by the device's clock.
    pub begin: Duration,
    /// The time from the recording's start to the work's end, by the device's clock.
    pub end: Duration,
    /// The bytes that a copy or fill writes; 0 for kernels.
    pub bytes: u64,
    /// The [cause](begin_cause) that was the latest of the thread that put the work on its stream.
    pub cause: Option<u64>,
}

/// The source of the times of NVIDIA devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaTimes {
    /// There is no CUDA driver.
    NoDriver,
    /// The recording leaves out the work of devices.
    LeftOut,
    /// CUPTI: the times of all work, on the device.
    Cupti,
    /// The host: the times at which it launched Tenure's own kernels and copies. Work of libraries is missing.
    Launches {
        /// The reason why CUPTI could not be used.
        reason: String,
    },
}

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

/// A function that is told of changes of the bytes in use: the device, and the bytes allocated, or freed if negative.
/// The thread that allocates or frees calls it.
pub type OnMemory = Box<dyn Fn(Device, i64) + Send + Sync>;

/// The recording of what devices do. It ends when it is [stopped](Self::stop) or dropped.
pub struct ActivityRecording(Arc<Log>);

/// The data of the recording.
struct Log {
    /// The host's time of the start.
    started: Duration,
    /// The times of simulated devices at the start, in µs.
    sim_started_us: HashMap<Device, u64>,
    /// The number of activities to keep; `None` if the work of devices is left out.
    max_activities: Option<usize>,
    kept: Mutex<Kept>,
    on_memory: Option<OnMemory>,
    cuda: CudaTimes,
}

#[derive(Default)]
struct Kept {
    activities: Vec<Activity>,
    dropped: u64,
}

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

/// Returns this thread's cause.
pub(crate) fn cause() -> Option<u64> {
    CAUSES.try_with(|causes| causes.borrow().last().map(|(cause, _)| *cause)).ok().flatten()
}

/// Returns whether there is a recording.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Tells the recording that bytes were allocated, or freed if negative.
#[cold]
pub(crate) fn memory_changed(device: Device, bytes: i64) {
    let log = RECORDING.read().clone();
    if let Some(on_memory) = log.as_ref().and_then(|log| log.on_memory.as_ref()) {
        on_memory(device, bytes);
    }
}

/// Records work of a simulated device, whose clock shows the times of begin and end.
#[cold]
pub(crate) fn simulated(begin_us: u64, end_us: u64, activity: Activity) {
    let Some(log) = RECORDING.read().clone() else { return };
    let started_us = log.sim_started_us.get(&activity.device).copied().unwrap_or(0);
    let since = |us: u64| Duration::from_micros(us.saturating_sub(started_us));
    log.keep(Activity { begin: since(begin_us), end: since(end_us), ..activity });
}

/// Records that the host launches work of an NVIDIA device now, unless CUPTI records it.
#[cold]
pub(crate) fn launched(device: Device, stream: StreamId, kind: ActivityKind, name: &'static str, bytes: u64) {
    let Some(log) = RECORDING.read().clone() else { return };
    if !matches!(log.cuda, CudaTimes::Launches { .. }) {
        return;
    }
    let now = Clock::default().now().saturating_sub(log.started);
    log.keep(Activity { device, stream, kind, name: name.into(), begin: now, end: now, bytes, cause: cause() });
}

impl Log {
    fn keep(&self, activity: Activity) {
        let Some(most) = self.max_activities else { return };
        let mut kept = self.kept.lock();
        if kept.activities.len() < most {
            kept.activities.push(activity);
        } else {
            kept.dropped += 1;
        }
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

static RECORDING: RwLock<Option<Arc<Log>>> = RwLock::new(None);

/// Whether there is a recording: work and allocations look here first.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The causes that this thread has begun and not ended, and whether CUPTI knows of each.
    static CAUSES: RefCell<Vec<(u64, bool)>> = const { RefCell::new(Vec::new()) };
}
