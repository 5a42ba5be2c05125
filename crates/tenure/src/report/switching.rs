//! How long models take to answer, by where their weights are.

use super::chart::STYLE;
use super::html::{self, document, escape, section};
use super::svg::Svg;

/// A report of how long models take to answer: one HTML file, or its figure alone.
pub struct SwitchReport<'a> {
    title: &'a str,
    facts: &'a [(&'static str, String)],
    models: &'a [ModelTimes],
}

/// How long one model takes to answer, in several ways.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTimes {
    /// The model.
    pub model: String,
    /// Each way, and the time in ms.
    pub times: Vec<(&'static str, f64)>,
}

const WIDTH: f64 = 960.0;
/// From the left edge to the bars, and from their longest to the right edge.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 22.0;
const HEADING: f64 = 40.0;

impl<'a> SwitchReport<'a> {
    /// A report called `title`. `facts` say on what it was measured.
    pub fn new(title: &'a str, facts: &'a [(&'static str, String)], models: &'a [ModelTimes]) -> Self {
        Self { title, facts, models }
    }

    /// The whole report: one HTML file.
    pub fn html(&self) -> String {
        let text = "Milliseconds from a request to its answer. Bars of one model are to one scale.";
        let figure = format!("<div class=\"scroll\">{}</div>\n", self.drawing(""));
        let sections =
            [html::header("Switching report", self.title, "", self.facts), section("Answers", text, &figure)];
        document(self.title, &sections.concat(), "Each time is the median of several.")
    }

    /// The figure alone: an SVG file.
    pub fn svg(&self) -> String {
        self.drawing(&format!("<style>{STYLE}</style>"))
    }

    fn drawing(&self, style: &str) -> String {
        let rows: usize = self.models.iter().map(|model| model.times.len()).sum();
        let height = 20.0 + self.models.len() as f64 * HEADING + rows as f64 * BAR;
        let mut svg = Svg::default();
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{}\">{style}<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>",
            escape(self.title)
        ));
        let mut top = 0.0;
        for ModelTimes { model, times } in self.models {
            top += HEADING;
            svg.add(format_args!("<text class=\"legend\" x=\"0\" y=\"{}\">{}</text>", top - 10.0, escape(model)));
            let longest = times.iter().map(|(_, ms)| *ms).fold(f64::MIN_POSITIVE, f64::max);
            for (name, ms) in times {
                let class = if *name == "cold" { "paged" } else { "requested" };
                let (width, middle) = ((WIDTH - LEFT - RIGHT) * ms / longest, top + BAR / 2.0 + 4.0);
                svg.add(format_args!(
                    "<text class=\"tick end\" x=\"{}\" y=\"{middle}\">{name}</text><rect class=\"area {class}\" x=\"{LEFT}\" \
                     y=\"{}\" width=\"{width:.1}\" height=\"{}\"/><text class=\"note\" x=\"{:.1}\" y=\"{middle}\">{ms:.2}</text>",
                    LEFT - 10.0,
                    top + 3.0,
                    BAR - 6.0,
                    LEFT + width + 8.0,
                ));
                top += BAR;
            }
        }
        svg.add(format_args!("</svg>\n"));
        svg.finish()
    }
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
        assert_eq!(svg.matches("width=\"660.0\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("width=\"165.0\"").count(), 1, "{svg}");
        assert!(report.html().contains("viewBox"));
    }
}
