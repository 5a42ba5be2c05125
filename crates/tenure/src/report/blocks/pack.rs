//! The data of the page, [`PageData`]: `data.js` reads its fields in the same order.
//!
//! Numbers are unsigned LEB128 integers, and signed ones are zigzag-encoded; a list begins with its count.

use serde::Serialize;
use tenure_plan::Trace;

use super::annotations::AnnotationSpans;
use super::columns::{deflated, differences, signed_differences};
use super::history::{BlockHistory, Life, Summed};
use super::labels::Labels;
use super::overview::{Colors, overview};
use super::tables::Tables;
use super::times::{TimeColumns, Times};

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

/// The data that `data.js` reads.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct PageData {
    /// The first event that is shown, and the one after the last.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Events from before the history.
    pub(super) earlier: u64,
    pub(super) tables: Tables,
    pub(super) blocks: LifeColumns,
    pub(super) summed: SummedColumns,
    pub(super) segments: LifeColumns,
    pub(super) times: TimeColumns,
    pub(super) marks: MarkColumns,
    pub(super) annotations: SpanColumns,
    pub(super) labels: Labels,
}

/// Blocks or segments.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct LifeColumns {
    #[serde(with = "differences")]
    pub(super) born: Vec<u64>,
    /// The events it lived plus one, or 0.
    pub(super) lived: Vec<u64>,
    pub(super) bytes: Vec<u64>,
    /// The lower 52 bits of the address, and the upper 12.
    #[serde(with = "signed_differences")]
    pub(super) address: Vec<u64>,
    pub(super) high: Vec<u64>,
    pub(super) stream: Vec<u64>,
    /// The number of the stack plus one, or 0. Segments have none.
    pub(super) stack: Vec<u64>,
    /// The number of the label plus one, or 0.
    pub(super) label: Vec<u64>,
}

/// The sum of the blocks that are left out.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct SummedColumns {
    pub(super) blocks: u64,
    #[serde(with = "differences")]
    pub(super) event: Vec<u64>,
    #[serde(with = "signed_differences")]
    pub(super) bytes: Vec<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct MarkColumns {
    #[serde(with = "differences")]
    pub(super) event: Vec<u64>,
    /// The string of its action and tag.
    pub(super) text: Vec<u64>,
}

/// Annotations.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct SpanColumns {
    #[serde(with = "differences")]
    pub(super) from: Vec<u64>,
    pub(super) events: Vec<u64>,
    pub(super) name: Vec<u64>,
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
    let mut labels = Labels::default();
    let stacks: Vec<u64> = blocks.iter().map(|block| tables.stack(trace, block.born)).collect();
    let mut columns = LifeColumns::of(&blocks, &mut tables);
    columns.stack.clone_from(&stacks);
    let mut segment_columns = LifeColumns::of(&segments, &mut tables);
    let marks = MarkColumns {
        event: history.marks.iter().map(|&event| event as u64).collect(),
        text: history.marks.iter().map(|&event| tables.string(&mark(trace, event))).collect(),
    };
    let annotations = SpanColumns {
        from: spans.kept.iter().map(|span| span.events.start as u64).collect(),
        events: spans.kept.iter().map(|span| span.events.len() as u64).collect(),
        name: spans.kept.iter().map(|span| tables.string(span.name)).collect(),
    };
    let segment_bytes = postcard::to_stdvec(&segment_columns).map_or(0, |bytes| bytes.len());
    for (columns, lives) in [(&mut columns, &blocks), (&mut segment_columns, &segments)] {
        columns.label = lives.iter().map(|life| labels.number(trace, history, life, &mut tables)).collect();
    }
    let colors = if tables.stacks.is_empty() { Colors::OfSizes } else { Colors::OfStacks(&stacks) };
    let overview = overview(history, &blocks, &colors);
    let data = PageData {
        from: history.span.start as u64,
        to: history.span.end as u64,
        earlier: history.earlier as u64,
        tables,
        blocks: columns,
        summed: SummedColumns {
            blocks: summed.blocks as u64,
            event: summed.steps.iter().map(|step| step.0 as u64).collect(),
            bytes: summed.steps.iter().map(|step| step.1.min(MOST)).collect(),
        },
        segments: segment_columns,
        times: times.columns(trace.events()),
        marks,
        annotations,
        labels,
    };
    let bytes = postcard::to_stdvec(&data).map_or(1, |bytes| bytes.len());
    Packed {
        text: deflated(&data),
        overview: deflated(&overview),
        kept: blocks.len(),
        kept_segments: segments.len(),
        summed,
        kept_annotations: spans.kept.len(),
        annotations: spans.count,
        segment_share: segment_bytes as f64 / bytes as f64,
    }
}

impl LifeColumns {
    fn of(lives: &[&Life], tables: &mut Tables) -> Self {
        Self {
            born: lives.iter().map(|life| life.born as u64).collect(),
            lived: lives.iter().map(|life| life.died.map_or(0, |died| (died - life.born) as u64 + 1)).collect(),
            bytes: lives.iter().map(|life| life.bytes.min(MOST)).collect(),
            address: lives.iter().map(|life| life.address & MOST).collect(),
            high: lives.iter().map(|life| life.address >> EXACT_BITS).collect(),
            stream: lives.iter().map(|life| tables.stream(life.stream.0)).collect(),
            ..Self::default()
        }
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
