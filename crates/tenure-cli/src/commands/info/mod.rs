//! `tenure trace info`: summarizes a trace.

mod facts;
mod memory;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tenure::plan::{SegmentCoverage, SegmentTotals, Summary, Trace, TraceError};
use tenure::units::{Bytes, Count, Micros, Percent};

use crate::figures::table;
use crate::files;
use crate::values::TraceSource;

/// Summarize a trace: counts, the peak and its holders, failed allocations, sizes
#[derive(clap::Args)]
#[command(after_help = "\
A snapshot may have no history, such as a pickled torch.cuda.memory.memory_snapshot(). Then it shows the segments of one \
moment.

Examples:
  tenure trace info snapshot.pickle.xz
  tenure trace info rank*/snapshot.pickle --json
  zstd -dc snapshot.pickle.zst | tenure trace info -")]
pub(crate) struct InfoArgs {
    /// PyTorch memory snapshots (.pickle, also as .xz or .gz) or compact traces (.ttrace), detected by content; - is
    /// standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object per line for each file; null is a figure that the file does not have
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: TraceSource,
}

pub(crate) fn run(args: &InfoArgs) -> ExitCode {
    let mut names = files::distinct_names(&args.files).into_iter();
    files::for_each(&args.files, |path| {
        let name = names.next().unwrap_or_else(|| Trace::source_of(path));
        let info = Info::read(path, name, &args.source)?;
        if args.json { Ok(serde_json::to_string(&info.facts())? + "\n") } else { Ok(info.text()) }
    })
}

/// The content of a file.
enum Info {
    /// A history.
    History { trace: Box<Trace>, summary: Summary },
    /// Segments at one moment.
    Moment { name: String, totals: SegmentTotals },
}

impl Info {
    fn read(path: &Path, name: String, source: &TraceSource) -> Result<Self, TraceError> {
        match files::read_named(path, name, source) {
            Ok(trace) => Ok(Self::History { summary: trace.summary(), trace: Box::new(trace) }),
            Err(TraceError::InFile { path, source }) => match *source {
                TraceError::NoHistory { source_name, totals, .. } => Ok(Self::Moment { name: source_name, totals }),
                source => Err(source.in_file(path)),
            },
            Err(error) => Err(error),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::History { trace, summary } => describe(trace, summary),
            Self::Moment { name, totals } => describe_moment(name, totals),
        }
    }
}

fn describe_moment(name: &str, totals: &SegmentTotals) -> String {
    let facts = [
        ("history", "none: these are the segments of one moment".to_owned()),
        ("segments", Count(totals.segments as u64).to_string()),
        ("reserved", Bytes(totals.reserved_bytes).to_string()),
        ("live", format!("{} in {}", Bytes(totals.live_bytes), counted(totals.live_blocks, "block"))),
        ("free in segments", Bytes(totals.free_bytes).to_string()),
        ("largest free", Bytes(totals.largest_free_bytes).to_string()),
        ("fragmentation", format!("{} of the free bytes are not in it", Percent(totals.fragmentation()))),
    ];
    let record = "For a history, call torch.cuda.memory._record_memory_history() before the program allocates.";
    format!("{name}\n{}\n{record}\n\n", lines(&facts))
}

fn lines(facts: &[(&str, String)]) -> String {
    facts.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect()
}

fn reserved(summary: &Summary) -> String {
    let peak = Bytes(summary.peak_segment_bytes);
    let end = Bytes(summary.end_segment_bytes);
    match summary.segment_coverage {
        SegmentCoverage::Unrecorded => "not recorded".into(),
        SegmentCoverage::Complete => format!("{peak} at the peak, {end} at the end"),
        SegmentCoverage::Partial => format!("at least {peak} at the peak, {end} at the end"),
    }
}

fn describe(trace: &Trace, summary: &Summary) -> String {
    let unknown = || "unknown: times were not recorded".into();
    let duration = summary.duration_us.map_or_else(unknown, |us| Micros(us as f64).to_string());
    let mut facts = vec![
        ("device", trace.device().to_string()),
        ("events", Count(summary.events as u64).to_string()),
        (
            "allocations",
            format!("{} on {}", Count(summary.allocations as u64), counted(summary.streams.len(), "stream")),
        ),
        ("duration", duration),
        ("peak requested", peak(trace, summary)),
        ("live at the end", Bytes(summary.live_at_end_bytes).to_string()),
        ("segments", Count(summary.segments as u64).to_string()),
        ("reserved", reserved(summary)),
        ("out of memory", counted(summary.ooms, "time")),
    ];
    facts.extend(memory::failures(trace));
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
    let facts = lines(&facts);
    let holders = memory::holders(trace, summary);
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
    format!("{}\n{facts}{holders}\n{classes}\n", trace.source())
}

fn peak(trace: &Trace, summary: &Summary) -> String {
    let bytes = summary.peak_requested_bytes;
    match (summary.peak_event, trace.events().first()) {
        (Some(event), Some(first)) => {
            let after = Micros((trace.events()[event].time_us - first.time_us) as f64);
            let place = match event.checked_sub(trace.earlier_events()) {
                Some(event) if trace.has_times() => format!("at event {event}, after {after}"),
                Some(event) => format!("at event {event}"),
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
