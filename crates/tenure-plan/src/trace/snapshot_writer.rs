//! Writes traces as PyTorch's memory snapshots.

use std::borrow::Cow;
use std::io::{self, Write};

use tenure_alloc::snapshot::pickle::PickleWriter;

use super::annotations::Annotation;
use super::labels::MemoryPool;
use super::segments::SegmentState;
use super::settings::OtherSetting;
use super::unread::EARLIER_EVENTS;
use super::{BlockState, Settings, SnapshotBlock, SnapshotSegment, Stacks, Trace, TraceAction};

/// Writes a snapshot that holds `trace` as its device's history, which begins with the earlier state. If the trace has no
/// list of segments, its events give them.
pub(super) fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut writer = PickleWriter::new(out)?;
    let mut stacks = WrittenStacks::new(&trace.stacks);
    let segments = match trace.segments.as_slice() {
        [] => Cow::Owned(SegmentState::after(&trace.events).segments(trace.device.into())),
        segments => Cow::Borrowed(segments),
    };
    writer.dict(|writer| {
        writer.text("segments")?;
        writer.list(|writer| {
            segments.iter().try_for_each(|segment| write_segment(writer, &mut stacks, trace, segment))
        })?;
        writer.text("device_traces")?;
        writer.list(|writer| {
            (0..trace.device).try_for_each(|_| writer.list(|_| Ok(())))?;
            writer.list(|writer| {
                (0..trace.events.len()).try_for_each(|index| write_event(writer, &mut stacks, trace, index))
            })
        })?;
        writer.text("allocator_settings")?;
        writer.dict(|writer| write_settings(writer, &trace.settings, &trace.other_settings))?;
        writer.text("external_annotations")?;
        writer.list(|writer| {
            trace.annotations.iter().try_for_each(|annotation| write_annotation(writer, trace.device, annotation))
        })?;
        writer.entry(EARLIER_EVENTS, trace.earlier_events as u64)
    })?;
    writer.finish()?.flush()
}

/// The stacks and frames that a pickle holds already. Each is written once, and its memo number is written afterwards.
struct WrittenStacks<'a> {
    stacks: &'a Stacks,
    of_stacks: Vec<Option<u32>>,
    of_frames: Vec<Option<u32>>,
}

impl<'a> WrittenStacks<'a> {
    fn new(stacks: &'a Stacks) -> Self {
        Self { stacks, of_stacks: vec![None; stacks.stacks.len()], of_frames: vec![None; stacks.frames.len()] }
    }

    /// Writes the entry `frames` of a dict, unless the trace has no stacks.
    fn write_entry<W: Write>(&mut self, writer: &mut PickleWriter<W>, stack: u32) -> io::Result<()> {
        let Some(&written) = self.of_stacks.get(stack as usize) else { return Ok(()) };
        writer.text("frames")?;
        if let Some(memoized) = written {
            return writer.fetch(memoized);
        }
        let Self { stacks, of_frames, .. } = self;
        writer.list(|writer| {
            for &number in stacks.stacks[stack as usize].iter() {
                let frame = &stacks.frames[number as usize];
                match of_frames[number as usize] {
                    Some(memoized) => writer.fetch(memoized)?,
                    None => {
                        writer.dict(|writer| {
                            writer.text_entry("name", &frame.name)?;
                            writer.text_entry("filename", &frame.filename)?;
                            writer.entry("line", frame.line)
                        })?;
                        of_frames[number as usize] = Some(writer.memoize()?);
                    }
                }
            }
            Ok(())
        })?;
        self.of_stacks[stack as usize] = Some(writer.memoize()?);
        Ok(())
    }
}

fn write_event<W: Write>(
    writer: &mut PickleWriter<W>,
    stacks: &mut WrittenStacks<'_>,
    trace: &Trace,
    index: usize,
) -> io::Result<()> {
    let event = &trace.events[index];
    let label = trace.labels.of_event(index);
    writer.dict(|writer| {
        writer.text_entry("action", event.action.name())?;
        writer.entry(if event.action == TraceAction::Oom { "device_free" } else { "addr" }, event.address)?;
        writer.entry("size", event.bytes)?;
        writer.entry("stream", event.stream.0)?;
        writer.entry("time_us", event.time_us)?;
        // PyTorch's viewer requires both keys.
        let context = label.and_then(|label| label.compile_context.as_deref());
        writer.text_entry("compile_context", context.unwrap_or("N/A"))?;
        writer.text_entry("user_metadata", label.and_then(|label| label.tag.as_deref()).unwrap_or(""))?;
        if let Some(pool) = label.and_then(|label| label.pool) {
            write_pool(writer, "pool_id", pool)?;
        }
        stacks.write_entry(writer, stacks.stacks.number_of_event(index))
    })
}

