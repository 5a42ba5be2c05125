//! The sections of a trace's page that explain a shortage of memory: failed allocations, and the holders of the peak.

use maud::{Markup, PreEscaped, Render, html};
use tenure_plan::{Holder, HolderModule, Holders, StackFrame, Summary, Trace};

use super::html::{section, table};
use crate::units::{Bytes, Count, Micros, Percent};

/// The most bytes of a stack's frames; 45 stacks, of three tables, stay within the half megabyte of a page's charts and tables.
const STACK_BYTES: usize = 6000;

/// Returns the section of failed allocations, of which there were `count`; empty if there were none.
pub(super) fn out_of_memory(trace: &Trace, count: usize) -> Markup {
    if count == 0 {
        return Markup::default();
    }
    let failed = trace.out_of_memory();
    let rows = html! {
        @for failed in &failed {
            @let name = format!("event {}{}", Count(failed.event as u64), after(trace, failed.event));
            tr {
                th scope="row" { (with_stack(trace, name, trace.stacks().number_of_event(failed.event))) }
                td { (Bytes(failed.requested_bytes)) }
                td { (Bytes(failed.device_free_bytes)) }
                td { (of_segments(failed.reserved_bytes)) }
                td { (Bytes(failed.live_bytes)) }
                td { (of_segments(failed.largest_free_bytes)) }
            }
        }
    };
    let heads = ["Failed allocation", "Asked for", "Free on the device", "Reserved", "Live", "Largest free block"];
    let text = html! {
        "Each request that failed, and the memory at that moment. Reserved memory that is not live helps only if one \
         free block of it is large enough."
        @if failed.len() < count { " The last " (failed.len()) " of " (Count(count as u64)) " are listed." }
    };
    section("Out of memory", text, table(&heads, &rows))
}

fn of_segments(bytes: Option<u64>) -> String {
    bytes.map_or("not recorded".into(), |bytes| Bytes(bytes).to_string())
}

/// Returns the time of an event after the first, as a clause; empty if the recorder had no clock.
fn after(trace: &Trace, event: usize) -> String {
    let first_us = trace.events().first().filter(|_| trace.has_times()).map(|first| first.time_us);
    first_us.map_or(String::new(), |first_us| {
        format!(", after {}", Micros((trace.events()[event].time_us - first_us) as f64))
    })
}

/// Returns the section of the blocks that were live at the peak.
pub(super) fn holders(trace: &Trace, summary: &Summary) -> Markup {
    let holders = trace.holders(&summary.live_at_peak);
    let peak_bytes = summary.peak_requested_bytes;
    let text = if trace.stacks().is_empty() {
        "Blocks that are live when the program needs most. The recording has no stacks."
    } else {
        "Blocks that are live when the program needs most: by stack, named after its innermost frame outside of PyTorch; by the \
         function or tag; and by size. A click on a name shows the stack, or the one of several that holds most."
    };
    let tables = html! {
        (holders_table(trace, "Stack", &holders.by_stack, peak_bytes, |&number| user_frame(trace, number)))
        (holders_table(trace, "Module", &holders.by_module, peak_bytes, |module| match module {
            HolderModule::Function { filename, name } => named(name, filename),
            module => html! { (module) },
        }))
        (holders_table(trace, "Block size", &holders.by_size, peak_bytes, |&bytes| html! {
            (Bytes(bytes)) " " span.muted { "(" (Count(bytes)) " bytes)" }
        }))
    };
    section("Who holds the peak", text, tables)
}

/// Returns the table of some holders; empty if there are none.
fn holders_table<K>(
    trace: &Trace,
    head: &str,
    holders: &[Holder<K>],
    peak_bytes: u64,
    name: impl Fn(&K) -> Markup,
) -> Markup {
    let Some(largest) = holders.first() else { return Markup::default() };
    let (listed, others) = holders.split_at(holders.len().min(Holders::LISTED));
    let rows = html! {
        @for holder in listed {
            @let width = 100.0 * holder.bytes as f64 / largest.bytes.max(1) as f64;
            tr {
                th scope="row" { (with_stack(trace, name(&holder.key), holder.stack)) }
                (figures(holder.bytes, holder.blocks, peak_bytes))
                td.bar { i style=(format!("width:{width:.1}%")) {} }
            }
        }
        @if !others.is_empty() {
            @let bytes = others.iter().map(|holder| holder.bytes).sum();
            @let blocks = others.iter().map(|holder| holder.blocks).sum();
            tr {
                th scope="row" { (Count(others.len() as u64)) " others" }
                (figures(bytes, blocks, peak_bytes))
                td.bar {}
            }
        }
    };
    table(&[head, "Bytes", "Blocks", "Share of the peak", ""], &rows)
}

