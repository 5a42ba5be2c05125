//! The page of a trace's report.

use maud::{Markup, html};

use super::Report;
use super::blocks::{self, PageOptions};
use super::html::{self, document, figure, keyed, section, table};
use super::peak;
use crate::Error;
use crate::replay::{ReplayOutcome, before_history, recorded, verdict};
use crate::units::{Bytes, Count, Micros, Percent};

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
    let title = report.trace.source();
    let header = html! {
        (header(report))
        (peak::out_of_memory(report.trace, report.summary.ooms))
    };
    let charts = html! {
        (peak::holders(report.trace, &report.summary))
        (section(
            "Allocator beside allocator",
            "What each allocator holds of the device while the program runs. Everything above the grey area is memory \
             that the program did not request: rounding, fragmentation, caches.",
            html! { (figure(&report.comparison)) (outcomes(&report.outcomes)) },
        ))
        (section(
            "Memory over time, by block size",
            "What the program asked for and had not freed yet.",
            figure(&report.by_size),
        ))
        @if let Some(chart) = &report.by_stream {
            (section(
                "Memory over time, by stream",
                "The same bytes, by the stream that each block was allocated on.",
                figure(chart),
            ))
        }
    };
    let footer = "Each point of a chart shows the highest value of its interval. The allocators were replayed on a \
                  simulated device; driver times are modelled after measurements of one NVIDIA H200.";
    let rest_bytes = document(title, &html! { (header) (charts) }, footer).len();
    let blocks = blocks::section(report.trace, options, rest_bytes);
    document(title, &html! { (header) (blocks) (charts) }, footer)
}

fn header(report: &Report<'_>) -> Markup {
    let Report { trace, summary, outcomes, .. } = report;
    let conf = &trace.settings().conf;
    let mut facts: Vec<(&str, String)> = vec![
        ("Peak requested", Bytes(summary.peak_requested_bytes).to_string()),
        ("Duration", summary.duration_us.map_or("not recorded".into(), |us| Micros(us as f64).to_string())),
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
    let remarks = html! { @for remark in remarks { p.verdict { (remark) "." } } };
    html::header("Memory report", trace.source(), &remarks, &facts)
}

fn outcomes(outcomes: &[ReplayOutcome]) -> Markup {
    let rows = html! {
        @for outcome in outcomes {
            tr {
                th scope="row" { (keyed(outcome.allocator.name(), outcome.allocator.name())) }
                td { (Bytes(outcome.peak_reserved_bytes)) }
                td { (Percent(outcome.overhead())) }
                // PyTorch counts none where they grow in place.
                td { @if outcome.peak_segments == 0 { "–" } @else { (Count(outcome.peak_segments)) } }
                td { (Count(outcome.driver_calls.total())) }
                td { (Micros(outcome.modelled_driver_us)) }
                td { (Count(outcome.host_syncs)) }
                td { (Count(outcome.cross_stream_waits)) }
            }
        }
    };
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
    table(&heads, &rows)
}
