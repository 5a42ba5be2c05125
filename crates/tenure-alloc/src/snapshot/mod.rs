//! Snapshots of an allocator's memory, in the shape of PyTorch's `torch.cuda.memory._snapshot()`.

pub mod pickle;

use std::cmp::Reverse;
use std::io;

use rustc_hash::FxHashMap;
use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, History, HistoryAction, HistoryContext, HistoryEvent, PoolId, PoolKind};
use pickle::PickleWriter;

/// A snapshot: all memory that an allocator holds, and its history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Every segment, by address.
    pub segments: Vec<Segment>,
    /// The history of each device, oldest event first: `device_traces[device]`.
    pub device_traces: Vec<Vec<HistoryEvent>>,
    /// The allocator's settings, by PyTorch's names where they are PyTorch's.
    pub settings: Vec<(&'static str, Setting)>,
    /// The annotations that the program added to the history.
    pub annotations: Vec<SnapshotAnnotation>,
}

/// A run of memory held from the backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's number.
    pub device: u32,
    /// The first byte.
    pub address: Address,
    /// The stream that its blocks are for.
    pub stream: StreamId,
    /// The kind of its pool, small or large.
    pub kind: PoolKind,
    /// The private pool it belongs to; (0, 0) is the common one.
    pub pool: PoolId,
    /// Its number in the order in which the allocator made segments. It is the same in every process that makes the
    /// same requests. 0 for memory that was not made as one segment.
    pub made: u64,
    /// Whether it is made of chunks mapped into reserved address space.
    pub is_expandable: bool,
    /// Whether the memory was donated from outside ([`Donated`](crate::adaptor::Donated)). PyTorch's snapshots do not
    /// contain this.
    pub is_external: bool,
    /// The context of the allocation for which it was made, if that is kept.
    pub context: Option<HistoryContext>,
    /// Its blocks, by address. They cover it without a gap.
    pub blocks: Vec<SnapshotBlock>,
}

/// A block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// The first byte.
    pub address: Address,
    /// The size in bytes.
    pub bytes: u64,
    /// The bytes that its last user requested.
    pub requested: u64,
    /// The state of the block.
    pub state: SnapshotState,
    /// The block's purpose.
    pub tag: Tag,
    /// The block's identity.
    pub key: KeyId,
    /// The context of its allocation, while it is in use and if that is kept.
    pub context: Option<HistoryContext>,
}

/// The state of a block in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// The block is live.
    Allocated,
    /// The block was freed, but other streams may still use it.
    PendingFree,
    /// The block is free.
    Inactive,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// On or off.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// Numbers by name.
    Table(Vec<(String, i64)>),
}

/// An annotation that the program added to the history. PyTorch's `AnnotationEntry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotAnnotation {
    /// The number of the device that was current.
    pub device: u32,
    /// The time by the history's clock, in µs.
    pub time_us: u64,
    /// The program's names and values. `record_function` gives a `name`, and a `stage`, which is `START` or `END`.
    pub metadata: Vec<(String, String)>,
}

impl Segment {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    fn bytes_where(&self, predicate: impl Fn(SnapshotState) -> bool) -> u64 {
        self.blocks.iter().filter(|block| predicate(block.state)).map(|block| block.bytes).sum()
    }
}

impl SnapshotState {
    fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::PendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

impl Snapshot {
    /// Takes a snapshot of the `segments` that are in `pool`, given in any order, of the `device`'s allocator. Adds
    /// contexts from `history`, and its events if `traces`; then records that the snapshot was taken.
    pub(crate) fn take(
        mut segments: Vec<Segment>,
        device: u32,
        settings: Vec<(&'static str, Setting)>,
        history: &History,
        pool: Option<PoolId>,
        traces: bool,
    ) -> Self {
        let pool = pool.unwrap_or_default();
        segments.retain(|segment| pool == PoolId::default() || segment.pool == pool);
        segments.sort_by_key(|segment| segment.address);
        history.add_contexts(&mut segments);
        let mut device_traces = vec![Vec::new(); device as usize + 1];
        let mut annotations = Vec::new();
        if traces {
            device_traces[device as usize] = history.events();
            annotations = history.annotations();
        }
        history.record(|| {
            let active =
                segments.iter().map(|segment| segment.bytes_where(|state| state != SnapshotState::Inactive)).sum();
            HistoryEvent::new(HistoryAction::Snapshot, 0, active, StreamId::NULL).in_pool(pool)
        });
        Self { segments, device_traces, settings, annotations }
    }

    /// Writes the snapshot as the pickle that `torch.cuda.memory._dump_snapshot` writes, for PyTorch's tools to open.
    /// The tag and the key of an event go where PyTorch puts the program's own metadata.
    pub fn write_pickle<W: io::Write>(&self, out: W) -> io::Result<()> {
        let mut writer = PickleWriter::new(out)?;
        writer.dict(|writer| {
            writer.text("segments")?;
            writer.list(|writer| self.segments.iter().try_for_each(|segment| write_segment(writer, segment)))?;
            writer.text("device_traces")?;
            writer.list(|writer| self.device_traces.iter().try_for_each(|trace| write_trace(writer, trace)))?;
            writer.text("allocator_settings")?;
            writer.dict(|writer| self.settings.iter().try_for_each(|setting| write_setting(writer, setting)))?;
            writer.text("external_annotations")?;
            writer.list(|writer| self.annotations.iter().try_for_each(|mark| write_annotation(writer, mark)))
        })?;
        writer.finish().map(drop)
    }
}

/// The live blocks of one tag and key together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The purpose of the blocks.
    pub tag: Tag,
    /// The key of the blocks; [`KeyId::NONE`] if the program gave none.
    pub key: KeyId,
    /// The bytes set aside for them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: usize,
}

impl Snapshot {
    /// Returns the `limit` holders of the most bytes, largest first. Blocks that were freed and wait for other streams
    /// count too, because they still hold their memory.
    pub fn holders(&self, limit: usize) -> Vec<Holder> {
        let mut held: FxHashMap<(Tag, KeyId), (u64, usize)> = FxHashMap::default();
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state != SnapshotState::Inactive) {
            let (bytes, count) = held.entry((block.tag, block.key)).or_default();
            *bytes += block.bytes;
            *count += 1;
        }
        let mut holders: Vec<Holder> =
            held.into_iter().map(|((tag, key), (bytes, blocks))| Holder { tag, key, bytes, blocks }).collect();
        // The rest of the order only keeps the report the same from run to run.
        holders.sort_unstable_by_key(|holder| (Reverse(holder.bytes), holder.tag as usize, holder.key));
        holders.truncate(limit);
        holders
    }
}

