//! Charts of figures over time.

use std::fmt::Write;

use super::history::BINS;
use super::html::escape;
use super::svg::{Steps, Svg};
use crate::units::{Bytes, Micros};

/// Colours and strokes of charts.
pub(super) const STYLE: &str = include_str!("chart.css");

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 350.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = HEIGHT - 44.0;

/// Figures over time.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) span: Span,
    pub(super) unit: Unit,
    /// Drawn one over the other, the first at the bottom.
    pub(super) series: Vec<Series>,
    pub(super) marker: Option<Marker>,
}

/// The length of the horizontal axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Us(u64),
    Events(u64),
    Steps(u64),
}

/// What the vertical axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    /// Bytes a second.
    Bandwidth,
    Ms,
    /// Something without a unit.
    Number,
}

/// A figure over time.
pub(super) struct Series {
    name: String,
    /// What the style sheet calls it.
    class: String,
    draw: Draw,
    /// One for each bin.
    values: Vec<f64>,
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Draw {
    Line,
    Area,
    /// An area on top of the stacked ones before it.
    Stacked,
}

/// A moment to point out.
#[derive(Clone)]
pub(super) struct Marker {
    pub(super) bin: usize,
    pub(super) text: String,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, class: impl Into<String>, draw: Draw, values: Vec<u64>) -> Self {
        Self::of_numbers(name, class, draw, values.into_iter().map(|value| value as f64).collect())
    }

    /// The same, of what is no number of bytes.
    pub(super) fn of_numbers(name: impl Into<String>, class: impl Into<String>, draw: Draw, values: Vec<f64>) -> Self {
        Self { name: name.into(), class: class.into(), draw, values }
    }

    fn peak(&self) -> f64 {
        self.values.iter().copied().fold(0.0, f64::max)
    }
}

