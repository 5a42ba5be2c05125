//! Traces: events, validation, summaries, files.

mod annotations;
mod compact;
mod error;
mod event;
mod file;
mod history;
mod input;
mod labels;
mod records;
mod settings;
mod snapshot;
mod stacks;
mod summary;
mod validate;

use std::io::{self, Read, Write};
use std::path::Path;

pub use annotations::Annotation;
pub use error::{EventError, TraceError};
pub use event::{Action, Event};
pub use file::Format;
use history::Additions;
pub(crate) use input::Input;
pub use labels::{EventLabel, EventLabels, MemoryPool};
pub use settings::Settings;
pub use stacks::{Frame, Stacks};
pub use summary::{LiveBlock, SizeClass, SizeClassSummary, Summary};

/// Everything one device's allocator did, from an empty device on.
///
/// Where a recorder began late, the first events make the segments and blocks that were there before it:
/// [`earlier_events`](Self::earlier_events) of them.
///
/// Every trace has been validated: times never go back, no range passes the end of the address space, live blocks
/// never overlap, every free names a live block and its size, and a free is requested once before it completes once.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    source: String,
    device: u32,
    settings: Settings,
    events: Vec<Event>,
    earlier_events: usize,
    notes: Vec<String>,
    stacks: Stacks,
    labels: EventLabels,
    annotations: Vec<Annotation>,
}

impl Trace {
    /// One more than the highest number a device can have: PyTorch counts them in a signed byte.
    pub const DEVICES: u32 = 128;

    /// A trace of `events` on `device`, recorded from `source` under `settings`.
    ///
    /// PyTorch stamps events with a clock that may be set back; a time below its predecessor's is raised to it.
    ///
    /// # Errors
    /// The first event that makes no sense, and the settings if they do not.
    pub fn new(
        source: impl Into<String>,
        device: u32,
        settings: Settings,
        events: Vec<Event>,
    ) -> Result<Self, TraceError> {
        Self::completed(source.into(), device, settings, events, &Additions::default())
    }

    /// A trace of a history that may have begun late. `events` have all `additions`.
    fn completed(
        source: String,
        device: u32,
        settings: Settings,
        mut events: Vec<Event>,
        additions: &Additions,
    ) -> Result<Self, TraceError> {
        if device >= Self::DEVICES {
            let reason = format!("device {device} cannot be: devices are numbered from 0 to {}", Self::DEVICES - 1);
            return Err(TraceError::NoTrace { reason });
        }
        settings.validate()?;
        validate::order_times(&mut events);
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
        })
    }

    /// Reads the file at `path`, whatever its format: a PyTorch snapshot or a compact trace, plain, xz or gzip, told
    /// apart by content. Takes the device with most live bytes at its peak.
    ///
    /// # Errors
    /// One line that names the file and the byte or event; nothing of the file is kept.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        file::read(path.as_ref(), &ReadOptions::default())
    }

    /// [`read`](Self::read), with `options`.
    pub fn read_with(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TraceError> {
        file::read(path.as_ref(), options)
    }

    /// What a snapshot at `path` is called, which does not say so itself: the file's name without what its format adds.
    pub fn source_of(path: impl AsRef<Path>) -> String {
        file::source_name(path.as_ref())
    }

    /// Reads from any reader, such as one that counts bytes for a progress bar. A snapshot does not say where it
    /// comes from: `name` becomes its source.
    ///
    /// # Errors
    /// As [`read`](Self::read), without the file's name; [`TraceError::in_file`] adds it.
    pub fn read_from(reader: impl Read, name: &str, options: &ReadOptions) -> Result<Self, TraceError> {
        file::read_from(reader, name, options)
    }

    /// Writes the trace to `path` in `format`. The file appears whole or not at all.
    ///
    /// # Errors
    /// What the file system said, with the path.
    pub fn write(&self, path: impl AsRef<Path>, format: Format) -> Result<(), TraceError> {
        file::write(self, path.as_ref(), format)
    }

    /// Writes the trace to any writer, and flushes it.
    ///
    /// # Errors
    /// What the writer said.
    pub fn write_to(&self, writer: impl Write, format: Format) -> io::Result<()> {
        file::write_to(self, writer, format)
    }

    /// What the trace was recorded from: usually the name of the program or of the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Index of the device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The allocator's settings while the trace was recorded.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The events, in the order they happened.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many of the first events make the segments and blocks that were there before the recorded history began.
    /// They have the time of its first event.
    pub fn earlier_events(&self) -> usize {
        self.earlier_events
    }

    /// Lines for a person: what the reader of a snapshot skipped, and which devices it could choose from. They
    /// are not written to files.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The call stacks that a snapshot has of its events. They are not written to files.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// The tags, compile contexts and memory pools that a snapshot has of its events. They are not written to files.
    pub fn labels(&self) -> &EventLabels {
        &self.labels
    }

    /// The annotations of a snapshot, in the order of their beginnings. They are not written to files.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Counts, peaks and holders.
    pub fn summary(&self) -> Summary {
        summary::summarize(&self.events, self.earlier_events)
    }
}

/// Which trace of a file to read, and how much of the machine that may take.
///
/// The defaults read snapshots of 50 million events, and end a hostile file before it fills the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The device to read; `None` takes the one with most live bytes at its peak.
    pub device: Option<u32>,
    /// Most bytes to hold while reading, events included; at most 8 GiB count. An event of a snapshot takes about 80
    /// bytes, and its call stack none that another event has, but 12 bytes for each frame and 8 for each string where
    /// the file writes the frames out again for each event. The xz decoder may take 128 MiB more.
    pub memory_bytes: u64,
    /// Most bytes to accept after decompression.
    pub decoded_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { device: None, memory_bytes: 4 << 30, decoded_bytes: 64 << 30 }
    }
}