fn figures(bytes: u64, blocks: usize, peak_bytes: u64) -> Markup {
    html! {
        td { (Bytes(bytes)) }
        td { (Count(blocks as u64)) }
        td { (Percent(bytes as f64 / peak_bytes.max(1) as f64)) }
    }
}

fn user_frame(trace: &Trace, number: u32) -> Markup {
    trace.stacks().user_frame(number).map_or(html! { "no stack" }, |frame| named(&frame.name, &place(frame)))
}

fn named(function: &str, file: &str) -> Markup {
    html! { (function) " " span.muted { (file) } }
}

/// Returns the file of a frame, and its line if there is one.
fn place(frame: &StackFrame) -> String {
    match frame.line {
        0 => frame.filename.to_string(),
        line => format!("{}:{line}", frame.filename),
    }
}

/// Returns `name` as a cell that expands to a stack.
fn with_stack(trace: &Trace, name: impl Render, number: u32) -> Markup {
    html! {
        @if trace.stacks().frames(number).len() == 0 {
            span.long { (name) }
        } @else {
            details.long {
                summary { (name) }
                ol { (frame_items(trace, number)) }
            }
        }
    }
}

/// Returns the frames of a stack as the items of a list. Of a stack too long for the page, C++ frames are left out if
/// there are others, and then the outermost frames.
fn frame_items(trace: &Trace, number: u32) -> Markup {
    let frames: Vec<&StackFrame> = trace.stacks().frames(number).collect();
    let items: Vec<String> = frames.iter().map(|frame| frame_item(frame)).collect();
    let mut items: Vec<&str> = items.iter().map(String::as_str).collect();
    let is_too_long = items.iter().map(|item| item.len()).sum::<usize>() > STACK_BYTES;
    if is_too_long && frames.iter().any(|frame| frame.is_python()) {
        let mut is_python = frames.iter().map(|frame| frame.is_python());
        items.retain(|_| is_python.next().unwrap_or_default());
    }
    let mut taken = 0;
    let fitting = items.iter().take_while(|item| {
        taken += item.len();
        taken <= STACK_BYTES
    });
    items.truncate(fitting.count());
    let left_out = frames.len() - items.len();
    html! {
        (PreEscaped(items.concat()))
        @if left_out > 0 { li.muted { (left_out) " other frames; a click on a block above shows all" } }
    }
}

fn frame_item(frame: &StackFrame) -> String {
    html! { li { (named(&frame.name, &place(frame))) } }.into_string()
}

#[cfg(test)]
mod tests {
    use tenure_plan::ReadOptions;

    use super::*;

    /// Returns the items of a stack with `native` C++ frames and, around them, `python` frames, of which an item takes
    /// more than 100 bytes.
    fn items(native: usize, python: usize) -> Vec<String> {
        let name = "f".repeat(100);
        let frame = |file: &str| format!("(dVname\nV{name}\nsVfilename\nV{file}\nsa");
        let frames = frame("??").repeat(native) + &frame("a.py").repeat(python);
        let event = format!("(dVaction\nVoom\nsVdevice_free\nI1\nsVsize\nI8\nsVstream\nI0\nsVframes\n(l{frames}s");
        let pickle = format!("(dVdevice_traces\n(l(l{event}aas.");
        let trace = Trace::read_from(pickle.as_bytes(), "test", &ReadOptions::default()).unwrap();
        let items = frame_items(&trace, trace.stacks().number_of_event(0)).0;
        items.split_inclusive("</li>").map(str::to_owned).collect()
    }

    #[test]
    fn a_short_stack_is_whole_and_a_long_one_leaves_out_what_is_furthest_from_the_user() {
        assert_eq!(items(5, 5).len(), 10);
        let without_native = items(50, 5);
        assert!(without_native[..5].iter().all(|item| item.contains("a.py")));
        assert!(without_native[5].contains("50 other frames") && without_native.len() == 6);
        for long in [items(0, 100), items(100, 0)] {
            let shown = long.len() - 1;
            assert!(long[shown].contains(&format!("{} other frames", 100 - shown)), "{shown}");
            assert!(long[..shown].concat().len() <= STACK_BYTES);
        }
    }
}