impl Unit {
    /// A value in words.
    fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => Bytes(value as u64).to_string(),
            Self::Bandwidth => format!("{}/s", Bytes(value as u64)),
            Self::Ms => Micros(value * 1e3).to_string(),
            Self::Number => format!("{value:.3}"),
        }
    }

    /// How large its larger and smaller ones are, and their names, the largest first.
    fn scales(self) -> &'static [(f64, &'static str)] {
        match self {
            Self::Bytes => {
                &[(1e18, " EB"), (1e15, " PB"), (1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")]
            }
            Self::Bandwidth => &[(1e12, " TB/s"), (1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")],
            Self::Ms => &[(1e3, " s"), (1.0, " ms"), (1e-3, " µs")],
            Self::Number => &[(1.0, "")],
        }
    }

    /// The finest step of an axis.
    fn finest(self) -> f64 {
        match self {
            Self::Bytes | Self::Bandwidth => 1.0,
            Self::Ms => 1e-3,
            Self::Number => 1e-6,
        }
    }
}

impl Chart {
    /// The chart as a part of a page that has [`STYLE`].
    pub(super) fn inline(&self) -> String {
        self.draw("")
    }

    /// The chart as a file of its own.
    pub(super) fn standalone(&self) -> String {
        self.draw(&format!("<style>{STYLE}</style><rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>"))
    }

    fn draw(&self, before: &str) -> String {
        let mut svg = Svg::default();
        svg.add(format_args!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}. {}\">{before}",
            escape(&self.title),
            escape(&self.description)
        ));
        let scale = Scale::up_to(self.highest(), self.unit);
        self.draw_axes(&mut svg, &scale);
        self.draw_series(&mut svg, &scale);
        self.draw_marker(&mut svg);
        self.draw_legend(&mut svg);
        self.draw_hover(&mut svg);
        svg.add(format_args!("</svg>"));
        svg.finish()
    }

    /// The highest point of any series, stacks included.
    fn highest(&self) -> f64 {
        let stack = |bin| self.series.iter().filter(|s| s.draw == Draw::Stacked).map(|s| s.values[bin]).sum::<f64>();
        let stacked = (0..BINS).map(stack).fold(0.0, f64::max);
        self.series.iter().map(Series::peak).fold(stacked, f64::max)
    }

    fn draw_axes(&self, svg: &mut Svg, scale: &Scale) {
        for (value, label) in scale.ticks() {
            let y = scale.y(value);
            svg.add(format_args!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
            svg.add(format_args!("<text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 8.0, y + 4.0));
        }
        let (length, unit, label) = match self.span {
            Span::Us(us @ ..10_000) => (us as f64, 1.0, "time, µs"),
            Span::Us(us @ ..2_000_000) => (us as f64, 1e3, "time, ms"),
            Span::Us(us) => (us as f64, 1e6, "time, s"),
            Span::Events(count) => (count.max(1) as f64, 1.0, "events"),
            Span::Steps(count) => (count.max(1) as f64, 1.0, "steps"),
        };
        // A tenth of a second is the finest step that is shown.
        let step = nice_step((length / unit / 8.0).max(0.1)) * unit;
        for index in 0..=(length / step) as u32 {
            let value = f64::from(index) * step;
            let x = LEFT + (RIGHT - LEFT) * value / length;
            let tick = (value / unit * 10.0).round() / 10.0;
            svg.add(format_args!("<text class=\"tick middle\" x=\"{x:.1}\" y=\"{:.1}\">{tick}</text>", BOTTOM + 18.0));
        }
        let middle = (LEFT + RIGHT) / 2.0;
        svg.add(format_args!("<text class=\"tick middle\" x=\"{middle}\" y=\"{:.1}\">{label}</text>", BOTTOM + 36.0));
    }

    fn draw_series(&self, svg: &mut Svg, scale: &Scale) {
        let mut ground = vec![0.0; BINS];
        for Series { class, draw, values, .. } in &self.series {
            let heights = |values: &[f64]| values.iter().map(|&value| scale.y(value)).collect::<Vec<_>>();
            let mut path = Steps::default();
            let kind = match draw {
                Draw::Line => {
                    path.right(&heights(values), x);
                    "line"
                }
                Draw::Area => {
                    path.right(&heights(values), x);
                    path.left(&[scale.y(0.0); BINS], x);
                    path.close();
                    "area"
                }
                Draw::Stacked => {
                    let top: Vec<f64> = ground.iter().zip(values).map(|(ground, value)| ground + value).collect();
                    path.right(&heights(&top), x);
                    path.left(&heights(&ground), x);
                    path.close();
                    ground = top;
                    "area"
                }
            };
            svg.add(format_args!("<path class=\"{kind} {class}\" d=\"{}\"/>", path.finish()));
        }
        svg.add(format_args!("<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"));
    }

    fn draw_marker(&self, svg: &mut Svg) {
        let Some(Marker { bin, text }) = &self.marker else { return };
        let at = x(*bin) + (x(1) - x(0)) / 2.0;
        let (class, text_x) = if *bin < BINS / 2 { ("start", at + 6.0) } else { ("end", at - 6.0) };
        svg.add(format_args!("<path class=\"marker\" d=\"M{at:.1} {TOP}V{BOTTOM}\"/>"));
        svg.add(format_args!(
            "<text class=\"note {class}\" x=\"{text_x:.1}\" y=\"{:.1}\">{}</text>",
            TOP - 4.0,
            escape(text)
        ));
    }

    /// Names and peaks, above the chart, in as many rows as they need.
    fn draw_legend(&self, svg: &mut Svg) {
        let (mut at, mut y) = (LEFT, 6.0);
        for series in &self.series {
            let label = match series.draw {
                Draw::Stacked => series.name.clone(),
                Draw::Line | Draw::Area if matches!(self.unit, Unit::Bytes | Unit::Bandwidth) => {
                    format!("{}, peak {}", series.name, self.unit.show(series.peak()))
                }
                Draw::Line | Draw::Area => series.name.clone(),
            };
            // Without fonts at hand a character is taken to be as wide as most are.
            let width = 42.0 + 7.0 * label.chars().count() as f64;
            if at + width > WIDTH {
                (at, y) = (LEFT, y + 20.0);
            }
            let (text_x, text_y, class) = (at + 20.0, y + 11.5, &series.class);
            svg.add(format_args!(
                "<rect class=\"key {class}\" x=\"{at:.1}\" y=\"{y}\" width=\"14\" height=\"14\" rx=\"3\"/>\
                 <text class=\"legend\" x=\"{text_x:.1}\" y=\"{text_y}\">{}</text>",
                escape(&label)
            ));
            at += width;
        }
    }

    /// A stripe for each bin, which says what is there.
    fn draw_hover(&self, svg: &mut Svg) {
        let width = x(1) - x(0);
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
                "<rect x=\"{:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{}\"><title>{}</title></rect>",
                x(bin),
                BOTTOM - TOP,
                escape(&text)
            ));
        }
        svg.add(format_args!("</g>"));
    }
}

/// The left edge of a bin.
fn x(bin: usize) -> f64 {
    LEFT + (RIGHT - LEFT) * bin as f64 / BINS as f64
}

/// The vertical axis, from 0.
struct Scale {
    step: f64,
    ticks: u32,
    unit: Unit,
}

impl Scale {
    /// The shortest axis of whole steps that holds `highest`.
    fn up_to(highest: f64, unit: Unit) -> Self {
        let highest = highest.max(unit.finest());
        let step = nice_step((highest / 5.0).max(unit.finest()));
        Self { step, ticks: (highest / step).ceil() as u32, unit }
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * value / (self.step * f64::from(self.ticks))
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let highest = self.step * f64::from(self.ticks);
        let scales = self.unit.scales();
        let (unit, name) =
            scales.iter().copied().find(|&(unit, _)| highest >= unit).unwrap_or(scales[scales.len() - 1]);
        // As many decimals as the step has, which is 1, 2 or 5 times a power of ten.
        let precision = 10f64.powf((unit / self.step).log10().ceil().max(0.0));
        (0..=self.ticks).map(move |tick| {
            let value = self.step * f64::from(tick);
            let label = (value / unit * precision).round() / precision;
            (value, if tick == 0 { "0".into() } else { format!("{label}{name}") })
        })
    }
}

/// Charts one below the other, as one file.
pub(super) fn column(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut svg = Svg::default();
    svg.add(format_args!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\"><style>{STYLE}</style>\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>"
    ));
    for (number, chart) in charts.iter().enumerate() {
        let top = HEIGHT * number as f64;
        svg.add(format_args!("<svg y=\"{top}\" height=\"{HEIGHT}\">{}</svg>", chart.inline()));
    }
    svg.add(format_args!("</svg>"));
    svg.finish()
}

