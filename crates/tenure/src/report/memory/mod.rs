//! The report on a running program's memory, by tag and module.

mod modules;
mod page;
mod segments;
mod timeline;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use tenure_alloc::snapshot::{Setting, SnapshotBlock, SnapshotState};
use tenure_alloc::{Snapshot, Stat, Statistics};
use tenure_core::Tag;
use tenure_device::memory::DeviceUse;
use tenure_device::pinned::PinnedUse;

pub use modules::ModuleUse;
pub use segments::SegmentUse;

use super::chart::Chart;

/// The number of largest blocks that are listed one by one.
const LARGEST: usize = 25;

/// A report on the memory of a running program: its bytes by tag and by module, and how well the memory is used.
///
/// Freed blocks that wait for other streams count as held, so that the bytes of all tags, and of all modules, add up to
/// the allocator's active bytes. The report serialises to JSON without the history, which the snapshot has.
#[derive(Serialize)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The title.
    pub title: String,
    /// The holders of the device's memory, if they were given.
    pub device: Option<DeviceUse>,
    /// The users of the process's pinned host memory, if they were given.
    pub pinned: Vec<PinnedUse>,
    /// Bytes that the program requested and has not freed.
    pub requested_bytes: MemoryFigure,
    /// Bytes allocated for them, rounded.
    pub allocated_bytes: MemoryFigure,
    /// Allocated bytes plus the bytes of freed blocks that other streams may still use.
    pub active_bytes: MemoryFigure,
    /// Device bytes that the allocator holds.
    pub reserved_bytes: MemoryFigure,
    /// The tags that were ever used.
    pub tags: Vec<TagUse>,
    /// The whole program, divided into its modules.
    pub modules: ModuleUse,
    /// The largest blocks, the first the largest.
    pub largest: Vec<BlockUse>,
    /// Every segment, the first the largest.
    pub segments: Vec<SegmentUse>,
    /// Every counter, by the names of `torch.cuda.memory_stats()`.
    pub statistics: BTreeMap<String, i64>,
    /// The allocator's settings.
    pub settings: BTreeMap<&'static str, String>,
    /// Live bytes over time by tag, if there is a history.
    #[serde(skip)]
    timeline: Option<Chart>,
}

/// A figure: its current and its highest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFigure {
    /// The current value.
    pub current: u64,
    /// The highest value since peaks were reset. If the allocator keeps counters for each stream, an upper bound.
    pub peak: u64,
}

/// The memory that a tag holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagUse {
    /// The tag.
    #[serde(serialize_with = "by_name")]
    pub tag: Tag,
    /// The part of [`MemoryReport::requested_bytes`] that has this tag.
    pub requested_bytes: MemoryFigure,
    /// The part of [`MemoryReport::allocated_bytes`] that has this tag.
    pub allocated_bytes: MemoryFigure,
    /// The part of [`MemoryReport::active_bytes`] that has this tag.
    pub active_bytes: MemoryFigure,
    /// The number of blocks that hold them.
    pub blocks: usize,
}

/// A block in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockUse {
    /// The address of its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes that its user requested.
    pub requested_bytes: u64,
    /// Its purpose.
    #[serde(serialize_with = "by_name")]
    pub tag: Tag,
    /// Its key, if the program set one.
    pub key: Option<String>,
    /// The stream that it was allocated for.
    pub stream: u64,
    /// Whether it was freed and waits for other streams.
    pub is_awaited: bool,
}

impl MemoryReport {
    /// Makes a report called `title` of an allocator's snapshot and statistics. Both should be of the same moment:
    /// allocations in between make them differ.
    pub fn new(title: impl Into<String>, snapshot: &Snapshot, statistics: &Statistics) -> Self {
        let title = title.into();
        let all = &statistics.all;
        let held = || held(snapshot);
        let tags = Tag::ALL.into_iter().filter_map(|tag| {
            let figures = &statistics.tags[tag as usize];
            let active = figures.active_bytes;
            let blocks = held().filter(|(_, block)| block.tag == tag).count();
            (active.peak > 0 || blocks > 0).then(|| TagUse {
                tag,
                requested_bytes: figures.requested_bytes.into(),
                allocated_bytes: figures.allocated_bytes.into(),
                active_bytes: active.into(),
                blocks,
            })
        });
        let mut largest: Vec<_> = held().collect();
        largest.sort_by_key(|(_, block)| (Reverse(block.bytes), block.address));
        largest.truncate(LARGEST);
        let settings = snapshot.settings.iter().map(|(name, value)| (*name, in_words(value)));
        Self {
            device: None,
            pinned: Vec::new(),
            requested_bytes: all.requested_bytes.into(),
            allocated_bytes: all.allocated_bytes.into(),
            active_bytes: all.active_bytes.into(),
            reserved_bytes: all.reserved_bytes.into(),
            tags: tags.collect(),
            modules: ModuleUse::of_blocks(held().map(|(_, block)| block)),
            largest: largest.into_iter().map(|(stream, block)| BlockUse::new(stream, block)).collect(),
            segments: segments::of(snapshot),
            statistics: statistics.flat().into_iter().collect(),
            settings: settings.collect(),
            timeline: timeline::chart(&title, snapshot),
            title,
        }
    }

    /// Returns the report with the holders of the device's memory.
    #[must_use]
    pub fn on_device(mut self, device: DeviceUse) -> Self {
        self.device = Some(device);
        self
    }

    /// Returns the report with the users of pinned host memory.
    #[must_use]
    pub fn with_pinned(mut self, pinned: Vec<PinnedUse>) -> Self {
        self.pinned = pinned;
        self
    }
}

impl BlockUse {
    fn new(stream: u64, block: &SnapshotBlock) -> Self {
        Self {
            address: block.address,
            bytes: block.bytes,
            requested_bytes: block.requested,
            tag: block.tag,
            key: block.key.key().map(|key| key.to_string()),
            stream,
            is_awaited: block.state == SnapshotState::PendingFree,
        }
    }
}

impl From<Stat> for MemoryFigure {
    fn from(Stat { current, peak, .. }: Stat) -> Self {
        Self { current, peak }
    }
}

/// Returns the blocks in use, and the streams that their segments are for.
fn held(snapshot: &Snapshot) -> impl Iterator<Item = (u64, &SnapshotBlock)> {
    let blocks = snapshot.segments.iter().flat_map(|segment| {
        let stream = segment.stream.0;
        segment.blocks.iter().map(move |block| (stream, block))
    });
    blocks.filter(|(_, block)| block.state != SnapshotState::Inactive)
}

fn in_words(setting: &Setting) -> String {
    match setting {
        Setting::Flag(value) => value.to_string(),
        Setting::Integer(value) => value.to_string(),
        Setting::Number(value) => value.to_string(),
        Setting::Text(value) => value.clone(),
        Setting::Table(rows) => {
            rows.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
        }
    }
}

fn by_name<S: serde::Serializer>(tag: &Tag, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(tag.name())
}
