//! Traces: events, validation, summaries and files.

mod annotations;
mod compact;
mod error;
mod event;
mod file;
mod history;
mod holders;
mod input;
mod labels;
mod out_of_memory;
mod pickle;
mod ranges;
mod records;
mod reserved;
mod segments;
mod settings;
mod snapshot;
mod snapshot_writer;
mod stacks;
mod summary;
mod times;
mod unread;
mod validate;

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

pub use annotations::Annotation;
pub(crate) use error::reserve;
pub use error::{EventError, TraceError};
pub use event::{TraceAction, TraceEvent};
pub use file::Format;
use history::Additions;
pub use holders::{Holder, HolderModule, Holders};
pub(crate) use input::Input;
pub use labels::{EventLabel, EventLabels, MemoryPool};
pub use out_of_memory::OutOfMemory;
pub use segments::{BlockState, SegmentTotals, SnapshotBlock, SnapshotSegment};
use settings::OtherSetting;
pub use settings::Settings;
pub use stacks::{StackFrame, Stacks};
pub use summary::{LiveBlock, SegmentCoverage, SizeClass, SizeClassSummary, Summary};

/// Everything that one device's allocator did, starting with an empty device.
///
/// If a recorder began late, the first events recreate the segments and blocks that existed before:
/// [`earlier_events`](Self::earlier_events) of them.
///
/// Every trace has been validated: times never go back, no range passes the end of the address space, live blocks
/// never overlap, every free names a live block and its size, and a free is requested once before it completes once.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    source: String,
    device: u32,
    settings: Settings,
    events: Vec<TraceEvent>,
    earlier_events: usize,
    notes: Vec<String>,
    stacks: Stacks,
    labels: EventLabels,
    annotations: Vec<Annotation>,
    segments: Vec<SnapshotSegment>,
    /// The distinct tags of blocks in `segments`, in the order of their numbers, which begin at 1.
    block_tags: Vec<Arc<str>>,
    /// Settings of a snapshot that [`Settings`] lacks.
    other_settings: Vec<(String, OtherSetting)>,
    unread: Vec<String>,
}

impl Trace {
    /// One more than the highest device number: PyTorch stores it in a signed byte.
    pub const DEVICES: u32 = 128;

    /// Makes a trace of `events` on `device`, recorded from `source` under `settings`.
    ///
    /// PyTorch stamps events with a clock that may be set back; a time below its predecessor's is raised to it.
    ///
    /// # Errors
    /// An error for the first event that is not valid, or for settings that are not.
    pub fn new(
        source: impl Into<String>,
        device: u32,
        settings: Settings,
        events: Vec<TraceEvent>,
    ) -> Result<Self, TraceError> {
        Self::completed(source.into(), device, settings, events, &Additions::default())
    }

    /// Makes a trace of a history that may have begun late. `events` include all `additions`.
    fn completed(
        source: String,
        device: u32,
        settings: Settings,
        mut events: Vec<TraceEvent>,
        additions: &Additions,
    ) -> Result<Self, TraceError> {
        if device >= Self::DEVICES {
            let reason = format!("device {device} cannot be: devices are numbered from 0 to {}", Self::DEVICES - 1);
            return Err(TraceError::NoTrace { reason });
        }
        settings.validate()?;
        times::order(&mut events);
        validate::check(&events, &additions.positions())?;
        let earlier_events = additions.earlier_events();
        Ok(Self {
            source,
            device,
            settings,
            events,
            earlier_events,
            notes: Vec::new(),
            stacks: Stacks::default(),
            labels: EventLabels::default(),
            annotations: Vec::new(),
            segments: Vec::new(),
            block_tags: Vec::new(),
            other_settings: Vec::new(),
            unread: Vec::new(),
        })
    }

