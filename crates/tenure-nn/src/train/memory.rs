//! The memory that tensors hold during a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure_core::{Device, Tag};
use tenure_device::host::HostMemory;
use tenure_device::memory;
use tenure_tier::Tier;

/// The bytes that tensors on a device hold, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagBytes(pub(super) [u64; Tag::ALL.len()]);

/// The memory that tensors held in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// The peak in bytes. On the CPU it is the sum of the peaks of the host's memory and of each memory tier, which may
    /// be more than the peak of the sum.
    pub peak_bytes: u64,
    /// The bytes by tag, at one of three moments: after the forward pass, after the backward pass or after the update,
    /// whichever has the largest total.
    pub tags: TagBytes,
    /// The peak in bytes of each tag. Tags may have their peaks at different moments.
    pub tag_peaks: TagBytes,
}

impl TagBytes {
    /// Returns the bytes that tensors on `device` hold now.
    pub fn now(device: Device) -> Self {
        StepMemory::of(device).tags
    }

    /// Returns the bytes for `tag`.
    pub fn of(&self, tag: Tag) -> u64 {
        self.0[tag as usize]
    }

    /// Returns the bytes of all tags.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A sample of the memory that tensors held at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time since the recorder began, in µs.
    pub at_us: u64,
    /// The bytes by tag.
    pub tags: TagBytes,
}

/// Samples, the earliest first.
pub type Recording = Vec<Moment>;

/// A thread that samples memory at intervals, such as during one step.
pub struct Recorder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Recording>,
}

impl Recorder {
    /// Begins to sample every `interval`, or as often as the system lets it.
    pub fn begin(interval: Duration, device: Device) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let began = Instant::now();
        let sample = move || Moment { at_us: began.elapsed().as_micros() as u64, tags: TagBytes::now(device) };
        // The first sample is taken here, since the thread may begin late.
        let mut recording = vec![sample()];
        Self {
            is_over,
            thread: thread::spawn(move || {
                loop {
                    thread::sleep(interval);
                    if until.load(Ordering::Relaxed) {
                        return recording;
                    }
                    recording.push(sample());
                }
            }),
        }
    }

    /// Ends the recording, and returns its samples.
    pub fn finish(self) -> Recording {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread does not panic.
        self.thread.join().unwrap_or_default()
    }
}

/// A meter of the memory in a step. It reads the whole process's statistics, so memory that other threads hold during
/// the step counts too.
pub(super) struct Meter {
    device: Device,
    /// The sample with the largest total.
    largest: TagBytes,
}

impl Meter {
    /// Begins a step: resets the peaks.
    pub(super) fn begin(device: Device) -> Self {
        match (HostMemory::installed(), memory::installed(device.index().into())) {
            (Some(memory), _) if device.is_cpu() => {
                memory.reset_peak_statistics();
                Tier::reset_all_peak_statistics();
            }
            (_, Some(memory)) if !device.is_cpu() => memory.allocator().reset_peak_statistics(),
            _ => {}
        }
        Self { device, largest: TagBytes::default() }
    }

    /// Takes a sample.
    pub(super) fn sample(&mut self) {
        let now = TagBytes::now(self.device);
        if now.total() > self.largest.total() {
            self.largest = now;
        }
    }

    /// Returns the memory of the step.
    pub(super) fn finish(self) -> StepMemory {
        StepMemory { tags: self.largest, ..StepMemory::of(self.device) }
    }
}

impl StepMemory {
    /// Raises the peak to at least `peak_bytes`, a peak earlier in the step that the allocator's statistics no longer
    /// cover.
    pub(super) fn with_peak(self, peak_bytes: Option<u64>) -> Self {
        Self { peak_bytes: self.peak_bytes.max(peak_bytes.unwrap_or(0)), ..self }
    }

    /// Returns the memory at this moment and the allocator's peaks; zeros if nothing was ever allocated on the device.
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
