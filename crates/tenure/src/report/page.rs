//! The page of a trace's report.

use super::Report;
use super::blocks::{self, PageOptions};
use super::history::Holders;
use super::html::{self, document, figure, remark, row, section, table};
use crate::Error;
use crate::replay::{ReplayOutcome, before_history, recorded, verdict};
use crate::units::{Bytes, Count, Micros, Percent};

/// The number of groups of equal blocks that the peak's table lists one by one.
const HOLDERS: usize = 15;

impl Report<'_> {
    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        page(self, &PageOptions::default())
    }

    /// Returns the report like [`html`](Self::html); `options` limit its size and choose the blocks that it shows.
    ///
    /// # Errors
    /// [`Error::PageTooSmall`] if its charts alone exceed the limit.
    pub fn html_with(&self, options: &PageOptions) -> Result<String, Error> {
        let page = page(self, options);
        let page_bytes = options.page_bytes;
        let least_bytes = page.len() as u64;
        if least_bytes > page_bytes { Err(Error::PageTooSmall { page_bytes, least_bytes }) } else { Ok(page) }
    }
}

fn page(report: &Report<'_>, options: &PageOptions) -> String {
    let header = header(report);
    let sections = [
        section(
            "Allocator beside allocator",
            "What each allocator holds of the device while the program runs. Everything above the grey area is memory \
             that the program did not request: rounding, fragmentation, caches.",
            &format!("{}{}", figure(&report.comparison), outcomes(&report.outcomes)),
        ),
        section(
            "Memory over time, by block size",
            "What the program asked for and had not freed yet.",
            &figure(&report.by_size),
        ),
        report.by_stream.as_ref().map_or(String::new(), |chart| {
            section(
                "Memory over time, by stream",
                "The same bytes, by the stream that each block was allocated on.",
                &figure(chart),
            )
        }),
        section(
            "Who holds the peak",
            "Blocks that are live when the program needs most, equal sizes together.",
            &holders(report),
        ),
    ];
    let footer = "Each point of a chart shows the highest value of its interval. The allocators were replayed on a \
                  simulated device; driver times are modelled after measurements of one NVIDIA H200.";
    let charts = sections.concat();
    let blocks = blocks::section(report.trace, options, document(&header, &charts, footer).len());
    document(report.trace.source(), &[header, blocks, charts].concat(), footer)
}

fn header(report: &Report<'_>) -> String {
    let Report { trace, summary, outcomes, .. } = report;
    let conf = &trace.settings().conf;
    let mut facts: Vec<(&str, String)> = vec![
        ("Peak requested", Bytes(summary.peak_requested_bytes).to_string()),
        ("Duration", duration(summary.duration_us)),
        ("Events", Count(summary.events as u64).to_string()),
        ("Allocations", Count(summary.allocations as u64).to_string()),
        ("Streams", summary.streams.len().to_string()),
        ("Segments recorded", Count(summary.segments as u64).to_string()),
        ("Out of memory", format!("{} times", summary.ooms)),
        ("Live at the end", Bytes(summary.live_at_end_bytes).to_string()),
        ("Device", trace.device().to_string()),
    ];
    if !conf.is_empty() {
        facts.push(("PYTORCH_CUDA_ALLOC_CONF", conf.clone()));
    }
    let recorded = outcomes.first().and_then(recorded);
    let remarks = verdict(outcomes).into_iter().chain(recorded).chain(before_history(summary.earlier_bytes));
    let remarks: String = remarks.map(|said| remark(&(said + "."), "verdict")).collect();
    html::header("Memory report", trace.source(), &remarks, &facts)
}

/// Formats a duration; a trace without times has none.
fn duration(us: u64) -> String {
    if us == 0 { "not recorded".into() } else { Micros(us as f64).to_string() }
}

fn outcomes(outcomes: &[ReplayOutcome]) -> String {
    let rows = outcomes.iter().map(|outcome| {
        row(
            format_args!("<span class=\"swatch {0}\"></span>{0}", outcome.allocator),
            &[
                &Bytes(outcome.peak_reserved_bytes),
                &Percent(outcome.overhead()),
                &segments(outcome),
                &Count(outcome.driver_calls.total()),
                &Micros(outcome.modelled_driver_us),
                &Count(outcome.host_syncs),
                &Count(outcome.cross_stream_waits),
            ],
        )
    });
    let heads = [
        "Allocator",
        "Peak reserved",
        "over requested",
        "Segments",
        "Driver calls",
        "Driver time",
        "Host waits",
        "Stream waits",
    ];
    table(&heads, rows)
}

/// Returns the number of segments; PyTorch counts none where they grow in place.
fn segments(outcome: &ReplayOutcome) -> String {
    if outcome.peak_segments == 0 { "–".into() } else { Count(outcome.peak_segments).to_string() }
}

fn holders(report: &Report<'_>) -> String {
    let peak = report.summary.peak_requested_bytes;
    let groups = Holders::at_peak(&report.summary.live_at_peak);
    let share = |bytes: u64| if peak == 0 { 0.0 } else { bytes as f64 / peak as f64 };
    let largest = groups.first().map_or(1.0, |group| share(group.total_bytes()));
    let (named, others) = groups.split_at(groups.len().min(HOLDERS));
    let bar = |bytes: u64| format!("<i style=\"width:{:.1}%\"></i>", 100.0 * share(bytes) / largest);
    let line = |name: String, blocks: u64, bytes: u64, bar: String| {
        format!(
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"bar\">{bar}</td></tr>\n",
            Count(blocks),
            Bytes(bytes),
            Percent(share(bytes))
        )
    };
    let mut rows: Vec<String> = named
        .iter()
        .map(|group| {
            let name = format!("{} <span class=\"muted\">({} bytes)</span>", Bytes(group.bytes), Count(group.bytes));
            line(name, group.blocks, group.total_bytes(), bar(group.total_bytes()))
        })
        .collect();
    if !others.is_empty() {
        let blocks = others.iter().map(|group| group.blocks).sum();
        let bytes = others.iter().map(Holders::total_bytes).sum();
        rows.push(line(format!("{} other sizes", Count(others.len() as u64)), blocks, bytes, String::new()));
    }
    table(&["Block size", "Blocks", "Together", "Share of the peak", ""], rows.into_iter())
}
