//! The data of the page: columns of variable-length integers, deflated, in base64.
//!
//! The layout follows; `viewer.js` reads it in the same order. Every number is an unsigned LEB128 integer, and *signed*
//! ones are zigzag-encoded:
//!
//! | table | columns, each written whole |
//! | --- | --- |
//! | span | from, to (event numbers); events from before the history |
//! | strings | count; for each: bytes, UTF-8 text |
//! | frames | count; function (string), file (string), line |
//! | stacks | count; frames of each; then all frames, the innermost of a stack first |
//! | streams | count; string of each |
//! | blocks | count; events since the block before was made; events it lived + 1, or 0; bytes; signed difference of the address's lower 52 bits; its upper 12; stream; stack + 1 |
//! | sum of the others | blocks; count; events since the step before; signed difference of bytes |
//! | segments | as blocks, without stacks |
//! | times | µs by which interpolated times may be off; count; events since the one before; µs since the one before |
//! | marks | count; events since the one before; action and its tag (string) |
//! | annotations | count; events since the one before began; events it lasted; name (string) |
//! | labels | count; tag (string + 1); compile context (string + 1); pool (string + 1); if there are any, label + 1 of each block and then of each segment |

use tenure_plan::Trace;

use super::annotations::AnnotationSpans;
use super::columns::{deflated, differences, put, put_column, signed_differences};
use super::history::{BlockHistory, Life, Summed};
use super::labels::Labels;
use super::overview::{Colors, overview};
use super::tables::Tables;
use super::times::Times;

/// The most blocks: the browser sorts them by a number of 53 bits, 32 of an event and 21 of a block.
const MOST_BLOCKS: usize = 1 << 21;
/// The most steps in the sum of the blocks that are left out.
const MOST_STEPS: usize = 200_000;
/// While everything fits, times may take the size limit divided by this.
const TIME_SHARE: usize = 8;
/// If blocks are left out, times may take the size limit divided by this.
const SMALL_TIME_SHARE: usize = 32;
/// Annotations may take the size limit divided by this.
const ANNOTATION_SHARE: usize = 16;
/// The most characters of a tag that a mark shows, since a page has up to a thousand marks.
const MOST_MARK_CHARACTERS: usize = 40;
/// Integers are exact in the browser below 2^53. Real sizes are smaller; addresses are written in two parts.
const EXACT_BITS: u32 = 52;
const MOST: u64 = (1 << EXACT_BITS) - 1;
/// Segments may take the size limit divided by this, and the bytes that blocks leave.
const SEGMENT_SHARE: f64 = 4.0;

/// Packed data, and the counts of what it holds.
#[derive(Default)]
pub(super) struct Packed {
    /// The columns, in base64.
    pub(super) text: String,
    /// The overview, in base64.
    pub(super) overview: String,
    pub(super) kept: usize,
    pub(super) kept_segments: usize,
    pub(super) summed: Summed,
    pub(super) kept_annotations: usize,
    /// The number of annotations in the shown part.
    pub(super) annotations: usize,
    /// The share of the columns' bytes that segments take.
    segment_share: f64,
}

/// Packs as many blocks and segments as fit into `budget` bytes.
pub(super) fn within(trace: &Trace, history: &BlockHistory, budget: usize) -> Packed {
    let blocks = history.by_weight(&history.blocks);
    let segments = history.by_weight(&history.segments);
    let mut times = Times::within(trace.events(), &history.span, budget / TIME_SHARE);
    let spans = AnnotationSpans::within(trace, &history.span, budget / ANNOTATION_SHARE);
    let mut has_small_times = false;
    // A block takes two to ten bytes.
    let mut count = blocks.len().min(budget / 2).min(MOST_BLOCKS);
    let mut segment_count = segments.len().min(budget / 2);
    let mut steps = MOST_STEPS.min(budget / 16);
    loop {
        let packed = pack(trace, history, &blocks[..count], &segments[..segment_count], steps, &times, &spans);
        let length = packed.text.len() + packed.overview.len();
        if length <= budget || (count == 0 && segment_count == 0 && steps == 1) {
            return packed;
        }
        if !has_small_times {
            times = Times::within(trace.events(), &history.span, budget / SMALL_TIME_SHARE);
            has_small_times = true;
            continue;
        }
        let length = length as f64;
        let aim = 0.97 * budget as f64;
        let segment_bytes = packed.segment_share * length;
        let segment_budget = budget as f64 / SEGMENT_SHARE;
        if count == 0 {
            steps = 1;
        }
        if segment_count > 0 && (count == 0 || segment_bytes > segment_budget) {
            let left = (segment_bytes - (length - aim)).max(if count == 0 { 0.0 } else { 0.97 * segment_budget });
            segment_count = (segment_count as f64 * (left / segment_bytes).min(0.95)) as usize;
        } else {
            count = (count as f64 * (aim / length).min(0.95)) as usize;
        }
    }
}

