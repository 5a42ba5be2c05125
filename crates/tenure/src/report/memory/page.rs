//! The page of a memory report.

use tenure_core::Tag;

use super::segments::{Content, SegmentUse};
use super::timeline::class;
use super::{MemoryReport, ModuleUse};
use crate::report::escape::escape;
use crate::report::html::{self, document, drawings, figure, row, section, table};
use crate::report::svg::Svg;
use crate::units::{Bytes, Count, Percent};

/// Modules that hold less than this share of the memory are shown together.
const SMALLEST_SHARE: f64 = 0.002;
/// The number of segments that are drawn.
const SEGMENTS: usize = 32;

impl MemoryReport {
    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        page(self)
    }
}

fn page(report: &MemoryReport) -> String {
    let timeline = match &report.timeline {
        Some(chart) => figure(chart),
        None => "<p>No history was recorded. <code>torch.cuda.memory._record_memory_history()</code> begins one.</p>\n"
            .to_owned(),
    };
    let sections = [
        header(report),
        section(
            "By tag",
            "What the bytes in use are for. <i>Awaited</i>: freed, but another stream may still use them.",
            &tags(report),
        ),
        section(
            "By module",
            "The same bytes, by the module whose they are. A module counts what the modules in it hold.",
            &modules(report),
        ),
        section("Over time", "What was asked for and not freed, by tag. A block counts under its last tag.", &timeline),
        section("Largest blocks", "Each with the key that names it.", &largest(report)),
        section(
            "Segments",
            "The memory that the allocator holds, the largest segments first: one strip is one segment, from its first \
             byte to its last.",
            &segments(report),
        ),
        section(
            "Allocator",
            "Every counter that is not zero, under PyTorch's names, and the settings.",
            &figures(report),
        ),
    ];
    document(&report.title, &sections.concat(), "")
}

fn header(report: &MemoryReport) -> String {
    let free: u64 = report.segments.iter().map(SegmentUse::free_bytes).sum();
    let largest = report.segments.iter().map(|segment| segment.largest_free_bytes).max().unwrap_or(0);
    let mut facts = vec![
        ("Requested", Bytes(report.requested_bytes.current).to_string()),
        ("Allocated", Bytes(report.allocated_bytes.current).to_string()),
        ("Reserved", Bytes(report.reserved_bytes.current).to_string()),
        ("Peak requested", Bytes(report.requested_bytes.peak).to_string()),
        ("Peak allocated", Bytes(report.allocated_bytes.peak).to_string()),
        ("Peak reserved", Bytes(report.reserved_bytes.peak).to_string()),
        ("Free in segments", Bytes(free).to_string()),
        ("Largest free range", Bytes(largest).to_string()),
    ];
    if let Some(device) = report.device {
        let used = device.total_bytes.saturating_sub(device.free_bytes);
        facts.push(("Device", format!("{} of {} in use", Bytes(used), Bytes(device.total_bytes))));
    }
    html::header("Memory report", &report.title, "", &facts)
}

fn tags(report: &MemoryReport) -> String {
    let total = report.active_bytes.current;
    let mut rows: Vec<String> = report
        .tags
        .iter()
        .map(|held| {
            let active = held.active_bytes.current;
            row(
                format_args!("<span class=\"swatch {}\"></span>{}", class(held.tag), held.tag),
                &[
                    &Bytes(held.requested_bytes.current),
                    &Bytes(held.allocated_bytes.current),
                    &Bytes(active.saturating_sub(held.allocated_bytes.current)),
                    &Bytes(held.allocated_bytes.peak),
                    &Count(held.blocks as u64),
                    &Percent(share(active, total)),
                ],
            )
        })
        .collect();
    rows.push(row(
        "together",
        &[
            &Bytes(report.requested_bytes.current),
            &Bytes(report.allocated_bytes.current),
            &Bytes(total.saturating_sub(report.allocated_bytes.current)),
            &Bytes(report.allocated_bytes.peak),
            &Count(report.modules.blocks as u64),
            &Percent(share(total, total)),
        ],
    ));
    let heads = ["Tag", "Requested", "Allocated", "Awaited", "Peak allocated", "Blocks", "Share"];
    bar(&report.modules.tags, total) + &table(&heads, rows.into_iter())
}

