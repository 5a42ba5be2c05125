//! Records: the parts of a snapshot, folded from its dicts and lists while they are read.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::annotations::{Annotation, Stage};
use super::labels::{DEFAULT_POOL, EventLabel, MemoryPool};
use super::pickle::{Dict, Fold, Interner, StringId, Strings, Value};
use super::segments::{self, BlockState, SnapshotBlock, SnapshotSegment};
use super::stacks::{StackFrame, Stacks};
use super::unread::{DictKind, UnreadEntries};
use super::{EventError, TraceAction, TraceError, TraceEvent, reserve, times};

/// A dict or list that a snapshot's reader needs, by its number in [`Records`].
#[derive(Clone, Copy)]
pub(super) enum SnapshotRecord {
    Event(u32),
    /// An event with an unknown action, by the action's name.
    Skipped(StringId),
    Segment(u32),
    Block(u32),
    Frame(u32),
    Stack(u32),
    Annotation(u32),
}

/// Memory that the allocator held when the snapshot was taken.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) device: u64,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
    pub(super) is_small: bool,
    pub(super) expandable: bool,
    /// The stack under which it was allocated.
    pub(super) stack: u32,
    /// The default pool if the snapshot does not say.
    pub(super) pool: MemoryPool,
    pub(super) blocks: Value,
}

/// A part of a segment.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The address; `None` before PyTorch 2.1, where each block follows the one before it.
    pub(super) address: Option<u64>,
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) state: BlockState,
    /// The stack under which it was allocated.
    pub(super) stack: u32,
    /// The number of its tag; 0 if it has none.
    pub(super) tag: u32,
}

/// The beginning or the end of an annotation.
#[derive(Clone, Copy)]
pub(super) struct AnnotationRecord {
    pub(super) name: StringId,
    pub(super) stage: Stage,
    pub(super) time_us: u64,
    /// The current device, if the recorder says.
    pub(super) device: Option<u64>,
}

/// The tag, the compile context and the pool of an event.
type LabelKey = (Option<StringId>, Option<StringId>, Option<MemoryPool>);

/// The name and the file of a frame, and its line.
type FrameKey = (StringId, StringId, u32);

/// The parts of a snapshot, folded as they are read.
pub(super) struct Records {
    pub(super) events: Vec<TraceEvent>,
    /// The stack of each event.
    pub(super) stacks_of_events: Vec<u32>,
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<Block>,
    pub(super) annotations: Vec<AnnotationRecord>,
    /// The entries of dicts that are not kept.
    pub(super) unread: UnreadEntries,
    block_tags: Vec<StringId>,
    block_tag_numbers: FxHashMap<StringId, u32>,
    /// The events at which the label changes, ascending, and the label from there on. Frees change none.
    pub(super) label_changes: Vec<(u32, u32)>,
    label_numbers: FxHashMap<LabelKey, u32>,
    labels: Vec<LabelKey>,
    frame_numbers: FxHashMap<FrameKey, u32>,
    frames: Vec<FrameKey>,
    stacks: Interner<[u32]>,
    /// The frames of the stack that is being folded.
    stack: Vec<u32>,
    held_bytes: usize,
}

/// Bytes of a frame in both tables.
const FRAME_BYTES: usize = 48;
/// Bytes of a label in both tables.
const LABEL_BYTES: usize = 2 * size_of::<LabelKey>() + size_of::<EventLabel>() + 16;
/// Bytes of an annotation's record, and of the annotation made of it.
const ANNOTATION_BYTES: usize =
    size_of::<AnnotationRecord>() + size_of::<(u64, Stage, Arc<str>)>() + size_of::<Annotation>();
/// Bytes of a block's tag in both tables.
const TAG_BYTES: usize = 3 * size_of::<StringId>() + size_of::<Arc<str>>();
const EVENT_BYTES: usize = size_of::<TraceEvent>() + size_of::<u32>();

impl Records {
    pub(super) fn new() -> Self {
        let mut stacks = Interner::default();
        stacks.add(Vec::new());
        Self {
            events: Vec::new(),
            stacks_of_events: Vec::new(),
            segments: Vec::new(),
            blocks: Vec::new(),
            annotations: Vec::new(),
            unread: UnreadEntries::default(),
            block_tags: Vec::new(),
            block_tag_numbers: FxHashMap::default(),
            label_changes: Vec::new(),
            label_numbers: FxHashMap::default(),
            labels: Vec::new(),
            frame_numbers: FxHashMap::default(),
            frames: Vec::new(),
            stacks,
            stack: Vec::new(),
            held_bytes: 0,
        }
    }

    /// Returns whether any event has a tag, a compile context or a private pool.
    pub(super) fn has_labels(&self) -> bool {
        self.labels.iter().any(|&(tag, context, pool)| {
            tag.is_some() || context.is_some() || pool.is_some_and(|pool| pool != DEFAULT_POOL)
        })
    }

