//! Reports as HTML. [`Report`] shows a trace and its replay on each allocator; [`MemoryReport`] shows a running
//! program's memory by tag and module; [`TrainingReport`] shows a training run, [`LearningReport`] a policy's training;
//! [`SwitchReport`] shows models that share a device, [`ServingReport`] the requests to them.
//!
//! Each report is one file. It needs no network; only the interactive blocks of a trace need a script. It follows the
//! user's light or dark setting, and its charts' hover texts explain the lines.

mod axis;
mod blocks;
#[cfg_attr(not(feature = "nn"), expect(dead_code, reason = "what the reports of training show"))]
mod chart;
mod history;
mod html;
#[cfg(feature = "nn")]
mod learning;
mod memory;
#[cfg(feature = "nn")]
mod offload;
mod page;
mod peak;
mod serving;
mod svg;
mod switching;
#[cfg(feature = "nn")]
mod training;

use std::ops::ControlFlow;

use tenure_plan::{Summary, Trace};

pub use blocks::PageOptions;
#[cfg(feature = "nn")]
pub use learning::LearningReport;
pub use memory::{BlockUse, MemoryFigure, MemoryReport, ModuleUse, SegmentUse, TagUse};
pub use serving::{ModelLatencies, SentRequest, ServingReport};
pub use switching::{ModelTimes, SwitchReport};
#[cfg(feature = "nn")]
pub use training::TrainingReport;

use crate::Error;
use crate::replay::{AllocatorKind, Replay, ReplayOutcome, ReplayProgress};
use crate::units::Bytes;
use axis::{Unit, WIDE};
use chart::{Chart, DrawnAs, Marker, Series};
use history::{Bins, Composition, Envelope};

/// The report of a trace that was replayed once on every allocator.
pub struct Report<'a> {
    trace: &'a Trace,
    summary: Summary,
    outcomes: Vec<ReplayOutcome>,
    comparison: Chart,
    by_size: Chart,
    by_stream: Option<Chart>,
}

impl<'a> Report<'a> {
    /// Replays `trace` on every allocator.
    ///
    /// # Errors
    /// The errors of [`Replay::run`].
    pub fn new(trace: &'a Trace) -> Result<Self, Error> {
        Self::observed(trace, |_, _| ControlFlow::Continue(()))
    }

    /// Replays `trace` like [`new`](Self::new), and reports the progress to `observe`, which can stop it.
    ///
    /// # Errors
    /// The errors of [`Replay::run_observed`].
    pub fn observed(
        trace: &'a Trace,
        mut observe: impl FnMut(AllocatorKind, ReplayProgress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let bins = Bins::of(trace);
        let mut outcomes = Vec::new();
        let mut series = Vec::new();
        let mut requested = Envelope::default();
        for &allocator in AllocatorKind::ALL {
            let mut reserved = Envelope::default();
            requested = Envelope::default();
            let outcome = Replay::new(allocator).run_observed(trace, |progress| {
                // A replay may start again with other addresses.
                if progress.event == 0 {
                    (requested, reserved) = Default::default();
                }
                let bin = bins.of_event(progress.event);
                requested.set(bin, progress.requested_bytes);
                reserved.set(bin, progress.reserved_bytes);
                observe(allocator, progress)
            })?;
            series.push(Series::new(allocator.name(), allocator.name(), DrawnAs::Line, reserved.finish()));
            outcomes.push(outcome);
        }
        series.insert(0, Series::new("requested", "requested", DrawnAs::Area, requested.finish()));

        let comparison = Chart::new(
            "Memory held over time",
            trace.source(),
            "Bytes that each allocator holds of the device, over the bytes that the program asked for.",
            bins.span(),
            Unit::Bytes,
            series,
        );
        let summary = trace.summary();
        let marker = summary.peak_event.map(|event| Marker {
            bin: bins.of_event(event),
            text: format!("peak {}", Bytes(summary.peak_requested_bytes)),
        });
        let stacked = |subject: &str, composition: Composition| {
            let description = "Bytes that the program asked for and had not freed, stacked.";
            let series = composition.into_series();
            Chart::new(subject, trace.source(), description, bins.span(), Unit::Bytes, series)
                .with_marker(marker.clone())
        };
        let by_size = stacked("Live bytes by block size", Composition::by_size(trace, &bins));
        let several = summary.streams.len() > 1;
        let by_stream =
            several.then(|| stacked("Live bytes by stream", Composition::by_stream(trace, &bins, &summary.streams)));
        Ok(Self { trace, summary, outcomes, comparison, by_size, by_stream })
    }

    /// Returns the outcome of each replay.
    pub fn outcomes(&self) -> &[ReplayOutcome] {
        &self.outcomes
    }

    /// Returns the chart that compares the allocators: one SVG file.
    pub fn comparison_svg(&self) -> String {
        self.comparison.drawing(WIDE).file()
    }
}
