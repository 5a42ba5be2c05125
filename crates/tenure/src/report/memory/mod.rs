//! What a running program's memory is for, by tag and module.

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

pub use modules::Module;
pub use segments::SegmentUse;

use super::chart::Chart;

/// Blocks that are named one by one.
const LARGEST: usize = 25;

/// A report on the memory of a running program: who holds it, by tag and by module, and how well it is used.
///
/// Blocks that were freed and wait for other streams count as held, so that the bytes of all tags, and of all modules,
/// add up to the active bytes of the allocator. It can be serialised for programs to read, but for the history, which is
/// the snapshot's.
#[derive(Serialize)]
#[non_exhaustive]
pub struct MemoryReport {
    /// What the report is of.
    pub title: String,
    /// The device's own figures, if they were given.
    pub device: Option<DeviceUse>,
    /// Bytes that the program asked for and has not freed.
    pub requested_bytes: Figure,
    /// Bytes set aside for them.
    pub allocated_bytes: Figure,
    /// The same, and of freed blocks that other streams may still use.
    pub active_bytes: Figure,
    /// Bytes that the allocator holds of the device.
    pub reserved_bytes: Figure,
    /// The tags that were ever used.
    pub tags: Vec<TagUse>,
    /// The program, divided into its modules.
    pub modules: Module,
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

/// A figure now, and at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Now.
    pub current: u64,
    /// The most since peaks were reset. Where an allocator keeps counters for each stream, an upper bound.
    pub peak: u64,
}

/// The memory of a device, whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// Bytes of the device.
    pub total_bytes: u64,
    /// Bytes that no process holds.
    pub free_bytes: u64,
}

/// What a tag holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagUse {
    /// Which.
    #[serde(serialize_with = "by_name")]
    pub tag: Tag,
    /// As [`MemoryReport::requested_bytes`].
    pub requested_bytes: Figure,
    /// As [`MemoryReport::allocated_bytes`].
    pub allocated_bytes: Figure,
    /// As [`MemoryReport::active_bytes`].
    pub active_bytes: Figure,
    /// Blocks that hold them.
    pub blocks: usize,
}

/// A block in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockUse {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that its user asked for.
    pub requested_bytes: u64,
    /// What it is for.
    #[serde(serialize_with = "by_name")]
    pub tag: Tag,
    /// Which it is, in words, if somebody said.
    pub key: Option<String>,
    /// The stream that it is for.
    pub stream: u64,
    /// Whether it was freed and waits for other streams.
    pub is_awaited: bool,
}

impl MemoryReport {
    /// A report called `title`, of what an allocator holds and counts. `statistics` should be of the same moment as
    /// `snapshot`: where the program allocated in between, they differ by that.
    pub fn new(title: impl Into<String>, snapshot: &Snapshot, statistics: &Statistics) -> Self {
        let title = title.into();
        let all = &statistics.all;
        let held = || held(snapshot);
        let tags = Tag::ALL.into_iter().filter_map(|tag| {
            let figures = &statistics.tags[tag as usize];
            let (active, blocks) = (figures.active_bytes, held().filter(|(_, block)| block.tag == tag).count());
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
            requested_bytes: all.requested_bytes.into(),
            allocated_bytes: all.allocated_bytes.into(),
            active_bytes: all.active_bytes.into(),
            reserved_bytes: all.reserved_bytes.into(),
            tags: tags.collect(),
            modules: Module::of_blocks(held().map(|(_, block)| block)),
            largest: largest.into_iter().map(|(stream, block)| BlockUse::new(stream, block)).collect(),
            segments: segments::of(snapshot),
            statistics: statistics.flat().into_iter().collect(),
            settings: settings.collect(),
            timeline: timeline::chart(&title, snapshot),
            title,
        }
    }

    /// The same, with the device's own figures.
    #[must_use]
    pub fn on_device(mut self, device: DeviceUse) -> Self {
        self.device = Some(device);
        self
    }

    /// The whole report: one HTML file.
    pub fn html(&self) -> String {
        page::page(self)
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

impl From<Stat> for Figure {
    fn from(Stat { current, peak, .. }: Stat) -> Self {
        Self { current, peak }
    }
}

/// The blocks in use, and the streams that their segments are for.
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
