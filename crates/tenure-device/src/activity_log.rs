//! The log of a recording of what devices do: what drivers and allocators write while there is a recording.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tenure_core::{Clock, Device, StreamId};

use crate::Call;

pub(crate) static RECORDING: RwLock<Option<Arc<Log>>> = RwLock::new(None);

/// Whether there is a recording: work and allocations look here first.
pub(crate) static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The causes that this thread has begun and not ended, and whether CUPTI knows of each.
    pub(crate) static CAUSES: RefCell<Vec<(u64, bool)>> = const { RefCell::new(Vec::new()) };
}

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
        const KINDS: [(Call, ActivityKind); 8] = [
            (Call::Launch, ActivityKind::Kernel),
            (Call::CopyToDevice, ActivityKind::CopyToDevice),
            (Call::CopyToDeviceAsync, ActivityKind::CopyToDevice),
            (Call::CopyFromDevice, ActivityKind::CopyFromDevice),
            (Call::CopyFromDeviceAsync, ActivityKind::CopyFromDevice),
            (Call::CopyOnDevice, ActivityKind::CopyOnDevice),
            (Call::CopyToPeer, ActivityKind::CopyOnDevice),
            (Call::Memset, ActivityKind::Fill),
        ];
        KINDS.iter().find(|(call, _)| call.name() == name).map(|(_, kind)| *kind)
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
    /// The [cause](crate::activity::begin_cause) that was the latest of the thread that put the work on its stream.
    pub cause: Option<u64>,
}

impl Activity {
    /// Returns an activity whose times are not known yet. Its cause is this thread's.
    pub(crate) fn untimed(
        device: Device,
        stream: StreamId,
        kind: ActivityKind,
        name: &'static str,
        bytes: u64,
    ) -> Self {
        let begin = Duration::ZERO;
        Self { device, stream, kind, name: name.into(), begin, end: begin, bytes, cause: cause() }
    }
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

/// A function that is told of changes of the bytes in use: the device, and the bytes allocated, or freed if negative.
/// The thread that allocates or frees calls it.
pub type OnMemory = Box<dyn Fn(Device, i64) + Send + Sync>;

/// The data of the recording.
pub(crate) struct Log {
    /// The host's time of the start.
    pub(crate) started: Duration,
    /// The times of simulated devices at the start, in µs.
    pub(crate) sim_started_us: HashMap<Device, u64>,
    /// The number of activities to keep; `None` if the work of devices is left out.
    pub(crate) max_activities: Option<usize>,
    pub(crate) kept: Mutex<Kept>,
    pub(crate) on_memory: Option<OnMemory>,
    pub(crate) cuda: CudaTimes,
}

#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) activities: Vec<Activity>,
    pub(crate) dropped: u64,
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
    let begin = Duration::from_micros(begin_us.saturating_sub(started_us));
    let end = Duration::from_micros(end_us.saturating_sub(started_us));
    log.keep(Activity { begin, end, ..activity });
}

/// Records that the host launches work of an NVIDIA device now, unless CUPTI records it.
#[cold]
pub(crate) fn launched(device: Device, stream: StreamId, kind: ActivityKind, name: &'static str, bytes: u64) {
    let Some(log) = RECORDING.read().clone() else { return };
    if !matches!(log.cuda, CudaTimes::Launches { .. }) {
        return;
    }
    let now = Clock::default().now().saturating_sub(log.started);
    log.keep(Activity { begin: now, end: now, ..Activity::untimed(device, stream, kind, name, bytes) });
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
