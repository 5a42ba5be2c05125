//! The sections of a trace's page that explain a shortage of memory: failed allocations, and the holders of the peak.

use std::fmt::Display;

use tenure_plan::{Holder, HolderModule, Holders, StackFrame, Summary, Trace};

use super::escape::escape;
use super::html::{row, section, table};
use crate::units::{Bytes, Count, Micros, Percent};

/// The most bytes of a stack's frames; 45 stacks stay within the half megabyte of a page's charts and tables.
const STACK_BYTES: usize = 6000;

/// Returns the section of failed allocations, of which there were `count`; empty if there were none.
pub(super) fn out_of_memory(trace: &Trace, count: usize) -> String {
    if count == 0 {
        return String::new();
    }
    let failed = trace.out_of_memory();
    let rows = failed.iter().map(|failed| {
        let name = format!("event {}{}", Count(failed.event as u64), after(trace, failed.event));
        let of_segments = |bytes: Option<u64>| bytes.map_or("not recorded".into(), |bytes| Bytes(bytes).to_string());
        row(
            with_stack(trace, &name, trace.stacks().number_of_event(failed.event)),
            &[
                &Bytes(failed.requested_bytes),
                &Bytes(failed.device_free_bytes),
                &of_segments(failed.reserved_bytes),
                &Bytes(failed.live_bytes),
                &of_segments(failed.largest_free_bytes),
            ],
        )
    });
    let heads = ["Failed allocation", "Asked for", "Free on the device", "Reserved", "Live", "Largest free block"];
    let mut text =
        "Each request that failed, and the memory at that moment. Reserved memory that is not live helps only if \
                    one free block of it is large enough."
            .to_owned();
    if failed.len() < count {
        text += &format!(" The last {} of {} are listed.", failed.len(), Count(count as u64));
    }
    section("Out of memory", &text, &table(&heads, rows))
}

/// Returns the time of an event after the first, as a clause; empty if the recorder had no clock.
fn after(trace: &Trace, event: usize) -> String {
    let first_us = trace.events().first().filter(|_| trace.has_times()).map(|first| first.time_us);
    first_us.map_or(String::new(), |first_us| {
        format!(", after {}", Micros((trace.events()[event].time_us - first_us) as f64))
    })
}

/// Returns the section of the blocks that were live at the peak.
pub(super) fn holders(trace: &Trace, summary: &Summary) -> String {
    let holders = trace.holders(&summary.live_at_peak);
    let peak_bytes = summary.peak_requested_bytes;
    let by_stack = holders_table(trace, "Stack", &holders.by_stack, peak_bytes, |&number| user_frame(trace, number));
    let by_module = holders_table(trace, "Module", &holders.by_module, peak_bytes, |module| match module {
        HolderModule::Function { filename, name } => named(name, filename),
        module => escape(&module.to_string()),
    });
    let by_size = holders_table(trace, "Block size", &holders.by_size, peak_bytes, |&bytes| {
        format!("{} <span class=\"muted\">({} bytes)</span>", Bytes(bytes), Count(bytes))
    });
    let text = if trace.stacks().is_empty() {
        "Blocks that are live when the program needs most. The recording has no stacks."
    } else {
        "Blocks that are live when the program needs most: by stack, named after its innermost frame outside of PyTorch; by the \
         function or tag; and by size. A click on a name shows the stack, or the one of several that holds most."
    };
    section("Who holds the peak", text, &[by_stack, by_module, by_size].concat())
}

/// Returns the table of some holders; empty if there are none.
fn holders_table<K>(
    trace: &Trace,
    head: &str,
    holders: &[Holder<K>],
    peak_bytes: u64,
    name: impl Fn(&K) -> String,
) -> String {
    let Some(largest) = holders.first() else { return String::new() };
    let line = |name: &dyn Display, blocks: usize, bytes: u64, bar: &str| {
        let share = Percent(bytes as f64 / peak_bytes.max(1) as f64);
        format!(
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td>{share}</td><td class=\"bar\">{bar}</td></tr>\n",
            Bytes(bytes),
            Count(blocks as u64),
        )
    };
    let (listed, others) = holders.split_at(holders.len().min(Holders::LISTED));
    let mut rows: Vec<String> = listed
        .iter()
        .map(|holder| {
            let width = 100.0 * holder.bytes as f64 / largest.bytes.max(1) as f64;
            let name = with_stack(trace, &name(&holder.key), holder.stack);
            line(&name, holder.blocks, holder.bytes, &format!("<i style=\"width:{width:.1}%\"></i>"))
        })
        .collect();
    if !others.is_empty() {
        let blocks = others.iter().map(|holder| holder.blocks).sum();
        let bytes = others.iter().map(|holder| holder.bytes).sum();
        rows.push(line(&format_args!("{} others", Count(others.len() as u64)), blocks, bytes, ""));
    }
    table(&[head, "Bytes", "Blocks", "Share of the peak", ""], rows.into_iter())
}

/// Returns the name of a stack as HTML.
fn user_frame(trace: &Trace, number: u32) -> String {
    trace.stacks().user_frame(number).map_or("no stack".into(), |frame| named(&frame.name, &place(frame)))
}

fn named(function: &str, file: &str) -> String {
    format!("{} <span class=\"muted\">{}</span>", escape(function), escape(file))
}

/// Returns the file of a frame, and its line if there is one.
fn place(frame: &StackFrame) -> String {
    match frame.line {
        0 => frame.filename.to_string(),
        line => format!("{}:{line}", frame.filename),
    }
}

/// Returns `name`, which is HTML, as a cell that expands to a stack.
fn with_stack(trace: &Trace, name: &str, number: u32) -> String {
    let frames = trace.stacks().frames(number);
    match frames.len() {
        0 => format!("<span class=\"long\">{name}</span>"),
        _ => format!(
            "<details class=\"long\"><summary>{name}</summary><ol>{}</ol></details>",
            frame_items(trace, number)
        ),
    }
}

/// Returns the frames of a stack as the items of a list. Of a stack too long for the page, C++ frames are left out if
/// there are others, and then the outermost frames.
fn frame_items(trace: &Trace, number: u32) -> String {
    let frames: Vec<&StackFrame> = trace.stacks().frames(number).collect();
    let item = |frame: &&StackFrame| format!("<li>{}</li>", named(&frame.name, &place(frame)));
    let mut items: Vec<String> = frames.iter().map(item).collect();
    let bytes = |items: &[String]| items.iter().map(String::len).sum::<usize>();
    if bytes(&items) > STACK_BYTES && frames.iter().any(|frame| frame.is_python()) {
        items = frames.iter().filter(|frame| frame.is_python()).map(item).collect();
    }
    let mut taken = 0;
    let fitting = items.iter().take_while(|item| {
        taken += item.len();
        taken <= STACK_BYTES
    });
    let fitting = fitting.count();
    items.truncate(fitting);
    if items.len() < frames.len() {
        let left_out = frames.len() - items.len();
        items.push(format!("<li class=\"muted\">{left_out} other frames; a click on a block above shows all</li>"));
    }
    items.concat()
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
        let items = frame_items(&trace, trace.stacks().number_of_event(0));
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