    /// Returns the distinct labels, the empty one first.
    pub(super) fn labels(&self, strings: &Strings) -> Vec<EventLabel> {
        let share = |text: Option<StringId>| text.map(|text| strings.share(text));
        let labels = self.labels.iter().map(|&(tag, compile_context, pool)| EventLabel {
            tag: share(tag),
            compile_context: share(compile_context),
            pool,
        });
        [EventLabel::default()].into_iter().chain(labels).collect()
    }

    /// Returns the distinct tags of blocks, in the order of their numbers, which begin at 1.
    pub(super) fn block_tags(&self, strings: &Strings) -> Vec<Arc<str>> {
        self.block_tags.iter().map(|&tag| strings.share(tag)).collect()
    }

    fn block_tag(&mut self, tag: StringId) -> u32 {
        *self.block_tag_numbers.entry(tag).or_insert_with(|| {
            self.held_bytes += TAG_BYTES;
            self.block_tags.push(tag);
            self.block_tags.len() as u32
        })
    }

    fn label(&mut self, label: LabelKey) {
        let number = *self.label_numbers.entry(label).or_insert_with(|| {
            self.held_bytes += LABEL_BYTES;
            self.labels.push(label);
            self.labels.len() as u32
        });
        if self.label_changes.last().is_none_or(|last| last.1 != number) {
            self.held_bytes += size_of::<(u32, u32)>();
            self.label_changes.push((self.events.len() as u32 - 1, number));
        }
    }

    /// Makes the stacks of events and of `segments`; `of_events` holds each event's stack number.
    pub(super) fn into_stacks(self, of_events: Vec<u32>, segments: &[SnapshotSegment], strings: &Strings) -> Stacks {
        let has_stack =
            |segment: &SnapshotSegment| segment.stack > 0 || segment.blocks.iter().any(|block| block.stack > 0);
        if of_events.iter().all(|&stack| stack == 0) && !segments.iter().any(has_stack) {
            return Stacks::default();
        }
        let frames = self
            .frames
            .iter()
            .map(|&(name, filename, line)| StackFrame {
                name: strings.share(name),
                filename: strings.share(filename),
                line,
            })
            .collect();
        Stacks { of_events, stacks: self.stacks.into_values(), frames }
    }

    fn event(&mut self, dict: &Dict<'_, SnapshotRecord>, index: usize) -> Result<Option<SnapshotRecord>, TraceError> {
        let (mut action, mut address, mut bytes, mut stream, mut time_us) = (None, None, None, None, None);
        let (mut frames, mut tag, mut context, mut pool) = (None, None, None, None);
        let mut has_others = false;
        for (key, value) in dict.iter() {
            match key {
                "action" => action = Some(value),
                // An OOM has no address, but says how much the device had free.
                "addr" | "device_free" => address = Some(value),
                "size" => bytes = Some(value),
                "stream" => stream = Some(value),
                "time_us" => time_us = Some(value),
                "frames" => frames = Some(value),
                "user_metadata" => tag = said(dict, value),
                "compile_context" => context = said(dict, value),
                "pool_id" => pool = pool_of(value),
                _ => has_others = true,
            }
        }
        let Some(action) = action else { return Ok(None) };
        reserve(&mut self.events, 1)?;
        reserve(&mut self.stacks_of_events, 1)?;
        let mut event = || {
            let Value::Str(action) = action else { return Err(EventError::NotAnEvent) };
            let Some(action) = TraceAction::from_name(dict.strings().resolve(action)) else {
                return Ok(SnapshotRecord::Skipped(action));
            };
            let field = |name, value: Option<Value>| value.and_then(Value::as_whole).ok_or(EventError::BadField(name));
            self.events.push(TraceEvent {
                action,
                address: field(if action == TraceAction::Oom { "device_free" } else { "addr" }, address)?,
                bytes: field("size", bytes)?,
                stream: StreamId(field("stream", stream)?),
                // PyTorch before 2.2 had no clock.
                time_us: time_us
                    .map_or(Some(times::MISSING_US), Value::as_time)
                    .ok_or(EventError::BadField("time_us"))?,
            });
            self.stacks_of_events.push(stack_of(dict, frames));
            self.held_bytes += EVENT_BYTES;
            if !matches!(action, TraceAction::FreeRequested | TraceAction::FreeCompleted) {
                self.label((tag, context, pool));
            }
            if has_others {
                self.unread.add(DictKind::Event, dict);
            }
            Ok(SnapshotRecord::Event(self.events.len() as u32 - 1))
        };
        event().map(Some).map_err(|reason| TraceError::Event { index, reason })
    }

    fn frame(&mut self, dict: &Dict<'_, SnapshotRecord>) -> Option<SnapshotRecord> {
        let Value::Str(filename) = dict.find("filename")? else { return None };
        let Value::Str(name) = dict.find("name")? else { return None };
        // An invalid line number counts as missing.
        let line = dict.find("line").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        let frame = (name, filename, line);
        let number = *self.frame_numbers.entry(frame).or_insert_with(|| {
            self.held_bytes += FRAME_BYTES;
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        });
        self.unread.add(DictKind::Frame, dict);
        Some(SnapshotRecord::Frame(number))
    }

