//! Charts of figures over time.

use std::fmt::Write;

use super::axis::{BINS, PlotFrame, Span, Unit, ValueAxis, WIDE, horizontal};
use super::escape::escape;
use super::svg::{Steps, Svg, text_width};
use crate::units::Micros;

/// Colours and strokes of charts.
pub(super) const STYLE: &str = include_str!("chart.css");

/// The distance between rows of the legend, in pixels.
const LEGEND_ROW: f64 = 20.0;
/// The left edge of each row's first entry, in pixels.
const LEGEND_LEFT: f64 = 4.0;
/// The distance from the left edge of a legend's entry to its text, and from the text's end to the next entry, in
/// pixels.
const LEGEND_TEXT: f64 = 20.0;
const LEGEND_GAP: f64 = 16.0;
/// Lines closer than this, in pixels, hide one another.
const HIDING: f64 = 1.5;
/// Lines that hide one another in at least this many bins are dashed.
const HIDING_BINS: usize = BINS / 10;
/// If several lines hide one another, each shows for this many pixels in turn.
const DASH: usize = 6;

/// Figures over time.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) span: Span,
    pub(super) unit: Unit,
    /// The series, drawn one over the other, the first at the bottom.
    pub(super) series: Vec<Series>,
    pub(super) marker: Option<Marker>,
}

/// A figure over time.
pub(super) struct Series {
    name: String,
    /// Its class in the style sheet.
    class: String,
    draw: DrawnAs,
    /// A value for each bin.
    values: Vec<f64>,
}

/// The way in which a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawnAs {
    Line,
    Area,
    /// An area on top of the stacked ones before it.
    Stacked,
}

/// A moment to highlight.
#[derive(Clone)]
pub(super) struct Marker {
    pub(super) bin: usize,
    pub(super) text: String,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, class: impl Into<String>, draw: DrawnAs, values: Vec<u64>) -> Self {
        Self::of_numbers(name, class, draw, values.into_iter().map(|value| value as f64).collect())
    }

    /// Makes a series of values that are not bytes.
    pub(super) fn of_numbers(
        name: impl Into<String>,
        class: impl Into<String>,
        draw: DrawnAs,
        values: Vec<f64>,
    ) -> Self {
        Self { name: name.into(), class: class.into(), draw, values }
    }

    fn peak(&self) -> f64 {
        self.values.iter().copied().fold(0.0, f64::max)
    }
}

impl Chart {
    /// Returns the chart as a part of a page that has [`STYLE`], drawn for a width.
    pub(super) fn inline(&self, width: f64) -> String {
        self.draw(width, "")
    }

    /// Returns the chart as a standalone file.
    pub(super) fn standalone(&self) -> String {
        let height = self.frame(WIDE, &self.scale()).height;
        self.draw(WIDE, &format!("<style>{STYLE}</style><rect class=\"ground\" width=\"{WIDE}\" height=\"{height}\"/>"))
    }