    /// Reads the file at `path`: a PyTorch snapshot or a compact trace, plain, xz or gzip, detected by content. Takes
    /// the device with the most live bytes at its peak.
    ///
    /// # Errors
    /// One line that names the file and the byte or event; no part of the file is kept.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        file::read(path.as_ref(), &ReadOptions::default())
    }

    /// Returns the source name of a snapshot at `path`, since a snapshot has none: the file's name without the format's
    /// extension.
    pub fn source_of(path: impl AsRef<Path>) -> String {
        file::source_name(path.as_ref())
    }

    /// Reads from any reader, such as one that counts bytes for a progress bar. A snapshot does not say where it comes
    /// from: `name` becomes its source.
    ///
    /// # Errors
    /// The same as of [`read`](Self::read), without the file's name; [`TraceError::in_file`] adds it.
    pub fn read_from(reader: impl Read, name: &str, options: &ReadOptions) -> Result<Self, TraceError> {
        file::read_from(reader, name, options)
    }

    /// Writes the trace to `path` in `format`. The file is replaced atomically.
    ///
    /// # Errors
    /// The file system's error, with the path.
    pub fn write(&self, path: impl AsRef<Path>, format: Format) -> Result<(), TraceError> {
        file::write(self, path.as_ref(), format)
    }

    /// Writes the trace to any writer, and flushes it.
    ///
    /// # Errors
    /// The writer's error.
    pub fn write_to(&self, writer: impl Write, format: Format) -> io::Result<()> {
        file::write_to(self, writer, format)
    }

    /// Returns the source of the trace: usually the name of the program or of the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the index of the device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Returns the allocator's settings while the trace was recorded.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the events, in the order in which they happened.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Returns the number of the first events that recreate the segments and blocks from before the recorded history.
    /// They have the time of its first event.
    pub fn earlier_events(&self) -> usize {
        self.earlier_events
    }

    /// Returns lines for the user: which events the reader of a snapshot skipped, and which devices it could choose
    /// from. They are not written to files.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the call stacks that a snapshot has of its events. Snapshots are written with them, compact traces
    /// without.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// Returns the tags, compile contexts and memory pools that a snapshot has of its events. Snapshots are written
    /// with them, compact traces without.
    pub fn labels(&self) -> &EventLabels {
        &self.labels
    }

    /// Returns the annotations of a snapshot, in the order of their beginnings. Snapshots are written with them,
    /// compact traces without.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Returns the device's segments as a snapshot lists them; empty if it lists none. Snapshots are written with them,
    /// compact traces without.
    pub fn segments(&self) -> &[SnapshotSegment] {
        &self.segments
    }

    /// Returns the tag that the program gave a block of [`segments`](Self::segments), if it gave one: PyTorch's
    /// `user_metadata`.
    pub fn block_tag(&self, block: &SnapshotBlock) -> Option<&str> {
        let index = (block.tag as usize).checked_sub(1)?;
        self.block_tags.get(index).map(|tag| &**tag)
    }

    /// Returns whether the recorder had a clock: some event has a time.
    pub fn has_times(&self) -> bool {
        times::are_recorded(&self.events)
    }

    /// Returns lines for the user that name and count the parts which a file in `format` lacks: those that the format
    /// cannot hold, and those that the reader does not keep.
    pub fn left_out_of(&self, format: Format) -> Vec<String> {
        let unread = self.unread.iter().map(|part| format!("left out, because they are not read: {part}"));
        file::left_out(self, format).into_iter().chain(unread).collect()
    }

    /// Computes counts, peaks, and the blocks live at the peak.
    pub fn summary(&self) -> Summary {
        summary::summarize(&self.events, self.earlier_events)
    }

    /// Divides `live` blocks of this trace, such as [`Summary::live_at_peak`], by stack, module and size.
    pub fn holders(&self, live: &[LiveBlock]) -> Holders {
        Holders::of(self, live)
    }

    /// Returns the last allocations that failed, at most [`OutOfMemory::LISTED`], in their order.
    pub fn out_of_memory(&self) -> Vec<OutOfMemory> {
        out_of_memory::last(&self.events)
    }
}

/// Settings of a reader: the device to read, and limits on memory.
///
/// The defaults read snapshots of 50 million events, and stop reading a hostile file before it fills the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The device to read; `None` takes the device with the most live bytes at its peak.
    pub device: Option<u32>,
    /// The most bytes to hold while reading, events included; at most 8 GiB are used. An event of a snapshot takes
    /// about 80 bytes. A call stack that another event has too takes no more, but if the file repeats its frames for
    /// each event they take 12 bytes per frame and 8 per string. The xz decoder may take 128 MiB more.
    pub memory_bytes: u64,
    /// The most bytes to accept after decompression.
    pub decoded_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { device: None, memory_bytes: 4 << 30, decoded_bytes: 64 << 30 }
    }
}
