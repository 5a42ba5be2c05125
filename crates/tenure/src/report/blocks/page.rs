//! The interactive section of a trace's page.

use maud::{Markup, PreEscaped, html};
use tenure_plan::Trace;

use super::history::BlockHistory;
use super::pack::Packed;
use crate::report::html::{section as titled, table};
use crate::units::{Bytes, Count};

const STYLE: &str = include_str!("viewer/viewer.css");
const SCRIPTS: [&str; 7] = [
    include_str!("viewer/data.js"),
    include_str!("viewer/overview.js"),
    include_str!("viewer/history.js"),
    include_str!("viewer/colors.js"),
    include_str!("viewer/timeline.js"),
    include_str!("viewer/segments.js"),
    include_str!("viewer/viewer.js"),
];

/// Returns the most bytes that the section takes without its data.
pub(super) fn frame_bytes(trace: &Trace, history: &BlockHistory) -> usize {
    /// The sentences about blocks that are left out.
    const WORDS: usize = 1024;
    section(trace, history, &Packed::default()).0.len() + WORDS
}

pub(super) fn section(trace: &Trace, history: &BlockHistory, packed: &Packed) -> Markup {
    let colors = ["stack", "size", "stream", "block", "tag", "context", "pool"];
    let content = html! {
        style { (PreEscaped(STYLE)) }
        noscript { p { "The blocks need scripts; the charts around them do not." } }
        p.verdict.unfinished #unshown hidden {}
        div #viewer data-expandable=(trace.settings().expandable_segments) hidden inert {
            div.tools {
                input type="search" #search aria-label="Search";
                label {
                    "Colour by "
                    select #color {
                        @for color in colors {
                            option value=(color) { @if color == "context" { "compile " } (color) }
                        }
                    }
                }
                button #whole type="button" { "Whole history" }
                output #found {}
            }
            canvas #timeline tabindex="0" role="img" aria-label="Blocks over time" {}
            p.muted {
                "Across: event numbers. Wheel or +/− zooms, Shift and wheel zooms the bytes, dragging or arrow keys \
                 move, Home shows everything, Enter or Shift and Enter selects the next block up or down at the dashed line."
            }
            div #about aria-live="polite" {}
            h2 { "Segments over time" }
            p.muted {
                "Each bar is a segment, to scale, at the moment of the dashed line above. Grey or pale is free, or taken by \
                 blocks that are not shown one by one."
            }
            div.tools {
                label for="moment" { "Moment" }
                input type="range" #moment;
                label #pools hidden { "Pool " select #pool { option value="" { "all" } } }
            }
            p #held {}
            div.map { canvas #segments role="img" aria-label="Segments" {} }
            div #tip hidden {}
        }
        (settings(trace))
        script type="text/plain" #overview-data { (PreEscaped(&packed.overview)) }
        script { "\n" (PreEscaped(SCRIPTS.concat())) }
        script type="text/plain" #block-data { (PreEscaped(&packed.text)) }
    };
    titled("Every block over time", words(trace, history, packed), content)
}

/// Returns sentences about the blocks that the page shows, and those that it leaves out.
fn words(trace: &Trace, history: &BlockHistory, packed: &Packed) -> Markup {
    let Packed { summed, kept_segments, kept_annotations, .. } = packed;
    let segments = history.segments.len();
    html! {
        "Each band is a block, as tall as its bytes, stacked in the order of their allocation. Where a block below is \
         freed, those above it fall."
        @if history.span != (0..trace.events().len()) {
            " Shown are events " (Count(history.span.start as u64)) " to "
            (Count(history.span.end.saturating_sub(1) as u64)) " of " (Count(trace.events().len() as u64))
            (earlier(history)) "."
        } @else if history.earlier > 0 {
            " It has " (Count(history.span.end as u64)) " events" (earlier(history)) "."
        }
        @if summed.blocks > 0 {
            " " (Count(packed.kept as u64)) " blocks are shown. " (Count(summed.blocks as u64))
            " smaller or shorter ones, at most " (Bytes(summed.peak_bytes)) " at once, are summed in grey"
            @if !summed.is_exact { ", each stretch of time at its highest" }
            ": " code { "--from" } " and " code { "--to" } " show a part of the history in full, and "
            code { "--page-size" } " a larger page."
        }
        @if *kept_segments < segments {
            " Of " (Count(segments as u64)) " segments, the " (Count(*kept_segments as u64))
            " with most bytes × events are shown."
        }
        @if *kept_annotations > 0 {
            " The bars below the axis are annotations of the program, in up to six rows; search finds the others."
        }
        @if *kept_annotations < packed.annotations {
            " Of " (Count(packed.annotations as u64)) " annotations, the " (Count(*kept_annotations as u64))
            " with most events are shown, searched and named with blocks."
        }
    }
}

/// Returns a clause on the events that recreate the state before the history.
fn earlier(history: &BlockHistory) -> String {
    match history.earlier {
        0 => String::new(),
        earlier => format!(" ({} from before the history)", Count(earlier as u64)),
    }
}

fn settings(trace: &Trace) -> Markup {
    let settings = trace.settings();
    let conf = if settings.conf.is_empty() { "–" } else { &settings.conf };
    let divisions: Vec<String> = settings.roundup_power2_divisions.iter().map(u32::to_string).collect();
    let limit = settings.max_split_size_bytes.map_or("no limit".to_owned(), |bytes| Bytes(bytes).to_string());
    let rows = [
        ("PYTORCH_CUDA_ALLOC_CONF", html! { span.long { (conf) } }),
        ("expandable_segments", html! { (settings.expandable_segments) }),
        ("max_split_size", html! { (limit) }),
        ("garbage_collection_threshold", html! { (settings.garbage_collection_threshold) }),
        ("roundup_power2_divisions", html! { (divisions.join(", ")) }),
    ];
    let rows = html! { @for (name, value) in rows { tr { th scope="row" { (name) } td { (value) } } } };
    html! { details { summary { "Settings" } (table(&["Setting", "Value"], &rows)) } }
}