/// Returns for each of `count` numbers whether it is in `kept`.
fn among(count: usize, kept: &[u32]) -> Vec<bool> {
    let mut is_kept = vec![false; count];
    kept.iter().for_each(|&number| is_kept[number as usize] = true);
    is_kept
}

fn kept<'a>(lives: &'a [Life], is_kept: &[bool]) -> Vec<&'a Life> {
    lives.iter().zip(is_kept).filter(|(_, kept)| **kept).map(|(life, _)| life).collect()
}

fn pack(
    trace: &Trace,
    history: &BlockHistory,
    kept_blocks: &[u32],
    kept_segments: &[u32],
    most_steps: usize,
    times: &Times,
    spans: &AnnotationSpans<'_>,
) -> Packed {
    let is_kept = among(history.blocks.len(), kept_blocks);
    let blocks = kept(&history.blocks, &is_kept);
    let segments = kept(&history.segments, &among(history.segments.len(), kept_segments));
    let summed = history.summed(&is_kept, most_steps);

    let mut tables = Tables::default();
    let stacks: Vec<u64> = blocks.iter().map(|block| tables.stack(trace, block.born)).collect();
    let lives = |lives: &[&Life], tables: &mut Tables, out: &mut Vec<u8>| {
        put_column(out, differences(lives.iter().map(|life| life.born as u64)));
        put_column(out, lives.iter().map(|life| life.died.map_or(0, |died| (died - life.born) as u64 + 1)));
        put_column(out, lives.iter().map(|life| life.bytes.min(MOST)));
        put_column(out, signed_differences(lives.iter().map(|life| life.address & MOST)));
        put_column(out, lives.iter().map(|life| life.address >> EXACT_BITS));
        put_column(out, lives.iter().map(|life| tables.stream(life.stream.0)).collect::<Vec<_>>().into_iter());
    };
    let mut body = Vec::new();
    put(&mut body, blocks.len() as u64);
    lives(&blocks, &mut tables, &mut body);
    put_column(&mut body, stacks.iter().copied());
    put(&mut body, summed.blocks as u64);
    put(&mut body, summed.steps.len() as u64);
    put_column(&mut body, differences(summed.steps.iter().map(|step| step.0 as u64)));
    put_column(&mut body, signed_differences(summed.steps.iter().map(|step| step.1.min(MOST))));
    let before_segments = body.len();
    put(&mut body, segments.len() as u64);
    lives(&segments, &mut tables, &mut body);
    let segment_bytes = body.len() - before_segments;
    times.put(&mut body, trace.events());
    put(&mut body, history.marks.len() as u64);
    put_column(&mut body, differences(history.marks.iter().map(|&event| event as u64)));
    for &event in &history.marks {
        put(&mut body, tables.string(&mark(trace, event)));
    }
    put(&mut body, spans.kept.len() as u64);
    put_column(&mut body, differences(spans.kept.iter().map(|span| span.events.start as u64)));
    put_column(&mut body, spans.kept.iter().map(|span| span.events.len() as u64));
    spans.kept.iter().for_each(|span| put(&mut body, tables.string(span.name)));
    let mut labels = Labels::default();
    let labels_of = [&blocks, &segments]
        .map(|lives| lives.iter().map(|life| labels.number(trace, history, life, &mut tables)).collect::<Vec<_>>());
    labels.put(&mut body, &labels_of);

    let mut head = Vec::new();
    put(&mut head, history.span.start as u64);
    put(&mut head, history.span.end as u64);
    put(&mut head, history.earlier as u64);
    tables.put(&mut head);
    let colors = if tables.stacks.is_empty() { Colors::OfSizes } else { Colors::OfStacks(&stacks) };
    Packed {
        text: deflated(&[&head, &body]),
        overview: overview(history, &blocks, &colors),
        kept: blocks.len(),
        kept_segments: segments.len(),
        summed,
        kept_annotations: spans.kept.len(),
        annotations: spans.count,
        segment_share: segment_bytes as f64 / (head.len() + body.len()) as f64,
    }
}

/// Returns the text of a mark: its action, and the tag that the program gave with it.
fn mark(trace: &Trace, event: usize) -> String {
    let action = trace.events()[event].action.name();
    match trace.labels().of_event(event).and_then(|label| label.tag.as_deref()) {
        Some(tag) => format!("{action} {}", tag.chars().take(MOST_MARK_CHARACTERS).collect::<String>()),
        None => action.to_owned(),
    }
}
