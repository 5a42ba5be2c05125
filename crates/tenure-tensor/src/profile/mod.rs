//! A profiler of operations, of the devices' work, and of memory.
//!
//! While a [`Profiler`] records, it sees each operation that any thread calls, the formulas of the backward pass, and
//! the [sections](crate::observe::section) that the program names; the kernels and copies of devices, by the devices'
//! own clocks; and each change of the bytes in use. [`Profile::chrome_trace`] writes all of it in the format of Chrome's
//! traces, which Perfetto opens, and [`Profile::table`] sums it up by name. Without a profiler an operation costs a load.
//!
//! ```
//! use tenure_tensor::profile::{Profiler, ProfilerOptions, SortBy};
//! use tenure_tensor::{DType, Device, Tensor};
//!
//! let x = Tensor::ones(&[16, 16], DType::F32, Device::CPU)?;
//! let profiler = Profiler::start(ProfilerOptions::default())?;
//! x.matmul(&x)?.sum_all()?;
//! let profile = profiler.stop();
//! println!("{}", profile.table(SortBy::OwnTime, 10));
//! # assert!(profile.spans.iter().any(|span| span.name == "matmul"));
//!
//! let mut trace = Vec::new();
//! profile.chrome_trace(&mut trace)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod averages;
mod chrome;
mod recorder;
mod table;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Clock, DType, Device};
use tenure_device::activity::{self, ActivityRecording};
pub use tenure_device::activity::{Activity, ActivityKind, CudaTimes};
use tenure_device::memory::{self, MAX_DEVICES};

pub use self::averages::{Average, OUTSIDE_MEMORY};
use self::recorder::Recorder;
pub use self::table::{SortBy, TableOptions};
use crate::observe::{self, Observing};

/// Options of a [`Profiler`].
#[derive(Clone, Debug)]
pub struct ProfilerOptions {
    /// Whether spans of the host are recorded.
    pub record_host: bool,
    /// Whether the work of devices is recorded.
    pub record_devices: bool,
    /// Whether the sizes and dtypes of operations' arguments are recorded.
    pub record_shapes: bool,
    /// Whether changes of the bytes in use are recorded.
    pub profile_memory: bool,
    /// The number of spans, of activities, and of changes of memory that are kept of each. Later ones are counted only.
    pub max_events: usize,
    /// The clock of the host's times.
    pub clock: Clock,
}

impl Default for ProfilerOptions {
    /// Returns options to record the times of the host and of devices, at most a million of each kind of event.
    fn default() -> Self {
        Self {
            record_host: true,
            record_devices: true,
            record_shapes: false,
            profile_memory: false,
            max_events: 1_000_000,
            clock: Clock::default(),
        }
    }
}

/// A profile cannot be recorded while another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a profile is being recorded already, and a process records one at a time: stop it first")]
pub struct AlreadyProfiling;

/// Records a profile until it is [stopped](Self::stop) or dropped. A process has one at a time.
#[must_use = "recording ends when this is dropped"]
pub struct Profiler {
    recorder: Arc<Recorder>,
    observing: Option<Observing>,
    activities: ActivityRecording,
}

impl Profiler {
    /// Starts to record.
    ///
    /// # Errors
    /// There is another profiler.
    pub fn start(options: ProfilerOptions) -> Result<Self, AlreadyProfiling> {
        let ProfilerOptions { record_host, record_devices, profile_memory, max_events, .. } = options;
        let recorder = Arc::new(Recorder::new(options));
        let on_memory: Option<activity::OnMemory> = profile_memory.then(|| {
            let recorder = Arc::clone(&recorder);
            Box::new(move |device, bytes| recorder.memory_changed(device, bytes)) as _
        });
        if profile_memory {
            recorder.begin_with(activity::bytes_in_use());
        }
        let activities =
            ActivityRecording::start(record_devices.then_some(max_events), on_memory).ok_or(AlreadyProfiling)?;
        // Starting CUPTI takes long, and the devices' times count from its end.
        recorder.begin();
        let observing = record_host.then(|| observe::start(recorder.clone()));
        Ok(Self { recorder, observing, activities })
    }

