//! The interactive section of a trace's page.

use tenure_plan::Trace;

use super::history::BlockHistory;
use super::pack::Packed;
use crate::report::escape::escape;
use crate::report::html::{row, section as titled, table};
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
    section(trace, history, &Packed::default()).len() + WORDS
}

pub(super) fn section(trace: &Trace, history: &BlockHistory, packed: &Packed) -> String {
    let grows = trace.settings().expandable_segments;
    let content = format!(
        "<style>\n{STYLE}</style>\n\
         <noscript><p>The blocks need scripts; the charts around them do not.</p></noscript>\n\
         <p id=\"unshown\" class=\"verdict unfinished\" hidden></p>\n\
         <div id=\"viewer\" data-expandable=\"{grows}\" hidden inert>\n\
         <div class=\"tools\"><input type=\"search\" id=\"search\" aria-label=\"Search\">\
         <label>Colour by <select id=\"color\"><option value=\"stack\">stack</option><option value=\"size\">size</option>\
         <option value=\"stream\">stream</option><option value=\"block\">block</option><option value=\"tag\">tag</option>\
         <option value=\"context\">compile context</option><option value=\"pool\">pool</option></select></label>\
         <button id=\"whole\" type=\"button\">Whole history</button><output id=\"found\"></output></div>\n\
         <canvas id=\"timeline\" tabindex=\"0\" role=\"img\" aria-label=\"Blocks over time\"></canvas>\n\
         <p class=\"muted\">Across: event numbers. Wheel or +/− zooms, Shift and wheel zooms the bytes, dragging or arrow keys \
         move, Home shows everything, Enter or Shift and Enter selects the next block up or down at the dashed line.</p>\n\
         <div id=\"about\" aria-live=\"polite\"></div>\n\
         <h2>Segments over time</h2>\n\
         <p class=\"muted\">Each bar is a segment, to scale, at the moment of the dashed line above. Grey or pale is free, or taken by \
         blocks that are not shown one by one.</p>\n\
         <div class=\"tools\"><label for=\"moment\">Moment</label><input type=\"range\" id=\"moment\">\
         <label id=\"pools\" hidden>Pool <select id=\"pool\"><option value=\"\">all</option></select></label></div>\n\
         <p id=\"held\"></p>\n\
         <div class=\"map\"><canvas id=\"segments\" role=\"img\" aria-label=\"Segments\"></canvas></div>\n\
         <div id=\"tip\" hidden></div>\n</div>\n\
         {}<script type=\"text/plain\" id=\"overview-data\">{}</script>\n<script>\n{}</script>\n\
         <script type=\"text/plain\" id=\"block-data\">{}</script>\n",
        settings(trace),
        packed.overview,
        SCRIPTS.concat(),
        packed.text
    );
    titled("Every block over time", &words(trace, history, packed), &content)
}

/// Returns sentences about the blocks that the page shows, and those that it leaves out.
fn words(trace: &Trace, history: &BlockHistory, packed: &Packed) -> String {
    let mut words =
        "Each band is a block, as tall as its bytes, stacked in the order of their allocation. Where a block \
                     below is freed, those above it fall."
            .to_owned();
    if history.span != (0..trace.events().len()) {
        words += &format!(
            " Shown are events {} to {} of {}{}.",
            Count(history.span.start as u64),
            Count(history.span.end.saturating_sub(1) as u64),
            Count(trace.events().len() as u64),
            earlier(history)
        );
    } else if history.earlier > 0 {
        words += &format!(" It has {} events{}.", Count(history.span.end as u64), earlier(history));
    }
    let summed = &packed.summed;
    if summed.blocks > 0 {
        words += &format!(
            " {} blocks are shown. {} smaller or shorter ones, at most {} at once, are summed in grey{}: <code>--from</code> \
             and <code>--to</code> show a part of the history in full, and <code>--page-size</code> a larger page.",
            Count(packed.kept as u64),
            Count(summed.blocks as u64),
            Bytes(summed.peak_bytes),
            if summed.is_exact { "" } else { ", each stretch of time at its highest" }
        );
    }
    let segments = history.segments.len();
    if packed.kept_segments < segments {
        words += &format!(
            " Of {} segments, the {} with most bytes × events are shown.",
            Count(segments as u64),
            Count(packed.kept_segments as u64)
        );
    }
    if packed.kept_annotations > 0 {
        words += " The bars below the axis are annotations of the program, in up to six rows; search finds the others.";
    }
    if packed.kept_annotations < packed.annotations {
        words += &format!(
            " Of {} annotations, the {} with most events are shown, searched and named with blocks.",
            Count(packed.annotations as u64),
            Count(packed.kept_annotations as u64)
        );
    }
    words
}

/// Returns a clause on the events that recreate the state before the history.
fn earlier(history: &BlockHistory) -> String {
    match history.earlier {
        0 => String::new(),
        earlier => format!(" ({} from before the history)", Count(earlier as u64)),
    }
}

/// Returns the recorded allocator's settings as HTML.
fn settings(trace: &Trace) -> String {
    let settings = trace.settings();
    let conf = if settings.conf.is_empty() { "–" } else { &settings.conf };
    let divisions: Vec<String> = settings.roundup_power2_divisions.iter().map(u32::to_string).collect();
    let limit = settings.max_split_size_bytes.map_or("no limit".to_owned(), |bytes| Bytes(bytes).to_string());
    let rows = [
        row("PYTORCH_CUDA_ALLOC_CONF", &[&format_args!("<span class=\"long\">{}</span>", escape(conf))]),
        row("expandable_segments", &[&settings.expandable_segments]),
        row("max_split_size", &[&limit]),
        row("garbage_collection_threshold", &[&settings.garbage_collection_threshold]),
        row("roundup_power2_divisions", &[&divisions.join(", ")]),
    ];
    format!("<details><summary>Settings</summary>\n{}</details>\n", table(&["Setting", "Value"], rows.into_iter()))
}
