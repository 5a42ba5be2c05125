//! Tenure's own trace format; `docs/reference/trace-format.md` documents it byte by byte.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::history::Additions;
use super::{Input, ReadOptions, Settings, Trace, TraceAction, TraceError, TraceEvent, reserve};

pub(super) const MAGIC: [u8; 8] = *b"\x89TTRACE\n";
const VERSION: u16 = 1;
/// Events in a full block.
const BLOCK_EVENTS: usize = 4096;
/// The most bytes that an event takes: a head byte and four integers of up to ten bytes.
const EVENT_BYTES: usize = 41;
const HEADER_LIMIT: usize = 16 << 20;

/// Flags of the header.
const EXPANDABLE: u8 = 1;
const SPLIT_LIMIT: u8 = 2;
/// The history began late: the header counts the events that recreate the earlier state.
const LATE: u8 = 4;

const ACTION_MASK: u8 = 0x0f;
/// The stream is the previous event's.
const SAME_STREAM: u8 = 0x10;
/// Address and size are the previous event's.
const SAME_RANGE: u8 = 0x20;
/// The address differs from the previous one by whole multiples of 512.
const ALIGNED: u8 = 0x40;
const ALIGNMENT: i64 = 512;

/// Writes `trace`.
pub(super) fn write(trace: &Trace, mut out: impl Write) -> io::Result<()> {
    let streams = StreamTable::of(&trace.events);
    let header = encode_header(trace, &streams.ids);
    let length = u32::try_from(header.len()).ok().filter(|&length| length as usize <= HEADER_LIMIT);
    let length = length.ok_or_else(|| io::Error::other("the trace's names, settings and streams are too long"))?;
    let mut start = MAGIC.to_vec();
    start.extend(VERSION.to_le_bytes());
    start.extend(length.to_le_bytes());
    start.extend(header);
    write_checked(&mut out, &start)?;

    let mut previous = TraceEvent::before_first();
    for events in trace.events.chunks(BLOCK_EVENTS) {
        let mut payload = Vec::with_capacity(events.len() * 8);
        for event in events {
            encode_event(&mut payload, &streams, &previous, event);
            previous = *event;
        }
        write_block(&mut out, events.len(), &payload)?;
    }
    write_block(&mut out, 0, &[])?;
    out.flush()
}

/// Reads a trace after its magic number has been recognised but not consumed.
pub(super) fn read(input: &mut Input<'_>, options: &ReadOptions) -> Result<Trace, TraceError> {
    let header = read_header(input)?;
    if let Some(device) = options.device.filter(|&device| device != header.device) {
        let reason = format!("it has no device {device}: it is of device {}", header.device);
        return Err(TraceError::NoTrace { reason });
    }
    let mut events = Vec::new();
    let mut previous = TraceEvent::before_first();
    let mut payload = Vec::new();
    loop {
        let start = input.offset();
        let count = read_block(input, &mut payload)?;
        if count == 0 && events.len() as u64 == header.events {
            break;
        }
        if count == 0 {
            let reason = format!("it ends {} events, and the header promises {}", events.len(), header.events);
            return Err(TraceError::Compact { offset: start, reason });
        }
        if ((events.len() + count) * size_of::<TraceEvent>()) as u64 > options.memory_bytes {
            return Err(TraceError::TooLarge { offset: start, what: "events", limit: options.memory_bytes });
        }
        let mut fields = Fields { bytes: &payload, block: start };
        reserve(&mut events, count)?;
        for _ in 0..count {
            previous = decode_event(&mut fields, &header.streams, &previous)?;
            events.push(previous);
        }
        fields.finish()?;
    }
    input.finish()?;
    let additions = Additions::recorded(events.len(), header.earlier).ok_or_else(|| TraceError::Compact {
        offset: 0,
        reason: format!("of {} events it calls {} earlier ones", header.events, header.earlier),
    })?;
    Trace::completed(header.source, header.device, header.settings, events, &additions)
}

impl TraceEvent {
    /// Returns the values to which the first event is relative.
    fn before_first() -> Self {
        Self { time_us: 0, address: 0, bytes: 0, stream: StreamId::NULL, action: TraceAction::Alloc }
    }
}

/// The streams of a trace, numbered in order of appearance.
struct StreamTable {
    ids: Vec<StreamId>,
    indices: FxHashMap<StreamId, u64>,
}