    /// Waits for the devices' work, stops recording, and returns the profile. Spans that have not ended end here.
    pub fn stop(self) -> Profile {
        for memory in (0..MAX_DEVICES).filter_map(memory::installed) {
            if memory.allocator().is_capturing() {
                continue;
            }
            // A device that fails reports it to the program's next call. Its work so far is in the profile.
            let _ = memory.driver().synchronize();
        }
        let Self { recorder, observing, activities } = self;
        drop(observing);
        let mut profile = recorder.finish();
        let activities = activities.stop();
        profile.activities = activities.activities;
        profile.dropped += activities.dropped;
        profile.cuda = activities.cuda;
        profile
    }
}

/// The kind of a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// The call of an operation.
    Operation,
    /// The backward of an operation: a node of the graph runs its formula.
    Backward,
    /// A [section](crate::observe::section) that the program names.
    Section,
}

/// The kind of a tensor among an operation's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    /// The parameter's name.
    pub parameter: &'static str,
    /// The sizes.
    pub sizes: Vec<usize>,
    /// The dtype.
    pub dtype: DType,
    /// The device.
    pub device: Device,
}

/// A stretch of a thread's run: an operation, a backward formula or a section. Spans of a thread are nested.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The number of the span, in the order in which spans began. Numbers differ between all profiles of a process.
    pub id: u64,
    /// The span around it on the same thread, if that is in the profile.
    pub parent: Option<u64>,
    /// The name of the operation or section. Of a backward formula, the name of the operation, then `_backward`.
    /// The name of a formula in Python ends with `Backward`.
    pub name: Cow<'static, str>,
    /// The kind.
    pub kind: SpanKind,
    /// The index of the thread in [`Profile::threads`].
    pub thread: usize,
    /// The time from the profile's start to the span's begin.
    pub begin: Duration,
    /// The time from begin to end.
    pub duration: Duration,
    /// The time without that of the spans within.
    pub own: Duration,
    /// The tensors among the arguments, with [`record_shapes`](ProfilerOptions::record_shapes).
    pub inputs: Vec<InputShape>,
    /// The bytes that the span itself allocated, less those that it freed, on each device where that is not 0.
    pub memory: Vec<(Device, i64)>,
    /// The number of the graph's node that the operation made, or that runs in the backward pass.
    pub node: Option<u64>,
}

/// An edge of a span: its begin or its end. It has the span's index in [`Profile::spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanEdge {
    /// The span begins.
    Begin(usize),
    /// The span ends, after the spans within.
    End(usize),
}

/// A change of the bytes in use on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPoint {
    /// The time from the profile's start.
    pub at: Duration,
    /// The device.
    pub device: Device,
    /// The bytes allocated, or freed if negative.
    pub change: i64,
    /// The bytes in use after it.
    pub in_use: u64,
    /// The span that allocated or freed: its [`id`](Span::id).
    pub span: Option<u64>,
}

/// The bytes in use on a device over a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The device.
    pub device: Device,
    /// The bytes at the start.
    pub start: u64,
    /// The most bytes at a time.
    pub peak: u64,
    /// The bytes at the end.
    pub end: u64,
}

/// A recorded profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The spans, in the order in which they began.
    pub spans: Vec<Span>,
    /// The devices' kernels, copies and fills, by begin.
    pub activities: Vec<Activity>,
    /// The changes of the bytes in use, by time, with [`profile_memory`](ProfilerOptions::profile_memory).
    pub memory: Vec<MemoryPoint>,
    /// The bytes in use on each device, with [`profile_memory`](ProfilerOptions::profile_memory).
    pub memory_use: Vec<MemoryUse>,
    /// The names of the threads, by index.
    pub threads: Vec<String>,
    /// The time from start to stop.
    pub duration: Duration,
    /// The number of events that were not kept because there were too many.
    pub dropped: u64,
    /// The source of the times of NVIDIA devices.
    pub cuda: CudaTimes,
}
