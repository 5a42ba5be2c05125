//! The page of a memory report.

use maud::{Markup, html};
use tenure_core::Tag;
use tenure_device::memory::DeviceUse;
use tenure_device::pinned::PinnedUse;

use super::segments::{Content, SegmentUse};
use super::timeline::class;
use super::{MemoryFigure, MemoryReport, ModuleUse, TagUse};
use crate::report::html::{self, breakable, document, drawings, figure, keyed, section, table};
use crate::report::svg::{Drawing, Px};
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
    let timeline = html! {
        @if let Some(chart) = &report.timeline {
            (figure(chart))
        } @else {
            p { "No history was recorded. " code { "torch.cuda.memory._record_memory_history()" } " begins one." }
        }
    };
    let tags_text = html! {
        "What the bytes in use are for. " i { "Awaited" } ": freed, but another stream may still use them."
    };
    let body = html! {
        (header(report))
        @if let Some(device) = &report.device { (section(
            "On the device",
            "All of the device's memory, and who holds it. Other libraries of this program get what is cached when they \
             find no room.",
            holders(device),
        )) }
        @if !report.pinned.is_empty() { (section(
            "Pinned host memory",
            "The host's memory that copies to and from devices use. What is pinned and not in use is cached.",
            pinned(&report.pinned),
        )) }
        (section("By tag", tags_text, tags(report)))
        (section(
            "By module",
            "The same bytes, by the module whose they are. A module counts what the modules in it hold.",
            modules(report),
        ))
        (section("Over time", "What was asked for and not freed, by tag. A block counts under its last tag.", timeline))
        (section("Largest blocks", "Each with the key that names it.", largest(report)))
        (section(
            "Segments",
            "The memory that the allocator holds, the largest segments first: one strip is one segment, from its first \
             byte to its last.",
            segments(report),
        ))
        (section(
            "Allocator",
            "Every counter that is not zero, under PyTorch's names, and the settings.",
            figures(report),
        ))
    };
    document(&report.title, &body, "")
}

fn header(report: &MemoryReport) -> Markup {
    let free: u64 = report.segments.iter().map(SegmentUse::free_bytes).sum();
    let largest = report.segments.iter().map(|segment| segment.largest_free_bytes).max().unwrap_or(0);
    let bytes = [
        ("Requested", report.requested_bytes.current),
        ("Allocated", report.allocated_bytes.current),
        ("Reserved", report.reserved_bytes.current),
        ("Peak requested", report.requested_bytes.peak),
        ("Peak allocated", report.allocated_bytes.peak),
        ("Peak reserved", report.reserved_bytes.peak),
        ("Free in segments", free),
        ("Largest free range", largest),
    ];
    let mut facts: Vec<_> = bytes.into_iter().map(|(name, bytes)| (name, Bytes(bytes).to_string())).collect();
    if let Some(device) = &report.device {
        let used = device.total_bytes.saturating_sub(device.free_bytes);
        facts.push(("Device", format!("{} of {} in use", Bytes(used), Bytes(device.total_bytes))));
    }
    html::header("Memory report", &report.title, &Markup::default(), &facts)
}

/// Returns the holders of the device's memory, whose bytes are all of the device's.
fn holders(device: &DeviceUse) -> Markup {
    let libraries = device.libraries.iter().map(|library| (library.library.clone(), library.bytes));
    let processes = device.processes.iter();
    let processes = processes.filter_map(|process| Some((format!("process {}", process.pid), process.bytes?)));
    let rest = match device.context_bytes {
        Some(_) => "the driver, and processes that the system does not name",
        None => "contexts, kernels, the driver, and processes that the system does not name",
    };
    let mut rows = vec![("tensors".to_owned(), device.allocated_bytes), ("cached".to_owned(), device.cached_bytes)];
    rows.extend(libraries);
    rows.extend(device.context_bytes.map(|bytes| ("context and kernels of this program".to_owned(), bytes)));
    rows.extend(processes);
    rows.extend([(rest.to_owned(), device.unnamed_bytes), ("free".to_owned(), device.free_bytes)]);
    let rows = html! {
        @for (holder, bytes) in rows {
            tr {
                th scope="row" { (holder) }
                td { (Bytes(bytes)) }
                td { (Percent(share(bytes, device.total_bytes))) }
            }
        }
    };
    table(&["Holder", "Bytes", "Share"], &rows)
}