    fn draw(&self, width: f64, before: &str) -> String {
        let scale = self.scale();
        let frame = self.frame(width, &scale);
        let mut svg = Svg::default();
        svg.add(format_args!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" role=\"img\" \
             aria-label=\"{}. {}\">{before}",
            frame.height,
            escape(&self.title),
            escape(&self.description)
        ));
        self.draw_axes(&mut svg, &frame, &scale);
        self.draw_series(&mut svg, &frame, &scale);
        self.draw_marker(&mut svg, &frame);
        self.draw_legend(&mut svg, width);
        self.draw_hover(&mut svg, &frame);
        svg.add(format_args!("</svg>"));
        svg.finish()
    }

    fn scale(&self) -> ValueAxis {
        ValueAxis::up_to(self.highest(), self.unit)
    }

    /// Returns the plot area, between the legend and the axes.
    fn frame(&self, width: f64, scale: &ValueAxis) -> PlotFrame {
        let legend = self.legend(width).last().map_or(0.0, |(.., y)| y + LEGEND_ROW);
        PlotFrame::new(width, legend, scale, self.span)
    }

    /// Returns the highest point of any series, stacks included.
    fn highest(&self) -> f64 {
        let stacked = (0..BINS)
            .map(|bin| self.series.iter().filter(|s| s.draw == DrawnAs::Stacked).map(|s| s.values[bin]).sum::<f64>())
            .fold(0.0, f64::max);
        self.series.iter().map(Series::peak).fold(stacked, f64::max)
    }

    fn draw_axes(&self, svg: &mut Svg, frame: &PlotFrame, scale: &ValueAxis) {
        let &PlotFrame { left, right, bottom, .. } = frame;
        for (value, label) in scale.ticks() {
            let y = frame.y(scale, value);
            svg.add(format_args!("<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"));
            svg.add(format_args!(
                "<text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                left - 8.0,
                y + 4.0
            ));
        }
        let (ticks, name) = horizontal(self.span, right - left);
        for (share, label) in ticks {
            let x = left + (right - left) * share;
            svg.add(format_args!("<text class=\"tick middle\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", bottom + 18.0));
        }
        let middle = (left + right) / 2.0;
        svg.add(format_args!("<text class=\"tick middle\" x=\"{middle:.1}\" y=\"{:.1}\">{name}</text>", bottom + 36.0));
    }

    fn draw_series(&self, svg: &mut Svg, frame: &PlotFrame, scale: &ValueAxis) {
        let x = |bin| frame.x(bin);
        let heights = |values: &[f64]| values.iter().map(|&value| frame.y(scale, value)).collect::<Vec<_>>();
        let mut ground = vec![0.0; BINS];
        for (index, Series { class, draw, values, .. }) in self.series.iter().enumerate() {
            let mut path = Steps::default();
            let mut dashes = String::new();
            let kind = match draw {
                DrawnAs::Line => {
                    path.right(&heights(values), x);
                    dashes = self.dashes(index, frame, scale);
                    "line"
                }
                DrawnAs::Area => {
                    path.right(&heights(values), x);
                    path.left(&heights(&[0.0; BINS]), x);
                    path.close();
                    "area"
                }
                DrawnAs::Stacked => {
                    let top: Vec<f64> = ground.iter().zip(values).map(|(ground, value)| ground + value).collect();
                    path.right(&heights(&top), x);
                    path.left(&heights(&ground), x);
                    path.close();
                    ground = top;
                    "area"
                }
            };
            svg.add(format_args!("<path class=\"{kind} {class}\"{dashes} d=\"{}\"/>", path.finish()));
        }
        let &PlotFrame { left, right, bottom, .. } = frame;
        svg.add(format_args!("<path class=\"axis\" d=\"M{left:.1} {bottom:.1}H{right:.1}\"/>"));
    }

    /// Returns the attribute that dashes a line, so that it shows the lines below that it would hide.
    fn dashes(&self, index: usize, frame: &PlotFrame, scale: &ValueAxis) -> String {
        let hides = |a: &Series, b: &Series| {
            a.draw == b.draw
                && a.values
                    .iter()
                    .zip(&b.values)
                    .filter(|(a, b)| {
                        **a > 0.0 && **b > 0.0 && (frame.y(scale, **a) - frame.y(scale, **b)).abs() < HIDING
                    })
                    .count()
                    >= HIDING_BINS
        };
        let (below, rest) = self.series.split_at(index);
        let Some((series, above)) = rest.split_first().filter(|_| self.unit == Unit::Bytes) else {
            return String::new();
        };
        let below = below.iter().filter(|other| hides(series, other)).count();
        let above = above.iter().filter(|other| hides(series, other)).count();
        if below == 0 {
            return String::new();
        }
        format!(" stroke-dasharray=\"{} {}\"", DASH * (above + 1), DASH * below)
    }

    fn draw_marker(&self, svg: &mut Svg, frame: &PlotFrame) {
        let Some(Marker { bin, text }) = &self.marker else { return };
        let &PlotFrame { top, bottom, .. } = frame;
        let at = (frame.x(*bin) + frame.x(*bin + 1)) / 2.0;
        let (class, text_x) = if *bin < BINS / 2 { ("start", at + 6.0) } else { ("end", at - 6.0) };
        for class in ["halo", "marker"] {
            svg.add(format_args!("<path class=\"{class}\" d=\"M{at:.1} {top:.1}V{bottom:.1}\"/>"));
        }
        svg.add(format_args!(
            "<text class=\"note {class}\" x=\"{text_x:.1}\" y=\"{:.1}\">{}</text>",
            top - 4.0,
            escape(text)
        ));
    }

    /// Returns the legend above the chart, in as many rows as needed: each series, its label, and the label's position.
    fn legend(&self, width: f64) -> Vec<(&Series, String, f64, f64)> {
        let mut x = LEGEND_LEFT;
        let mut y = 6.0;
        let mut entries = Vec::new();
        for (index, series) in self.series.iter().enumerate() {
            let label = shortened(self.label(index, series), width - LEGEND_LEFT - LEGEND_TEXT);
            let length = LEGEND_TEXT + text_width(&label);
            if x > LEGEND_LEFT && x + length > width {
                (x, y) = (LEGEND_LEFT, y + LEGEND_ROW);
            }
            entries.push((series, label, x, y));
            x += length + LEGEND_GAP;
        }
        entries
    }

    /// Returns the label of a series. A line that covers an equal one says so.
    fn label(&self, index: usize, series: &Series) -> String {
        let mut label = series.name.clone();
        if series.draw != DrawnAs::Stacked && matches!(self.unit, Unit::Bytes | Unit::Bandwidth) {
            write!(label, ", peak {}", self.unit.show(series.peak())).expect("a string takes every character");
        }
        let mut lines = self.series[..index].iter().filter(|other| other.draw == DrawnAs::Line);
        let equal = lines.find(|other| other.values == series.values);
        let is_line = series.draw == DrawnAs::Line && self.unit == Unit::Bytes;
        if let Some(other) = equal.filter(|_| is_line) {
            write!(label, " (equal to {})", other.name).expect("a string takes every character");
        }
        label
    }

    fn draw_legend(&self, svg: &mut Svg, width: f64) {
        for (Series { class, .. }, label, x, y) in self.legend(width) {
            svg.add(format_args!(
                "<rect class=\"key {class}\" x=\"{x:.1}\" y=\"{y}\" width=\"14\" height=\"14\" rx=\"3\"/>\
                 <text class=\"legend\" x=\"{:.1}\" y=\"{}\">{}</text>",
                x + LEGEND_TEXT,
                y + 11.5,
                escape(&label)
            ));
        }
    }

    /// Draws an invisible stripe for each bin, with the values as hover text.
    fn draw_hover(&self, svg: &mut Svg, frame: &PlotFrame) {
        let &PlotFrame { top, bottom, .. } = frame;
        let width = frame.x(1) - frame.x(0);
        svg.add(format_args!("<g class=\"hover\">"));
        for bin in 0..BINS {
            let mut text = match self.span {
                Span::Us(us) => format!("at {}", Micros(us as f64 * bin as f64 / BINS as f64)),
                Span::Events(count) => format!("at event {}", count * bin as u64 / BINS as u64),
                Span::Steps(count) => format!("step {}", count * bin as u64 / BINS as u64 + 1),
            };
            for series in self.series.iter().rev() {
                write!(text, "\n{}: {}", series.name, self.unit.show(series.values[bin]))
                    .expect("a string takes every character");
            }
            svg.add(format_args!(
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                frame.x(bin),
                bottom - top,
                escape(&text)
            ));
        }
        svg.add(format_args!("</g>"));
    }
}