/// 1, 2 or 5 times a power of ten, the first that is no less than `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= least).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_steps() {
        assert_eq!([0.15, 1.0, 1.1, 3.0, 70.0, 1.2e9].map(nice_step), [0.2, 1.0, 2.0, 5.0, 100.0, 2e9]);
        let labels = |highest, unit| Scale::up_to(highest, unit).ticks().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(7_493_124_096.0, Unit::Bytes), ["0", "2 GB", "4 GB", "6 GB", "8 GB"]);
        assert_eq!(labels(3.0, Unit::Bytes), ["0", "1 B", "2 B", "3 B"]);
        assert_eq!(labels(0.57, Unit::Number), ["0", "0.2", "0.4", "0.6"]);
        assert_eq!(labels(1400.0, Unit::Ms), ["0", "0.5 s", "1 s", "1.5 s"]);
        for unit in [Unit::Bytes, Unit::Ms, Unit::Number] {
            assert!(Scale::up_to(0.0, unit).y(0.0) == BOTTOM && Scale::up_to(1.8e19, unit).y(1.8e19) >= TOP);
        }
    }

    #[test]
    fn a_stack_ends_at_the_sum() {
        let series = |name: &str, value| Series::new(name, "size0", Draw::Stacked, vec![value; BINS]);
        let chart = Chart {
            title: "a < b".into(),
            description: String::new(),
            span: Span::Us(1000),
            unit: Unit::Bytes,
            series: vec![series("low", 40), series("high", 60)],
            marker: None,
        };
        assert_eq!(chart.highest(), 100.0);
        let svg = chart.standalone();
        // 100 B is the top of the axis: the upper area goes from there down to the lower one.
        let lower = BOTTOM - (BOTTOM - TOP) * 0.4;
        assert!(svg.contains(&format!("M{LEFT:.1} {TOP:.1}H{RIGHT:.1}L{RIGHT:.1} {lower:.1}H{LEFT:.1}Z")), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("high: 60 B\nlow: 40 B"));
    }
}
