//! The report on a training run: loss, memory and time over its steps.

use maud::{Markup, html};
use tenure_core::Tag;
use tenure_nn::train::{Moment, Recording, Step, TagBytes};
use tenure_offload::StepRecord;

use super::axis::{BINS, Span, Unit};
use super::chart::{Chart, DrawnAs, Series};
use super::html::{self, document, figure, keyed, section, table};
use super::offload;
use crate::units::{Bytes, Percent};

/// The names of tags, in the order in which they are stacked: lasting tensors come first.
const TAGS: [(Tag, &str); Tag::ALL.len()] = [
    (Tag::Weight, "parameters"),
    (Tag::OptimizerState, "optimizer state"),
    (Tag::Gradient, "gradients"),
    (Tag::Activation, "activations"),
    (Tag::Workspace, "workspaces"),
    (Tag::Input, "data"),
    (Tag::Unknown, "other"),
];

/// A report on a training run: one HTML file with its loss, the memory of its tensors by purpose, and the time of its
/// steps.
pub struct TrainingReport<'a> {
    title: &'a str,
    facts: &'a [(&'static str, String)],
    steps: &'a [Step],
    recorded: Option<(u64, Recording)>,
    offload: Option<(u64, StepRecord)>,
    unfinished: Option<&'a str>,
}

impl<'a> TrainingReport<'a> {
    /// Makes a report called `title` on a run of these steps. `facts` are the settings and results of the run.
    pub fn new(title: &'a str, facts: &'a [(&'static str, String)], steps: &'a [Step]) -> Self {
        Self { title, facts, steps, recorded: None, offload: None, unfinished: None }
    }

    /// Adds a recording of the memory during one step.
    #[must_use]
    pub fn with_step(self, number: u64, recording: Recording) -> Self {
        Self { recorded: Some((number, recording)), ..self }
    }

    /// Adds a record of the offloading in one step.
    #[must_use]
    pub fn with_offload(self, number: u64, record: StepRecord) -> Self {
        Self { offload: Some((number, record)), ..self }
    }

    /// Marks the run as ended early: `how` says so in one sentence at the top of the page.
    #[must_use]
    pub fn unfinished(self, how: &'a str) -> Self {
        Self { unfinished: Some(how), ..self }
    }

    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        let unfinished = html! { @if let Some(how) = self.unfinished { p.verdict.unfinished { (how) } } };
        let body = html! {
            (html::header("Training report", self.title, &unfinished, self.facts))
            @if self.steps.is_empty() { p { "No step was made." } } @else { (self.sections()) }
        };
        let footer = "Where a chart has more steps than points, a point shows several: their mean, and of memory the \
                      highest.";
        document(self.title, &body, footer)
    }

    fn sections(&self) -> Markup {
        html! {
            (section(
                "Loss",
                "Of each batch, before its step; the smooth line is a mean over the steps before, those long ago counting \
                 less.",
                figure(&self.loss()),
            ))
            (section(
                "Memory over the run",
                "What tensors held in each step. Areas: by what it was for, at the fullest of three moments: after the \
                 forward pass, after the backward pass, and after the update. Line: the most at any moment, as the \
                 allocator counted.",
                html! { (figure(&self.memory())) (self.holders()) },
            ))
            @if let Some((number, recording)) = self.recorded.as_ref().filter(|(_, recording)| recording.len() > 1) {
                (section(
                    &format!("Memory during step {number}"),
                    "The forward pass fills memory with activations, the backward pass turns them into gradients, and \
                     the update uses those up.",
                    figure(&self.during(*number, recording)),
                ))
            }
            @if let Some((number, record)) = &self.offload { (offload::sections(self.title, *number, record)) }
            (section(
                "Step time",
                "From asking for the batch until the parameters are updated.",
                figure(&self.time()),
            ))
        }
    }

    fn loss(&self) -> Chart {
        let raw: Vec<f64> = self.steps.iter().map(|step| f64::from(step.loss)).collect();
        let series = [("of each batch", "raw", thinned(&raw)), ("smooth", "smooth", thinned(&smooth(&raw)))];
        let series = series.map(|(name, class, values)| Series::of_numbers(name, class, DrawnAs::Line, values));
        Chart::new("Loss", self.title, "Loss over the steps.", self.span(), Unit::Number, series.into())
    }

    fn time(&self) -> Chart {
        let times: Vec<f64> = self.steps.iter().map(|step| step.elapsed_ms).collect();
        let series = vec![Series::of_numbers("of each step", "smooth", DrawnAs::Line, thinned(&times))];
        Chart::new("Step time", self.title, "Time of each step.", self.span(), Unit::Ms, series)
    }

    fn memory(&self) -> Chart {
        let bins: Vec<_> = (0..BINS)
            .map(|bin| {
                let steps = &self.steps[range(bin, self.steps.len())];
                steps.iter().max_by_key(|step| step.memory.peak_bytes).map(|step| step.memory).unwrap_or_default()
            })
            .collect();
        let mut series = stacked(bins.iter().map(|memory| memory.tags).collect());
        let peaks = bins.iter().map(|memory| memory.peak_bytes).collect();
        series.push(Series::new("most at any moment", "most", DrawnAs::Line, peaks));
        let description = "Bytes that tensors held in each step, stacked by what they were for.";
        Chart::new("Memory over the run", self.title, description, self.span(), Unit::Bytes, series)
    }

    fn during(&self, number: u64, recording: &Recording) -> Chart {
        let end_us = recording.last().map_or(0, |moment| moment.at_us).max(1);
        // The last value seen before the point.
        let bins = (0..BINS).map(|bin| {
            let us = end_us * (bin as u64 + 1) / BINS as u64;
            let next = recording.partition_point(|moment: &Moment| moment.at_us <= us);
            recording[next.saturating_sub(1)].tags
        });
        let subject = format!("Memory during step {number}");
        let description = "Bytes that tensors held over one step, stacked by what they were for.";
        Chart::new(&subject, self.title, description, Span::Us(end_us), Unit::Bytes, stacked(bins.collect()))
    }

    fn span(&self) -> Span {
        Span::Steps(self.steps.len() as u64)
    }

    /// Returns the table of bytes by tag: at the fullest of each step's three moments, and each tag at its highest.
    fn holders(&self) -> Markup {
        let fullest = self.steps.iter().map(|step| step.memory.tags).max_by_key(TagBytes::total).unwrap_or_default();
        let rows = html! {
            @for (tag, name) in TAGS {
                @let highest = self.steps.iter().map(|step| step.memory.tag_peaks.of(tag)).max().unwrap_or(0);
                @if highest > 0 {
                    tr {
                        th scope="row" { (keyed(&format!("tag-{tag}"), name)) }
                        td { (Bytes(highest)) }
                        td { (Bytes(fullest.of(tag))) }
                        td { (Percent(fullest.of(tag) as f64 / fullest.total().max(1) as f64)) }
                    }
                }
            }
        };
        table(&["", "Most at any moment", "At the fullest of the three", "Share of it"], &rows)
    }
}

/// Returns the steps that a bin shows: at least one.
fn range(bin: usize, steps: usize) -> std::ops::Range<usize> {
    let start = bin * steps / BINS;
    start..((bin + 1) * steps / BINS).max(start + 1)
}

/// Returns a value for each bin: the mean of its steps, for the hover text and the areas of memory.
fn thinned(values: &[f64]) -> Vec<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    (0..BINS).map(|bin| mean(&values[range(bin, values.len())])).collect()
}