/// Returns `label`, or its beginning followed by dots if it is wider than `width`.
fn shortened(mut label: String, width: f64) -> String {
    if text_width(&label) > width {
        while !label.is_empty() && text_width(&label) + text_width("…") > width {
            label.pop();
        }
        label.push('…');
    }
    label
}

/// Returns charts one below the other, as one file.
pub(super) fn column(charts: &[Chart]) -> String {
    let heights: Vec<f64> = charts.iter().map(|chart| chart.frame(WIDE, &chart.scale()).height).collect();
    let height: f64 = heights.iter().sum();
    let mut svg = Svg::default();
    svg.add(format_args!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {height}\"><style>{STYLE}</style>\
         <rect class=\"ground\" width=\"{WIDE}\" height=\"{height}\"/>"
    ));
    let mut top = 0.0;
    for (chart, height) in charts.iter().zip(heights) {
        svg.add(format_args!("<svg y=\"{top}\" height=\"{height}\">{}</svg>", chart.inline(WIDE)));
        top += height;
    }
    svg.add(format_args!("</svg>"));
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::axis::NARROW;

    #[test]
    fn a_stack_ends_at_the_sum() {
        let series = |name: &str, value| Series::new(name, "size0", DrawnAs::Stacked, vec![value; BINS]);
        let chart = chart(Unit::Bytes, vec![series("low", 40), series("high", 60)]);
        assert_eq!(chart.highest(), 100.0);
        let svg = chart.standalone();
        // 100 B is the top of the axis: the upper area goes from there down to the lower one.
        let PlotFrame { left, right, top, bottom, .. } = chart.frame(WIDE, &chart.scale());
        let lower = bottom - (bottom - top) * 0.4;
        assert!(svg.contains(&format!("M{left:.1} {top:.1}H{right:.1}L{right:.1} {lower:.1}H{left:.1}Z")), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("high: 60 B\nlow: 40 B"));
    }

    #[test]
    fn equal_lines_are_all_seen_and_said_to_be_equal() {
        let line = |name: &str, value| Series::new(name, name, DrawnAs::Line, vec![value; BINS]);
        let series = vec![line("native", 80), line("expandable", 80), line("paged", 80), line("other", 40)];
        let svg = chart(Unit::Bytes, series).inline(WIDE);
        assert!(svg.contains("line native\" d=") && svg.contains("line other\" d="), "{svg}");
        assert!(svg.contains("line expandable\" stroke-dasharray=\"12 6\""), "{svg}");
        assert!(svg.contains("line paged\" stroke-dasharray=\"6 12\""), "{svg}");
        assert_eq!(svg.matches("(equal to native)").count(), 2, "{svg}");
    }

    #[test]
    fn lines_that_are_equal_for_a_while_are_dashed_without_being_called_equal() {
        let values = |later: u64| (0..BINS).map(|bin| if bin < BINS / 4 { 80 } else { later }).collect();
        let lines = ["native", "paged"].into_iter().zip([80, 40]);
        let lines = lines.map(|(name, later)| Series::new(name, name, DrawnAs::Line, values(later)));
        let svg = chart(Unit::Bytes, lines.collect()).inline(WIDE);
        assert!(svg.contains("line paged\" stroke-dasharray=\"6 6\"") && !svg.contains("equal to"), "{svg}");
    }

    #[test]
    fn a_legend_of_many_rows_ends_above_the_figures() {
        let chart = chart(
            Unit::Number,
            (0..9)
                .map(|index| {
                    Series::new(
                        format!("{index} {}", "a model with a long name ".repeat(index)),
                        "size0",
                        DrawnAs::Line,
                        vec![1; BINS],
                    )
                })
                .collect(),
        );
        for width in [NARROW, WIDE] {
            let top = chart.frame(width, &chart.scale()).top;
            assert!(
                chart
                    .legend(width)
                    .iter()
                    .all(|(_, label, x, y)| { x + LEGEND_TEXT + text_width(label) <= width && y + LEGEND_ROW < top })
            );
        }
    }

    /// Makes a chart over a millisecond.
    fn chart(unit: Unit, series: Vec<Series>) -> Chart {
        let title = "a < b".into();
        Chart { title, description: String::new(), span: Span::Us(1000), unit, series, marker: None }
    }
}