/// Returns a bar of all tags side by side, as long as its share of `whole`. The table has the same figures as text.
fn bar(tags: &[u64; Tag::ALL.len()], whole: u64) -> String {
    let used = Tag::ALL.into_iter().filter(|&tag| tags[tag as usize] > 0);
    let parts = used.map(|tag| {
        let bytes = tags[tag as usize];
        let width = 100.0 * share(bytes, whole);
        let class = class(tag);
        format!("<i class=\"{class}\" style=\"width:{width:.2}%\" title=\"{tag}: {}\"></i>", Bytes(bytes))
    });
    format!("<div class=\"stack\">{}</div>\n", parts.collect::<String>())
}

fn modules(report: &MemoryReport) -> String {
    let whole = report.modules.bytes();
    let mut rows = Vec::new();
    add_module(&mut rows, &report.modules, "the whole program", 0, whole);
    let used: Vec<Tag> = Tag::ALL.into_iter().filter(|&tag| report.modules.tags[tag as usize] > 0).collect();
    let rows = rows.into_iter().map(|ModuleRow { name, depth, tags, blocks }| {
        let cells: String = used.iter().map(|&tag| format!("<td>{}</td>", Bytes(tags[tag as usize]))).collect();
        format!(
            "<tr><th scope=\"row\" style=\"padding-left:{depth}em\">{}</th><td>{}</td>{cells}<td>{}</td>\
             <td class=\"bar\">{}</td></tr>\n",
            escape(&name),
            Bytes(tags.iter().sum()),
            Count(blocks as u64),
            bar(&tags, whole)
        )
    });
    let heads: Vec<&str> =
        ["Module", "Bytes"].into_iter().chain(used.iter().map(|tag| tag.name())).chain(["Blocks", ""]).collect();
    format!("<div class=\"tall\">{}</div>\n", table(&heads, rows))
}

/// A row of the table of modules.
struct ModuleRow {
    name: String,
    depth: usize,
    tags: [u64; Tag::ALL.len()],
    blocks: usize,
}

/// Adds a module and its children, and a row for its own blocks if it has both; small modules are summed.
fn add_module(rows: &mut Vec<ModuleRow>, module: &ModuleUse, name: &str, depth: usize, whole: u64) {
    let &ModuleUse { tags, blocks, ref children, .. } = module;
    rows.push(ModuleRow { name: name.to_owned(), depth, tags, blocks });
    // The largest come first.
    let first_small = children.iter().position(|child| share(child.bytes(), whole) < SMALLEST_SHARE);
    let (shown, small) = children.split_at(first_small.unwrap_or(children.len()));
    shown.iter().for_each(|child| add_module(rows, child, &child.name, depth + 1, whole));
    let mut add_together = |name: String, tags: [u64; Tag::ALL.len()], blocks: usize| {
        if blocks > 0 {
            rows.push(ModuleRow { name, depth: depth + 1, tags, blocks });
        }
    };
    let sum = |modules: &[ModuleUse]| {
        let tags = Tag::ALL.map(|tag| modules.iter().map(|module| module.tags[tag as usize]).sum());
        (tags, modules.iter().map(|module| module.blocks).sum::<usize>())
    };
    let (small_tags, small_blocks) = sum(small);
    let modules = if small.len() == 1 { "module" } else { "modules" };
    add_together(format!("{} smaller {modules}", small.len()), small_tags, small_blocks);
    if !children.is_empty() {
        let (inner_tags, inner_blocks) = sum(children);
        let own = Tag::ALL.map(|tag| tags[tag as usize] - inner_tags[tag as usize]);
        add_together("in no module of these".into(), own, blocks - inner_blocks);
    }
}