/// Returns an exponential moving mean, weighted like a mean over a 30th of the steps, but at least five.
fn smooth(values: &[f64]) -> Vec<f64> {
    let keep = 1.0 - 2.0 / ((values.len() as f64 / 30.0).max(5.0) + 1.0);
    let mut sum = 0.0;
    let mut weight = 0.0;
    values
        .iter()
        .map(|value| {
            (sum, weight) = (sum * keep + value, weight * keep + 1.0);
            sum / weight
        })
        .collect()
}

/// Returns tags as stacked areas, without tags that were never used.
fn stacked(bins: Vec<TagBytes>) -> Vec<Series> {
    TAGS.into_iter()
        .filter_map(|(tag, name)| {
            let values: Vec<u64> = bins.iter().map(|tags| tags.of(tag)).collect();
            let is_used = values.iter().any(|bytes| *bytes > 0);
            is_used.then(|| Series::new(name, format!("tag-{tag}"), DrawnAs::Stacked, values))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_early_says_so_before_its_facts() {
        let facts = [("Data", "some".to_owned())];
        let report = TrainingReport::new("a model", &facts, &[]);
        assert!(!report.html().contains("<p class=\"verdict"));
        let html = report.unfinished("Interrupted after 3 of 40 steps, <so>.").html();
        let said = html.find("Interrupted after 3 of 40 steps, &lt;so&gt;.").unwrap();
        assert!(html.find("<h1>").unwrap() < said && said < html.find("<dl>").unwrap(), "{html}");
    }

    #[test]
    fn a_few_values_each_fill_their_step_and_many_are_averaged() {
        let few = thinned(&[0.0, 1.0]);
        assert_eq!((few.len(), &few[..BINS / 2], &few[BINS / 2..]), (BINS, &[0.0; BINS / 2][..], &[1.0; BINS / 2][..]));
        let many: Vec<f64> = (0..3 * BINS).map(|index| index as f64).collect();
        assert_eq!(thinned(&many)[..2], [1.0, 4.0]);
        assert_eq!(thinned(&[7.0]), [7.0; BINS]);
    }

    #[test]
    fn a_smooth_line_begins_where_values_do_and_follows_them() {
        assert!(smooth(&[3.0; 9]).iter().all(|value| (value - 3.0).abs() < 1e-12));
        let jump: Vec<f64> = (0..60).map(|index| if index < 30 { 1.0 } else { 2.0 }).collect();
        let smooth = smooth(&jump);
        assert!(smooth[30] > 1.0 && smooth[30] < 1.5 && smooth[59] > 1.99);
    }
}
