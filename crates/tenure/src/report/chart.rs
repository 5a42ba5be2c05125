//! Charts of figures over time.

use maud::{Markup, html};

use super::axis::{BINS, PlotFrame, Span, Unit, ValueAxis, WIDE, horizontal};
use super::svg::{Drawing, Px, steps, text_width};
use crate::units::Micros;

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
    title: String,
    description: &'static str,
    span: Span,
    unit: Unit,
    /// The series, drawn one over the other, the first at the bottom.
    series: Vec<Series>,
    marker: Option<Marker>,
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

    /// Returns whether both are drawn alike and at nearly equal heights in many bins.
    fn hides(&self, other: &Self, frame: &PlotFrame, scale: &ValueAxis) -> bool {
        let pairs = self.values.iter().zip(&other.values).filter(|(a, b)| **a > 0.0 && **b > 0.0);
        let near = pairs.filter(|(a, b)| (frame.y(scale, **a) - frame.y(scale, **b)).abs() < HIDING);
        self.draw == other.draw && near.count() >= HIDING_BINS
    }
}

impl Chart {
    /// Makes a chart of `subject`, a part of what is called `name`.
    pub(super) fn new(
        subject: &str,
        name: &str,
        description: &'static str,
        span: Span,
        unit: Unit,
        series: Vec<Series>,
    ) -> Self {
        Self { title: format!("{subject}: {name}"), description, span, unit, series, marker: None }
    }

    pub(super) fn with_marker(self, marker: Option<Marker>) -> Self {
        Self { marker, ..self }
    }

    /// Draws the chart in a width.
    pub(super) fn drawing(&self, width: f64) -> Drawing {
        let scale = self.scale();
        let frame = self.frame(width, &scale);
        let content = html! {
            (self.axes(&frame, &scale))
            (self.lines_and_areas(&frame, &scale))
            @if let Some(marker) = &self.marker { (marker.draw(&frame)) }
            @for (Series { class, .. }, label, x, y) in self.legend(width) {
                rect.key.(class) x=(Px(x)) y=(y) width="14" height="14" rx="3" {}
                text.legend x=(Px(x + LEGEND_TEXT)) y=(y + 11.5) { (label) }
            }
            (self.hover(&frame))
        };
        Drawing { width, height: frame.height, label: format!("{}. {}", self.title, self.description), content }
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

    fn axes(&self, frame: &PlotFrame, scale: &ValueAxis) -> Markup {
        let &PlotFrame { left, right, bottom, .. } = frame;
        let (ticks, name) = horizontal(self.span, right - left);
        html! {
            @for (value, label) in scale.ticks() {
                @let y = frame.y(scale, value);
                path.grid d={ "M" (Px(left)) " " (Px(y)) "H" (Px(right)) } {}
                text.tick.end x=(Px(left - 8.0)) y=(Px(y + 4.0)) { (label) }
            }
            @for (share, label) in ticks {
                text.tick.middle x=(Px(left + (right - left) * share)) y=(Px(bottom + 18.0)) { (label) }
            }
            text.tick.middle x=(Px((left + right) / 2.0)) y=(Px(bottom + 36.0)) { (name) }
        }
    }

    fn lines_and_areas(&self, frame: &PlotFrame, scale: &ValueAxis) -> Markup {
        let &PlotFrame { left, right, bottom, .. } = frame;
        let mut ground = vec![0.0; BINS];
        html! {
            @for (index, Series { class, draw, values, .. }) in self.series.iter().enumerate() {
                @let kind = if *draw == DrawnAs::Line { "line" } else { "area" };
                @let below = frame.heights(scale, if *draw == DrawnAs::Stacked { &ground[..] } else { &[0.0; BINS] });
                @let top = if *draw == DrawnAs::Stacked { stacked(&mut ground, values) } else { &values[..] };
                @let ground = Some(&below[..]).filter(|_| *draw != DrawnAs::Line);
                path.(kind).(class) stroke-dasharray=[self.dashes(index, frame, scale)]
                    d=(steps(&frame.heights(scale, top), ground, |bin| frame.x(bin))) {}
            }
            path.axis d={ "M" (Px(left)) " " (Px(bottom)) "H" (Px(right)) } {}
        }
    }

    /// Returns the dashes of a line with which it shows the lines below that it would hide.
    fn dashes(&self, index: usize, frame: &PlotFrame, scale: &ValueAxis) -> Option<String> {
        let (below, rest) = self.series.split_at(index);
        let (series, above) = rest.split_first().filter(|(series, _)| self.is_line_of_bytes(series))?;
        let [below, above] =
            [below, above].map(|others| others.iter().filter(|o| series.hides(o, frame, scale)).count());
        (below > 0).then(|| format!("{} {}", DASH * (above + 1), DASH * below))
    }

    fn is_line_of_bytes(&self, series: &Series) -> bool {
        series.draw == DrawnAs::Line && self.unit == Unit::Bytes
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
            label += &format!(", peak {}", self.unit.show(series.peak()));
        }
        let mut lines = self.series[..index].iter().filter(|other| other.draw == DrawnAs::Line);
        let equal = lines.find(|other| other.values == series.values);
        if let Some(other) = equal.filter(|_| self.is_line_of_bytes(series)) {
            label += &format!(" (equal to {})", other.name);
        }
        label
    }