fn largest(report: &MemoryReport) -> String {
    let rows = report.largest.iter().map(|block| {
        let key = block.key.as_deref().map_or_else(|| "–".into(), long);
        let state = if block.is_awaited { ", awaited" } else { "" };
        row(
            format_args!("<code>{:#x}</code>", block.address),
            &[
                &Bytes(block.bytes),
                &Bytes(block.requested_bytes),
                &format_args!("<span class=\"swatch {}\"></span>{}{state}", class(block.tag), block.tag),
                &format_args!("{:#x}", block.stream),
                &key,
            ],
        )
    });
    table(&["Address", "Bytes", "Requested", "Tag", "Stream", "Key"], rows)
}

fn segments(report: &MemoryReport) -> String {
    let (drawn, others) = report.segments.split_at(report.segments.len().min(SEGMENTS));
    let rows = drawn.iter().map(|segment| {
        let pool = if segment.pool == (0, 0) { "common".into() } else { format!("{:?}", segment.pool) };
        row(
            format_args!("<code>{:#x}</code>", segment.address),
            &[
                &Bytes(segment.bytes),
                &Bytes(segment.allocated_bytes),
                &Bytes(segment.awaited_bytes),
                &Bytes(segment.free_bytes()),
                &Bytes(segment.largest_free_bytes),
                &format_args!("{:#x}", segment.stream),
                &pool,
            ],
        )
    });
    let heads = ["Segment", "Bytes", "Allocated", "Awaited", "Free", "Largest free", "Stream", "Pool"];
    let table = table(&heads, rows);
    let rest = if others.is_empty() {
        String::new()
    } else {
        let bytes = others.iter().map(|segment| segment.bytes).sum();
        format!("<p class=\"muted\">And {} smaller ones of {} together.</p>\n", others.len(), Bytes(bytes))
    };
    drawings(|width| map(drawn, width)) + &table + &rest
}

/// Draws the segments as strips, as long as they are large.
fn map(segments: &[SegmentUse], width: f64) -> String {
    const LEFT: f64 = 130.0;
    const STEP: f64 = 20.0;
    let height = STEP * segments.len() as f64;
    let longest = segments.iter().map(|segment| segment.bytes).max().unwrap_or(0);
    let mut svg = Svg::default();
    svg.add(format_args!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"Contents of each segment; the table below has the figures.\">"
    ));
    for (index, segment) in segments.iter().enumerate() {
        let y = STEP * index as f64;
        let length = ((width - LEFT) * share(segment.bytes, longest)).max(2.0);
        svg.add(format_args!(
            "<g><title>{:#x}: {}, {} free, the largest range {}</title><text class=\"tick end\" x=\"{}\" \
             y=\"{}\">{:#x}</text>",
            segment.address,
            Bytes(segment.bytes),
            Bytes(segment.free_bytes()),
            Bytes(segment.largest_free_bytes),
            LEFT - 8.0,
            y + 12.0,
            segment.address
        ));
        for run in &segment.runs {
            let x = LEFT + length * SegmentUse::share(run.start);
            let width = length * SegmentUse::share(run.places);
            let class = match run.content {
                Content::Live(tag) => class(tag),
                Content::Awaited => "awaited".into(),
                Content::Free => "free".into(),
            };
            svg.add(format_args!(
                "<rect class=\"key {class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"15\"/>"
            ));
        }
        svg.add(format_args!("</g>"));
    }
    svg.add(format_args!("</svg>"));
    svg.finish()
}

fn figures(report: &MemoryReport) -> String {
    let counters = report.statistics.iter().filter(|(_, value)| **value != 0);
    let counters = counters.map(|(name, value)| row(name, &[&count(*value)]));
    let settings = report.settings.iter().map(|(name, value)| row(escape(name), &[&long(value)]));
    format!(
        "{}<details><summary>Counters</summary>\n{}</details>\n",
        table(&["Setting", "Value"], settings),
        table(&["Counter", "Value"], counters)
    )
}

/// Returns a cell's text that may take several lines, broken after dots if possible.
fn long(text: &str) -> String {
    format!("<span class=\"long\">{}</span>", escape(text).replace('.', ".<wbr>"))
}

/// Formats a number; -1 stands for no limit.
fn count(value: i64) -> String {
    u64::try_from(value).map_or_else(|_| value.to_string(), |value| Count(value).to_string())
}

fn share(bytes: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { bytes as f64 / whole as f64 }
}