fn write_segment<W: io::Write>(writer: &mut PickleWriter<W>, segment: &Segment) -> io::Result<()> {
    writer.dict(|writer| {
        writer.entry("device", segment.device)?;
        writer.entry("address", segment.address)?;
        writer.entry("total_size", segment.bytes())?;
        writer.entry("allocated_size", segment.bytes_where(|state| state == SnapshotState::Allocated))?;
        writer.entry("active_size", segment.bytes_where(|state| state != SnapshotState::Inactive))?;
        let held = segment.blocks.iter().filter(|block| block.state != SnapshotState::Inactive);
        writer.entry("requested_size", held.map(|block| block.requested).sum::<u64>())?;
        writer.entry("stream", segment.stream.0)?;
        writer.text_entry("segment_type", if segment.kind == PoolKind::Small { "small" } else { "large" })?;
        writer.text("segment_pool_id")?;
        writer.pair(|writer| writer.integer(segment.pool.0), |writer| writer.integer(segment.pool.1))?;
        writer.text("is_expandable")?;
        writer.flag(segment.is_expandable)?;
        writer.text("frames")?;
        writer.list(|_| Ok(()))?;
        writer.text("blocks")?;
        writer.list(|writer| segment.blocks.iter().try_for_each(|block| write_block(writer, block)))
    })
}

fn write_block<W: io::Write>(writer: &mut PickleWriter<W>, block: &SnapshotBlock) -> io::Result<()> {
    writer.dict(|writer| {
        writer.entry("address", block.address)?;
        writer.entry("size", block.bytes)?;
        writer.entry("requested_size", block.requested)?;
        writer.text_entry("state", block.state.name())?;
        writer.text("frames")?;
        writer.list(|_| Ok(()))
    })
}

fn write_trace<W: io::Write>(writer: &mut PickleWriter<W>, trace: &[HistoryEvent]) -> io::Result<()> {
    writer.list(|writer| trace.iter().try_for_each(|event| write_event(writer, event)))
}

fn write_event<W: io::Write>(writer: &mut PickleWriter<W>, event: &HistoryEvent) -> io::Result<()> {
    writer.dict(|writer| {
        writer.text_entry("action", event.action.name())?;
        writer.entry(if event.action == HistoryAction::OutOfMemory { "device_free" } else { "addr" }, event.address)?;
        writer.entry("size", event.bytes)?;
        writer.entry("stream", event.stream.0)?;
        writer.entry("time_us", event.time_us)?;
        writer.text_entry("compile_context", "N/A")?;
        writer.text_entry("user_metadata", &metadata(event.tag, event.key))?;
        writer.text("frames")?;
        writer.list(|_| Ok(()))
    })
}

fn write_setting<W: io::Write>(writer: &mut PickleWriter<W>, (name, value): &(&str, Setting)) -> io::Result<()> {
    writer.text(name)?;
    match value {
        Setting::Flag(value) => writer.flag(*value),
        Setting::Integer(value) => writer.integer(*value),
        Setting::Number(value) => writer.float(*value),
        Setting::Text(value) => writer.text(value),
        Setting::Table(rows) => {
            writer.dict(|writer| rows.iter().try_for_each(|(name, value)| writer.entry(name, *value)))
        }
    }
}

fn write_annotation<W: io::Write>(writer: &mut PickleWriter<W>, mark: &SnapshotAnnotation) -> io::Result<()> {
    writer.dict(|writer| {
        mark.metadata.iter().try_for_each(|(name, value)| writer.text_entry(name, value))?;
        writer.entry("device", mark.device)?;
        writer.entry("time_us", mark.time_us)
    })
}

/// Returns a tag and a key in words, such as `weight encoder/matmul/out#0`, or an empty string if there is neither.
fn metadata(tag: Tag, key: KeyId) -> String {
    match (tag, key.key()) {
        (Tag::Unknown, None) => String::new(),
        (tag, None) => tag.to_string(),
        (Tag::Unknown, Some(key)) => key.to_string(),
        (tag, Some(key)) => format!("{tag} {key}"),
    }
}