    /// Draws an invisible stripe for each bin, with the values as hover text.
    fn hover(&self, frame: &PlotFrame) -> Markup {
        let &PlotFrame { top, bottom, .. } = frame;
        let width = frame.x(1) - frame.x(0);
        html! {
            g.hover {
                @for bin in 0..BINS {
                    rect x=(Px(frame.x(bin))) y=(Px(top)) width=(Px(width)) height=(Px(bottom - top)) {
                        title {
                            (self.moment(bin))
                            @for series in self.series.iter().rev() {
                                "\n" (series.name) ": " (self.unit.show(series.values[bin]))
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns the words for the begin of a bin.
    fn moment(&self, bin: usize) -> String {
        match self.span {
            Span::Us(us) => format!("at {}", Micros(us as f64 * bin as f64 / BINS as f64)),
            Span::Events(count) => format!("at event {}", count * bin as u64 / BINS as u64),
            Span::Steps(count) => format!("step {}", count * bin as u64 / BINS as u64 + 1),
        }
    }
}

impl Marker {
    fn draw(&self, frame: &PlotFrame) -> Markup {
        let &PlotFrame { top, bottom, .. } = frame;
        let at = (frame.x(self.bin) + frame.x(self.bin + 1)) / 2.0;
        let (class, text_x) = if self.bin < BINS / 2 { ("start", at + 6.0) } else { ("end", at - 6.0) };
        html! {
            @for class in ["halo", "marker"] {
                path.(class) d={ "M" (Px(at)) " " (Px(top)) "V" (Px(bottom)) } {}
            }
            text.note.(class) x=(Px(text_x)) y=(Px(top - 4.0)) { (self.text) }
        }
    }
}

/// Adds `values` to the ground, and returns the new ground.
fn stacked<'a>(ground: &'a mut [f64], values: &[f64]) -> &'a [f64] {
    ground.iter_mut().zip(values).for_each(|(ground, value)| *ground += value);
    ground
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

fn height(drawings: &[Drawing]) -> f64 {
    drawings.iter().map(|drawing| drawing.height).sum()
}

/// Returns a drawing of charts one below the other.
pub(super) fn column(label: &str, charts: &[Chart]) -> Drawing {
    let drawings: Vec<Drawing> = charts.iter().map(|chart| chart.drawing(WIDE)).collect();
    let content = html! {
        @for (index, drawing) in drawings.iter().enumerate() {
            svg y=(height(&drawings[..index])) height=(drawing.height) { (drawing.inline()) }
        }
    };
    Drawing { width: WIDE, height: height(&drawings), label: label.to_owned(), content }
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
        let svg = chart.drawing(WIDE).file();
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
        let svg = chart(Unit::Bytes, series).drawing(WIDE).inline().0;
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
        let svg = chart(Unit::Bytes, lines.collect()).drawing(WIDE).inline().0;
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
        Chart::new("a < b", "", "", Span::Us(1000), unit, series)
    }
}