impl StreamTable {
    fn of(events: &[TraceEvent]) -> Self {
        let mut table = Self { ids: Vec::new(), indices: FxHashMap::default() };
        for event in events {
            table.indices.entry(event.stream).or_insert_with(|| {
                table.ids.push(event.stream);
                (table.ids.len() - 1) as u64
            });
        }
        table
    }
}

struct TraceHeader {
    device: u32,
    source: String,
    settings: Settings,
    streams: Vec<StreamId>,
    events: u64,
    earlier: u64,
}

fn encode_header(trace: &Trace, streams: &[StreamId]) -> Vec<u8> {
    let Settings {
        conf,
        max_split_size_bytes,
        garbage_collection_threshold,
        expandable_segments,
        roundup_power2_divisions,
    } = &trace.settings;
    let mut out = Vec::new();
    put_varint(&mut out, trace.device.into());
    put_text(&mut out, &trace.source);
    put_text(&mut out, conf);
    let begins_late = trace.earlier_events > 0;
    let flags =
        [(*expandable_segments, EXPANDABLE), (max_split_size_bytes.is_some(), SPLIT_LIMIT), (begins_late, LATE)];
    out.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    put_varint(&mut out, max_split_size_bytes.unwrap_or(0));
    out.extend(garbage_collection_threshold.to_le_bytes());
    for &divisions in roundup_power2_divisions {
        put_varint(&mut out, divisions.into());
    }
    put_varint(&mut out, streams.len() as u64);
    for stream in streams {
        put_varint(&mut out, stream.0);
    }
    put_varint(&mut out, trace.events.len() as u64);
    if begins_late {
        put_varint(&mut out, trace.earlier_events as u64);
    }
    out
}

fn read_header(input: &mut Input<'_>) -> Result<TraceHeader, TraceError> {
    let mut checked = input.array::<8>()?.to_vec();
    let version = input.array()?;
    if u16::from_le_bytes(version) != VERSION {
        return Err(TraceError::Version { found: u16::from_le_bytes(version), known: VERSION });
    }
    let length: [u8; 4] = input.array()?;
    checked.extend(version);
    checked.extend(length);
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_LIMIT {
        return Err(TraceError::TooLarge { offset: 10, what: "the header", limit: HEADER_LIMIT as u64 });
    }
    let mut payload = Vec::new();
    input.exactly(length, &mut payload)?;
    checked.extend(&payload);
    check(input, crc32fast::hash(&checked), 0)?;

    let mut fields = Fields { bytes: &payload, block: 0 };
    let device = fields.small("device")?;
    let source = fields.text()?;
    let conf = fields.text()?;
    let flags = fields.byte()?;
    if flags & !(EXPANDABLE | SPLIT_LIMIT | LATE) != 0 {
        return Err(fields.error("unknown flags"));
    }
    let max_split_size_bytes = Some(fields.varint()?).filter(|_| flags & SPLIT_LIMIT != 0);
    let garbage_collection_threshold = f64::from_le_bytes(fields.array()?);
    let mut roundup_power2_divisions = [0; Settings::ROUNDUP_INTERVALS];
    for divisions in &mut roundup_power2_divisions {
        *divisions = fields.small("number of divisions")?;
    }
    // A wrong count cannot read past the header's bytes.
    let count = fields.varint()?;
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(StreamId(fields.varint()?));
    }
    let events = fields.varint()?;
    let earlier = if flags & LATE != 0 { fields.varint()? } else { 0 };
    fields.finish()?;
    let settings = Settings {
        conf,
        max_split_size_bytes,
        garbage_collection_threshold,
        expandable_segments: flags & EXPANDABLE != 0,
        roundup_power2_divisions,
    };
    Ok(TraceHeader { device, source, settings, streams, events, earlier })
}

fn encode_event(out: &mut Vec<u8>, streams: &StreamTable, previous: &TraceEvent, event: &TraceEvent) {
    let mut head = event.action as u8;
    let delta = event.address.wrapping_sub(previous.address) as i64;
    let same_range = event.address == previous.address && event.bytes == previous.bytes;
    let aligned = !same_range && delta % ALIGNMENT == 0;
    head |= if event.stream == previous.stream { SAME_STREAM } else { 0 };
    head |= if same_range { SAME_RANGE } else { 0 };
    head |= if aligned { ALIGNED } else { 0 };
    out.push(head);
    put_varint(out, event.time_us - previous.time_us);
    if event.stream != previous.stream {
        put_varint(out, streams.indices[&event.stream]);
    }
    if !same_range {
        let delta = if aligned { delta / ALIGNMENT } else { delta };
        put_varint(out, (delta << 1 ^ delta >> 63) as u64);
        put_varint(out, event.bytes);
    }
}

