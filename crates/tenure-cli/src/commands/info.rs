//! `tenure trace info`: summarizes a trace.

use std::path::PathBuf;
use std::process::ExitCode;

use tenure::plan::{Summary, Trace};
use tenure::units::{Bytes, Count, Micros};

use crate::files;
use crate::table::table;
use crate::values::TraceSource;

/// Summarize a trace: counts, the peak, sizes
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tenure trace info snapshot.pickle.xz")]
pub(crate) struct InfoArgs {
    /// PyTorch memory snapshots (.pickle, also as .xz or .gz) or compact traces (.ttrace), detected by content
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    source: TraceSource,
}

pub(crate) fn run(args: &InfoArgs) -> ExitCode {
    files::for_each(&args.files, |path| Ok(describe(&files::read(path, &args.source)?)))
}

fn describe(trace: &Trace) -> String {
    let summary = trace.summary();
    let mut facts = vec![
        ("device", trace.device().to_string()),
        ("events", Count(summary.events as u64).to_string()),
        (
            "allocations",
            format!("{} on {}", Count(summary.allocations as u64), counted(summary.streams.len(), "stream")),
        ),
        ("duration", Micros(summary.duration_us as f64).to_string()),
        ("peak requested", peak(trace, &summary)),
        ("live at the end", Bytes(summary.live_at_end_bytes).to_string()),
        ("segments", Count(summary.segments as u64).to_string()),
        ("most in segments", Bytes(summary.peak_segment_bytes).to_string()),
        ("out of memory", counted(summary.ooms, "time")),
    ];
    if summary.earlier_blocks > 0 {
        let blocks = counted(summary.earlier_blocks, "block");
        facts.push((
            "before",
            format!("{} in {blocks} were live before the history begins", Bytes(summary.earlier_bytes)),
        ));
    }
    if !trace.settings().conf.is_empty() {
        facts.push(("settings", trace.settings().conf.clone()));
    }
    let facts: String = facts.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect();
    let classes: Vec<_> = summary
        .size_classes
        .iter()
        .map(|class| {
            [
                format!("  {} and up", class.class),
                Count(class.allocations as u64).to_string(),
                Bytes(class.bytes).to_string(),
                Bytes(class.live_at_peak_bytes).to_string(),
            ]
        })
        .collect();
    let classes = table(&["  block size", "allocations", "allocated", "live at the peak"], &classes);
    format!("{}\n{facts}\n{classes}\n", trace.source())
}

fn peak(trace: &Trace, summary: &Summary) -> String {
    let bytes = summary.peak_requested_bytes;
    match (summary.peak_event, trace.events().first()) {
        (Some(event), Some(first)) => {
            let after = Micros((trace.events()[event].time_us - first.time_us) as f64);
            let place = match event.checked_sub(trace.earlier_events()) {
                Some(event) => format!("at event {event}, after {after}"),
                None => "before the first event".into(),
            };
            format!("{} ({} bytes), {place}", Bytes(bytes), Count(bytes))
        }
        _ => Bytes(bytes).to_string(),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{} {what}{}", Count(count as u64), if count == 1 { "" } else { "s" })
}