/// Returns the users of pinned host memory.
fn pinned(uses: &[PinnedUse]) -> Markup {
    let rows = html! {
        @for PinnedUse { user, requested_bytes, used_bytes, pinned_bytes } in uses {
            tr {
                th scope="row" { (user) }
                td { (Bytes(*requested_bytes)) }
                td { (Bytes(*used_bytes)) }
                td { (Bytes(*pinned_bytes)) }
            }
        }
    };
    table(&["User", "Requested", "In use", "Pinned"], &rows)
}

fn tags(report: &MemoryReport) -> Markup {
    let total = report.active_bytes.current;
    let rows = html! {
        @for TagUse { tag, requested_bytes, allocated_bytes, active_bytes, blocks } in &report.tags {
            tr {
                th scope="row" { (keyed(&class(*tag), tag.name())) }
                (tag_cells(requested_bytes.current, *allocated_bytes, active_bytes.current, *blocks, total))
            }
        }
        tr {
            th scope="row" { "together" }
            (tag_cells(report.requested_bytes.current, report.allocated_bytes, total, report.modules.blocks, total))
        }
    };
    let heads = ["Tag", "Requested", "Allocated", "Awaited", "Peak allocated", "Blocks", "Share"];
    html! { (bar(&report.modules.tags, total)) (table(&heads, &rows)) }
}

fn tag_cells(requested: u64, allocated: MemoryFigure, active: u64, blocks: usize, total: u64) -> Markup {
    html! {
        td { (Bytes(requested)) }
        td { (Bytes(allocated.current)) }
        td { (Bytes(active.saturating_sub(allocated.current))) }
        td { (Bytes(allocated.peak)) }
        td { (Count(blocks as u64)) }
        td { (Percent(share(active, total))) }
    }
}

/// Returns a bar of all tags side by side, as long as its share of `whole`. The table has the same figures as text.
fn bar(tags: &[u64; Tag::ALL.len()], whole: u64) -> Markup {
    html! {
        div.stack {
            @for tag in Tag::ALL {
                @let bytes = tags[tag as usize];
                @let style = format!("width:{:.2}%", 100.0 * share(bytes, whole));
                @if bytes > 0 { i.(class(tag)) style=(style) title={ (tag.name()) ": " (Bytes(bytes)) } {} }
            }
        }
    }
}