    fn segment(&mut self, dict: &Dict<'_, SnapshotRecord>) -> Option<SnapshotRecord> {
        let field = |name| dict.find(name).and_then(Value::as_whole);
        self.segments.push(Segment {
            blocks: dict.find("blocks")?,
            device: field("device")?,
            address: field("address")?,
            bytes: field("total_size")?,
            stream: StreamId(field("stream").unwrap_or(0)),
            is_small: match dict.find("segment_type") {
                Some(Value::Str(kind)) => dict.strings().resolve(kind) == "small",
                _ => segments::is_small(field("total_size")?),
            },
            stack: stack_of(dict, dict.find("frames")),
            expandable: dict.find("is_expandable") == Some(Value::Bool(true)),
            pool: dict.find("segment_pool_id").and_then(pool_of).unwrap_or(DEFAULT_POOL),
        });
        self.unread.add(DictKind::Segment, dict);
        self.held_bytes += size_of::<Segment>() + size_of::<SnapshotSegment>();
        Some(SnapshotRecord::Segment(self.segments.len() as u32 - 1))
    }

    fn block(&mut self, dict: &Dict<'_, SnapshotRecord>) -> Option<SnapshotRecord> {
        let Value::Str(state) = dict.find("state")? else { return None };
        let field = |name| dict.find(name).and_then(Value::as_whole);
        let bytes = field("size")?;
        let tag = dict.find("user_metadata").and_then(|tag| said(dict, tag)).map_or(0, |tag| self.block_tag(tag));
        self.blocks.push(Block {
            address: field("address"),
            bytes,
            // Before version 2.1, PyTorch records only the rounded size.
            requested_bytes: field("requested_size").unwrap_or(bytes),
            state: BlockState::from_name(dict.strings().resolve(state)),
            stack: stack_of(dict, dict.find("frames")),
            tag,
        });
        self.unread.add(DictKind::Block, dict);
        self.held_bytes += size_of::<Block>() + size_of::<SnapshotBlock>();
        Some(SnapshotRecord::Block(self.blocks.len() as u32 - 1))
    }

    fn annotation(&mut self, dict: &Dict<'_, SnapshotRecord>) -> Option<SnapshotRecord> {
        let Value::Str(name) = dict.find("name")? else { return None };
        let time_us = dict.find("time_us")?.as_time()?;
        let stage = match dict.find("stage") {
            Some(Value::Str(stage)) => Stage::from_name(dict.strings().resolve(stage)),
            _ => Stage::Moment,
        };
        let device = dict.find("device").and_then(Value::as_u64);
        self.annotations.push(AnnotationRecord { name, stage, time_us, device });
        self.unread.add(DictKind::Annotation, dict);
        self.held_bytes += ANNOTATION_BYTES;
        Some(SnapshotRecord::Annotation(self.annotations.len() as u32 - 1))
    }
}

/// Returns a text unless it is empty: PyTorch writes an empty one or `N/A` if the program gave none.
fn said(dict: &Dict<'_, SnapshotRecord>, value: Value) -> Option<StringId> {
    match value {
        Value::Str(text) => Some(text).filter(|&text| !matches!(dict.strings().resolve(text), "" | "N/A")),
        _ => None,
    }
}

fn pool_of(value: Value) -> Option<MemoryPool> {
    match value {
        Value::Pair(first, second) => Some((first, second)),
        _ => None,
    }
}

/// Returns the number of the stack that a dict's `frames` were folded into; 0 if there are none.
fn stack_of(dict: &Dict<'_, SnapshotRecord>, frames: Option<Value>) -> u32 {
    match frames.and_then(|frames| dict.record(frames)) {
        Some(SnapshotRecord::Stack(stack)) => stack,
        _ => 0,
    }
}

impl Fold for Records {
    type Record = SnapshotRecord;

    fn list(&mut self, key: &str, records: impl Iterator<Item = SnapshotRecord>) -> Option<SnapshotRecord> {
        if key != "frames" {
            return None;
        }
        self.stack.clear();
        self.stack.extend(records.filter_map(|record| match record {
            SnapshotRecord::Frame(frame) => Some(frame),
            _ => None,
        }));
        let stack = self.stack.as_slice();
        let number = self.stacks.find(stack).unwrap_or_else(|| {
            self.held_bytes += size_of_val(stack) + Interner::<[u32]>::ENTRY_BYTES;
            self.stacks.add(Arc::<[u32]>::from(stack))
        });
        Some(SnapshotRecord::Stack(number))
    }

    fn dict(&mut self, dict: &Dict<'_, SnapshotRecord>, position: usize) -> Result<Option<SnapshotRecord>, TraceError> {
        let record = self.event(dict, position)?;
        let record = record.or_else(|| self.frame(dict));
        let record = record.or_else(|| self.segment(dict)).or_else(|| self.block(dict));
        Ok(record.or_else(|| self.annotation(dict)))
    }

    fn held_bytes(&self) -> u64 {
        self.held_bytes as u64
    }
}
