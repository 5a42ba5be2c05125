//! The holders of a trace's peak and its failed allocations, as text.

use tenure::plan::{OutOfMemory, Summary, Trace};
use tenure::units::{Bytes, Percent};

use crate::files;

/// The most stacks that are shown.
const STACKS: usize = 5;
/// The most failed allocations that are shown.
const FAILURES: usize = 3;

/// Returns a line for each of the stacks that hold most of the peak; nothing if the trace has no stacks.
pub(super) fn holders(trace: &Trace, summary: &Summary) -> String {
    let by_stack = trace.holders(&summary.live_at_peak).by_stack;
    if by_stack.is_empty() {
        return String::new();
    }
    let (largest, others) = by_stack.split_at(by_stack.len().min(STACKS));
    let largest = largest.iter().map(|holder| match trace.stacks().user_frame(holder.key) {
        Some(frame) => line(summary, holder.bytes, &files::on_one_line(&frame.to_string())),
        None => line(summary, holder.bytes, "no stack was recorded"),
    });
    let others_bytes = others.iter().map(|holder| holder.bytes).sum();
    let others = (!others.is_empty()).then(|| line(summary, others_bytes, &format!("{} other stacks", others.len())));
    format!("\n  held at the peak, by stack\n{}", largest.chain(others).collect::<String>())
}

fn line(summary: &Summary, bytes: u64, holder: &str) -> String {
    let share = bytes as f64 / summary.peak_requested_bytes.max(1) as f64;
    format!("  {:>10}  {:>6}  {holder}\n", Bytes(bytes).to_string(), Percent(share).to_string())
}

/// Returns a fact about each of the last failed allocations.
pub(super) fn failures(trace: &Trace) -> Vec<(&'static str, String)> {
    let failed = trace.out_of_memory();
    let last = &failed[failed.len().saturating_sub(FAILURES)..];
    last.iter().map(|failure| ("", describe(trace, failure))).collect()
}

fn describe(trace: &Trace, failure: &OutOfMemory) -> String {
    let event = failure.event.saturating_sub(trace.earlier_events());
    let asked = Bytes(failure.requested_bytes);
    let free = Bytes(failure.device_free_bytes);
    let largest = match failure.largest_free_bytes {
        Some(bytes) => format!("{} in the largest free block", Bytes(bytes)),
        None => "the largest free block is not recorded".into(),
    };
    format!("event {event}: {asked} asked for, {free} free on the device, {largest}")
}
