//! What tensors hold while a step is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure_core::{Device, Tag};
use tenure_device::host::HostMemory;
use tenure_device::memory;
use tenure_tier::Tier;

/// Bytes that tensors on a device hold, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagBytes(pub(super) [u64; Tag::ALL.len()]);

/// What tensors held in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// The most at any moment. On the CPU the sum of that of the host's memory and of each tier of memory, which may be more.
    pub peak_bytes: u64,
    /// By tag, at the fullest of three moments: after the forward pass, the backward pass, and the update.
    pub tags: TagBytes,
    /// The most for each tag, at moments of their own.
    pub tag_peaks: TagBytes,
}

impl TagBytes {
    /// Of this moment.
    pub fn now(device: Device) -> Self {
        StepMemory::of(device).tags
    }

    /// What is for `tag`.
    pub fn of(&self, tag: Tag) -> u64 {
        self.0[tag as usize]
    }

    /// All.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What tensors held at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since the recorder began.
    pub at_us: u64,
    /// By tag.
    pub tags: TagBytes,
}

/// Moments, the first the earliest.
pub type Recording = Vec<Moment>;

/// A thread that looks at memory again and again, such as during one step.
pub struct Recorder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Recording>,
}

impl Recorder {
    /// Looks every `interval`, or as often as the system lets it.
    pub fn begin(interval: Duration, device: Device) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let began = Instant::now();
        let look = move || Moment { at_us: began.elapsed().as_micros() as u64, tags: TagBytes::now(device) };
        // The thread may begin late.
        let mut recording = vec![look()];
        let record = move || {
            loop {
                thread::sleep(interval);
                if until.load(Ordering::Relaxed) {
                    return recording;
                }
                recording.push(look());
            }
        };
        Self { is_over, thread: thread::spawn(record) }
    }

    /// What it saw.
    pub fn finish(self) -> Recording {
        self.is_over.store(true, Ordering::Relaxed);
        // It does not panic.
        self.thread.join().unwrap_or_default()
    }
}

/// Looks at memory while a step is made. The allocator is the process's, and so are tiers: what others hold meanwhile is
/// counted too.
pub(super) struct Meter {
    device: Device,
    fullest: TagBytes,
}

impl Meter {
    pub(super) fn begin(device: Device) -> Self {
        match (HostMemory::installed(), memory::installed(device.index().into())) {
            (Some(memory), _) if device.is_cpu() => {
                memory.reset_peak_statistics();
                Tier::reset_all_peak_statistics();
            }
            (_, Some(memory)) if !device.is_cpu() => memory.allocator().reset_peak_statistics(),
            _ => {}
        }
        Self { device, fullest: TagBytes::default() }
    }

    pub(super) fn look(&mut self) {
        let now = TagBytes::now(self.device);
        if now.total() > self.fullest.total() {
            self.fullest = now;
        }
    }

    pub(super) fn finish(self) -> StepMemory {
        StepMemory { tags: self.fullest, ..StepMemory::of(self.device) }
    }
}

impl StepMemory {
    /// The same, where so many bytes were held at once that the allocator does not tell of any more.
    pub(super) fn with_peak(self, peak_bytes: Option<u64>) -> Self {
        Self { peak_bytes: self.peak_bytes.max(peak_bytes.unwrap_or(0)), ..self }
    }

    /// Of this moment and its allocator's peaks; zeros if nothing was ever on the device.
    fn of(device: Device) -> Self {
        let statistics = match device.is_cpu() {
            true => {
                let mut statistics = Tier::all_statistics();
                HostMemory::installed().inspect(|memory| statistics.merge(&memory.statistics()));
                Some(statistics)
            }
            false => memory::installed(device.index().into()).map(|memory| memory.allocator().statistics()),
        };
        let statistics = statistics.unwrap_or_default();
        Self {
            peak_bytes: statistics.all.allocated_bytes.peak,
            tags: TagBytes(statistics.tags.map(|tag| tag.allocated_bytes.current)),
            tag_peaks: TagBytes(statistics.tags.map(|tag| tag.allocated_bytes.peak)),
        }
    }
}