fn write_pool<W: Write>(writer: &mut PickleWriter<W>, key: &str, pool: MemoryPool) -> io::Result<()> {
    writer.text(key)?;
    writer.pair(|writer| writer.integer(pool.0), |writer| writer.integer(pool.1))
}

fn write_segment<W: Write>(
    writer: &mut PickleWriter<W>,
    stacks: &mut WrittenStacks<'_>,
    trace: &Trace,
    segment: &SnapshotSegment,
) -> io::Result<()> {
    let sum = |bytes: fn(&SnapshotBlock) -> u64, is_counted: fn(BlockState) -> bool| {
        segment.blocks.iter().filter(|block| is_counted(block.state)).map(bytes).fold(0, u64::saturating_add)
    };
    writer.dict(|writer| {
        writer.entry("device", segment.device)?;
        writer.entry("address", segment.address)?;
        writer.entry("total_size", segment.bytes)?;
        writer.entry("allocated_size", sum(|block| block.bytes, |state| state == BlockState::Allocated))?;
        writer.entry("active_size", sum(|block| block.bytes, BlockState::is_live))?;
        writer.entry("requested_size", sum(|block| block.requested_bytes, BlockState::is_live))?;
        writer.entry("stream", segment.stream.0)?;
        writer.text_entry("segment_type", if segment.is_small { "small" } else { "large" })?;
        write_pool(writer, "segment_pool_id", segment.pool)?;
        writer.text("is_expandable")?;
        writer.flag(segment.is_expandable)?;
        stacks.write_entry(writer, segment.stack)?;
        writer.text("blocks")?;
        writer.list(|writer| segment.blocks.iter().try_for_each(|block| write_block(writer, stacks, trace, block)))
    })
}

fn write_block<W: Write>(
    writer: &mut PickleWriter<W>,
    stacks: &mut WrittenStacks<'_>,
    trace: &Trace,
    block: &SnapshotBlock,
) -> io::Result<()> {
    writer.dict(|writer| {
        writer.entry("address", block.address)?;
        writer.entry("size", block.bytes)?;
        writer.entry("requested_size", block.requested_bytes)?;
        writer.text_entry("state", block.state.name())?;
        if let Some(tag) = trace.block_tag(block) {
            writer.text_entry("user_metadata", tag)?;
        }
        stacks.write_entry(writer, block.stack)
    })
}

/// Writes the records of an annotation's beginning and end.
fn write_annotation<W: Write>(writer: &mut PickleWriter<W>, device: u32, annotation: &Annotation) -> io::Result<()> {
    for (stage, time_us) in [("START", annotation.begin_us), ("END", annotation.end_us)] {
        if let Some(time_us) = time_us {
            writer.dict(|writer| {
                writer.text_entry("stage", stage)?;
                writer.text_entry("name", &annotation.name)?;
                writer.entry("device", device)?;
                writer.entry("time_us", time_us)
            })?;
        }
    }
    Ok(())
}

fn write_settings<W: Write>(
    writer: &mut PickleWriter<W>,
    settings: &Settings,
    others: &[(String, OtherSetting)],
) -> io::Result<()> {
    writer.text_entry("PYTORCH_CUDA_ALLOC_CONF", &settings.conf)?;
    match settings.max_split_size_bytes {
        Some(bytes) => writer.entry("max_split_size", bytes)?,
        None => writer.entry("max_split_size", -1)?,
    }
    writer.text("garbage_collection_threshold")?;
    writer.float(settings.garbage_collection_threshold)?;
    writer.text("expandable_segments")?;
    writer.flag(settings.expandable_segments)?;
    for (key, value) in others {
        writer.text(key)?;
        match value {
            OtherSetting::Flag(on) => writer.flag(*on)?,
            OtherSetting::Integer(value) => writer.integer(*value)?,
            OtherSetting::Float(value) => writer.float(*value)?,
            OtherSetting::Text(text) => writer.text(text)?,
        }
    }
    writer.text("roundup_power2_divisions")?;
    writer.dict(|writer| {
        let intervals = settings.roundup_power2_divisions.iter().enumerate();
        intervals
            .into_iter()
            .try_for_each(|(interval, &divisions)| writer.entry(&(1u64 << interval).to_string(), divisions))
    })
}
