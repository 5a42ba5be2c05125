//! The report on the time to an answer, depending on where a model's weights are.

use maud::{Markup, html};

use super::axis::WIDE;
use super::html::{self, document, drawings, section};
use super::svg::{Drawing, Px, text_width};

/// A report on the time that models take to answer: one HTML file, or its figure alone.
pub struct SwitchReport<'a> {
    title: &'a str,
    facts: &'a [(&'static str, String)],
    models: &'a [ModelTimes],
}

/// The times that one model takes to answer, one for each state of its weights, such as `ready` or `cold`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTimes {
    /// The model.
    pub model: String,
    /// The name of each state, and the time in ms.
    pub times: Vec<(&'static str, f64)>,
}

/// The gap between a bar's name and the bar, and between the bar and its time, in pixels.
const GAP: f64 = 10.0;
const BAR: f64 = 22.0;
const HEADING: f64 = 40.0;

impl<'a> SwitchReport<'a> {
    /// Makes a report called `title`. `facts` describe the measurement.
    pub fn new(title: &'a str, facts: &'a [(&'static str, String)], models: &'a [ModelTimes]) -> Self {
        Self { title, facts, models }
    }

    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        let text = "Milliseconds from a request to its answer. Bars of one model are to one scale.";
        let body = html! {
            (html::header("Switching report", self.title, &Markup::default(), self.facts))
            (section("Answers", text, drawings(|width| self.drawing(width))))
        };
        document(self.title, &body, "Each time is the median of several.")
    }

    /// Returns the figure alone: an SVG file.
    pub fn svg(&self) -> String {
        self.drawing(WIDE).file()
    }

    fn drawing(&self, width: f64) -> Drawing {
        // Names stand to the left of the bars, figures to the right.
        let times = || self.models.iter().flat_map(|model| &model.times);
        let left = times().map(|(name, _)| text_width(name)).fold(0.0, f64::max) + GAP;
        let right = times().map(|(_, ms)| text_width(&figure(*ms))).fold(0.0, f64::max) + GAP;
        let content = html! {
            @for (index, ModelTimes { model, times }) in self.models.iter().enumerate() {
                @let top = height(&self.models[..index]);
                text.legend x="0" y=(top + HEADING - 10.0) { (model) }
                @let longest = times.iter().map(|(_, ms)| *ms).fold(f64::MIN_POSITIVE, f64::max);
                @for (row, (name, ms)) in times.iter().enumerate() {
                    @let top = top + HEADING + BAR * row as f64;
                    @let middle = top + BAR / 2.0 + 4.0;
                    @let length = (width - left - right) * ms / longest;
                    text.tick.end x=(left - GAP) y=(middle) { (name) }
                    rect.area.(if *name == "cold" { "paged" } else { "requested" })
                        x=(left) y=(top + 3.0) width=(Px(length)) height=(BAR - 6.0) {}
                    text.note x=(Px(left + length + GAP)) y=(middle) { (figure(*ms)) }
                }
            }
        };
        Drawing { width, height: height(self.models) + 20.0, label: self.title.to_owned(), content }
    }
}

/// Returns the height of the models' bars and headings.
fn height(models: &[ModelTimes]) -> f64 {
    models.iter().map(|model| HEADING + BAR * model.times.len() as f64).sum()
}

/// Returns the text beside a bar.
fn figure(ms: f64) -> String {
    format!("{ms:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_of_a_model_is_its_longest_bar() {
        let models = [
            ModelTimes { model: "a <b>".into(), times: vec![("ready", 1.0), ("cold", 4.0)] },
            ModelTimes { model: "c".into(), times: vec![("cold", 250.0)] },
        ];
        let report = SwitchReport::new("Switching", &[], &models);
        let svg = report.svg();
        assert!(svg.contains("a &lt;b&gt;") && svg.contains(">4.00<") && svg.contains("<style>"));
        let length = WIDE - text_width("ready") - text_width("250.00") - 2.0 * GAP;
        for (length, count) in [(length, 2), (length / 4.0, 1)] {
            assert_eq!(svg.matches(&format!("width=\"{length:.1}\"")).count(), count, "{svg}");
        }
        assert!(report.html().contains("viewBox"));
    }
}