fn modules(report: &MemoryReport) -> Markup {
    let whole = report.modules.bytes();
    let mut rows = Vec::new();
    add_module(&mut rows, &report.modules, "the whole program", 0, whole);
    let used: Vec<Tag> = Tag::ALL.into_iter().filter(|&tag| report.modules.tags[tag as usize] > 0).collect();
    let rows = html! {
        @for ModuleRow { name, depth, tags, blocks } in rows {
            tr {
                th scope="row" style={ "padding-left:" (depth) "em" } { (name) }
                td { (Bytes(tags.iter().sum())) }
                @for &tag in &used { td { (Bytes(tags[tag as usize])) } }
                td { (Count(blocks as u64)) }
                td.bar { (bar(&tags, whole)) }
            }
        }
    };
    let heads: Vec<&str> =
        ["Module", "Bytes"].into_iter().chain(used.iter().map(|tag| tag.name())).chain(["Blocks", ""]).collect();
    html! { div.tall { (table(&heads, &rows)) } }
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

fn largest(report: &MemoryReport) -> Markup {
    let rows = html! {
        @for block in &report.largest {
            tr {
                th scope="row" { code { (format!("{:#x}", block.address)) } }
                td { (Bytes(block.bytes)) }
                td { (Bytes(block.requested_bytes)) }
                td { (keyed(&class(block.tag), block.tag.name())) @if block.is_awaited { ", awaited" } }
                td { (format!("{:#x}", block.stream)) }
                td { @if let Some(key) = &block.key { (long(key)) } @else { "–" } }
            }
        }
    };
    table(&["Address", "Bytes", "Requested", "Tag", "Stream", "Key"], &rows)
}

fn segments(report: &MemoryReport) -> Markup {
    let (drawn, others) = report.segments.split_at(report.segments.len().min(SEGMENTS));
    let rows = html! {
        @for segment in drawn {
            tr {
                th scope="row" { code { (format!("{:#x}", segment.address)) } }
                td { (Bytes(segment.bytes)) }
                td { (Bytes(segment.allocated_bytes)) }
                td { (Bytes(segment.awaited_bytes)) }
                td { (Bytes(segment.free_bytes())) }
                td { (Bytes(segment.largest_free_bytes)) }
                td { (format!("{:#x}", segment.stream)) }
                td { @if segment.pool == (0, 0) { "common" } @else { (format!("{:?}", segment.pool)) } }
            }
        }
    };
    let heads = ["Segment", "Bytes", "Allocated", "Awaited", "Free", "Largest free", "Stream", "Pool"];
    html! {
        (drawings(|width| map(drawn, width)))
        (table(&heads, &rows))
        @if !others.is_empty() {
            @let bytes = Bytes(others.iter().map(|segment| segment.bytes).sum());
            p.muted { "And " (others.len()) " smaller ones of " (bytes) " together." }
        }
    }
}

/// Draws the segments as strips, as long as they are large.
fn map(segments: &[SegmentUse], width: f64) -> Drawing {
    const LEFT: f64 = 130.0;
    const STEP: f64 = 20.0;
    let longest = segments.iter().map(|segment| segment.bytes).max().unwrap_or(0);
    let content = html! {
        @for (index, segment) in segments.iter().enumerate() {
            @let address = format!("{:#x}", segment.address);
            @let y = STEP * index as f64;
            @let length = ((width - LEFT) * share(segment.bytes, longest)).max(2.0);
            g {
                title {
                    (address) ": " (Bytes(segment.bytes)) ", " (Bytes(segment.free_bytes())) " free, the largest range "
                    (Bytes(segment.largest_free_bytes))
                }
                text.tick.end x=(LEFT - 8.0) y=(y + 12.0) { (address) }
                @for run in &segment.runs {
                    rect.key.(run.content.class())
                        x=(Px(LEFT + length * SegmentUse::share(run.start))) y=(y)
                        width=(Px(length * SegmentUse::share(run.places))) height="15" {}
                }
            }
        }
    };
    let label = "Contents of each segment; the table below has the figures.".to_owned();
    Drawing { width, height: STEP * segments.len() as f64, label, content }
}

impl Content {
    /// Returns its class in the style sheet.
    fn class(self) -> String {
        match self {
            Self::Live(tag) => class(tag),
            Self::Awaited => "awaited".into(),
            Self::Free => "free".into(),
        }
    }
}

fn figures(report: &MemoryReport) -> Markup {
    let settings = html! {
        @for (name, value) in &report.settings { tr { th scope="row" { (name) } td { (long(value)) } } }
    };
    let counters = html! {
        @for (name, value) in report.statistics.iter().filter(|(_, value)| **value != 0) {
            tr { th scope="row" { (name) } td { (count(*value)) } }
        }
    };
    html! {
        (table(&["Setting", "Value"], &settings))
        details { summary { "Counters" } (table(&["Counter", "Value"], &counters)) }
    }
}

/// Returns a cell's text that may take several lines, broken after dots if possible.
fn long(text: &str) -> Markup {
    html! { span.long { (breakable(text)) } }
}

/// Formats a number; -1 stands for no limit.
fn count(value: i64) -> String {
    u64::try_from(value).map_or_else(|_| value.to_string(), |value| Count(value).to_string())
}

fn share(bytes: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { bytes as f64 / whole as f64 }
}