fn decode_event(
    fields: &mut Fields<'_>,
    streams: &[StreamId],
    previous: &TraceEvent,
) -> Result<TraceEvent, TraceError> {
    let head = fields.byte()?;
    let action = TraceAction::ALL.get(usize::from(head & ACTION_MASK)).copied();
    let action = action.ok_or_else(|| fields.error("unknown action"))?;
    let legal_flags = SAME_STREAM | if head & SAME_RANGE != 0 { SAME_RANGE } else { ALIGNED };
    if head & !ACTION_MASK & !legal_flags != 0 {
        return Err(fields.error("unknown flags"));
    }
    let elapsed_us = fields.varint()?;
    let time_us = previous.time_us.checked_add(elapsed_us).ok_or_else(|| fields.error("time overflows"))?;
    let stream = if head & SAME_STREAM != 0 {
        previous.stream
    } else {
        let index = usize::try_from(fields.varint()?).unwrap_or(usize::MAX);
        *streams.get(index).ok_or_else(|| fields.error("unknown stream"))?
    };
    let (address, bytes) = if head & SAME_RANGE != 0 {
        (previous.address, previous.bytes)
    } else {
        let zigzag = fields.varint()?;
        let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let delta = if head & ALIGNED != 0 { delta.wrapping_mul(ALIGNMENT) } else { delta };
        (previous.address.wrapping_add(delta as u64), fields.varint()?)
    };
    Ok(TraceEvent { time_us, address, bytes, stream, action })
}

fn write_block(out: &mut impl Write, count: usize, payload: &[u8]) -> io::Result<()> {
    // At most BLOCK_EVENTS events of EVENT_BYTES bytes.
    let mut block = Vec::with_capacity(payload.len() + 8);
    block.extend((count as u32).to_le_bytes());
    block.extend((payload.len() as u32).to_le_bytes());
    block.extend(payload);
    write_checked(out, &block)
}

/// Reads the payload of the next block and returns the number of its events.
fn read_block(input: &mut Input<'_>, payload: &mut Vec<u8>) -> Result<usize, TraceError> {
    let start = input.offset();
    let head: [u8; 8] = input.array()?;
    let [c0, c1, c2, c3, l0, l1, l2, l3] = head;
    let count = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if count > BLOCK_EVENTS || length > count * EVENT_BYTES {
        let reason = format!("it cannot hold {count} events in {length} bytes");
        return Err(TraceError::Compact { offset: start, reason });
    }
    input.exactly(length, payload)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head);
    hasher.update(payload);
    check(input, hasher.finalize(), start)?;
    Ok(count)
}

fn write_checked(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.write_all(&crc32fast::hash(bytes).to_le_bytes())
}

fn check(input: &mut Input<'_>, checksum: u32, start: u64) -> Result<(), TraceError> {
    if u32::from_le_bytes(input.array()?) == checksum {
        return Ok(());
    }
    Err(TraceError::Compact { offset: start, reason: "its checksum is wrong".into() })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend(text.as_bytes());
}

/// Writes seven bits per byte, lowest first; the top bit says that more follow (LEB128).
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The fields of a header or block whose checksum is correct.
struct Fields<'a> {
    bytes: &'a [u8],
    /// The offset at which the header or block begins.
    block: u64,
}

impl<'a> Fields<'a> {
    fn error(&self, what: &str) -> TraceError {
        TraceError::Compact { offset: self.block, reason: what.into() }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], TraceError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| self.error("too few bytes"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        Ok(self.array::<1>()?[0])
    }

    fn varint(&mut self) -> Result<u64, TraceError> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error("an integer of more than 64 bits"))
    }

    fn small(&mut self, what: &str) -> Result<u32, TraceError> {
        u32::try_from(self.varint()?).map_err(|_| self.error(&format!("a {what} of more than 32 bits")))
    }

    fn text(&mut self) -> Result<String, TraceError> {
        let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| self.error("a text that is not UTF-8"))?;
        Ok(text.into())
    }

    fn finish(&self) -> Result<(), TraceError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.error("too many bytes")) }
    }
}
