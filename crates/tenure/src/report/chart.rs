//! Charts of bytes over time.

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
    /// Drawn one over the other, the first at the bottom.
    pub(super) series: Vec<Series>,
    pub(super) marker: Option<Marker>,
}

/// The length of the horizontal axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Us(u64),
    Events(u64),
}

/// A figure over time.
pub(super) struct Series {
    name: String,
    /// What the style sheet calls it.
    class: String,
    draw: Draw,
    /// One for each bin.
    values: Vec<u64>,
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
        Self { name: name.into(), class: class.into(), draw, values }
    }

    fn peak(&self) -> u64 {
        self.values.iter().copied().max().unwrap_or(0)
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
        let scale = Scale::up_to(self.highest());
        self.draw_axes(&mut svg, &scale);
        self.draw_series(&mut svg, &scale);
        self.draw_marker(&mut svg);
        self.draw_legend(&mut svg);
        self.draw_hover(&mut svg);
        svg.add(format_args!("</svg>"));
        svg.finish()
    }

    /// The highest point of any series, stacks included.
    fn highest(&self) -> u64 {
        let stack = |bin| self.series.iter().filter(|s| s.draw == Draw::Stacked).map(|s| s.values[bin]).sum();
        let stacked: u64 = (0..BINS).map(stack).max().unwrap_or(0);
        self.series.iter().map(Series::peak).max().unwrap_or(0).max(stacked)
    }

    fn draw_axes(&self, svg: &mut Svg, scale: &Scale) {
        for (value, label) in scale.ticks() {
            let y = scale.y(value);
            svg.add(format_args!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
            svg.add(format_args!("<text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 8.0, y + 4.0));
        }
        let (length, unit, label) = match self.span {
            Span::Us(us @ ..10_000) => (us as f64, 1.0, "time since the first event, µs"),
            Span::Us(us @ ..2_000_000) => (us as f64, 1e3, "time since the first event, ms"),
            Span::Us(us) => (us as f64, 1e6, "time since the first event, s"),
            Span::Events(count) => (count.max(1) as f64, 1.0, "events"),
        };
        // A tenth of a second is the finest step that is shown.
        let step = nice_step(length / unit * 10.0 / 8.0) * unit / 10.0;
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
        let mut ground = vec![0; BINS];
        for Series { class, draw, values, .. } in &self.series {
            let heights = |values: &[u64]| values.iter().map(|&value| scale.y(value)).collect::<Vec<_>>();
            let mut path = Steps::default();
            let kind = match draw {
                Draw::Line => {
                    path.right(&heights(values), x);
                    "line"
                }
                Draw::Area => {
                    path.right(&heights(values), x);
                    path.left(&[scale.y(0); BINS], x);
                    path.close();
                    "area"
                }
                Draw::Stacked => {
                    let top: Vec<u64> = ground.iter().zip(values).map(|(ground, value)| ground + value).collect();
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
                Draw::Line | Draw::Area => format!("{}, peak {}", series.name, Bytes(series.peak())),
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
            };
            for series in self.series.iter().rev() {
                write!(text, "\n{}: {}", series.name, Bytes(series.values[bin]))
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

/// The vertical axis, in bytes from 0.
struct Scale {
    step: f64,
    ticks: u32,
}

impl Scale {
    /// The shortest axis of whole steps that holds `highest`.
    fn up_to(highest: u64) -> Self {
        let highest = highest.max(1) as f64;
        let step = nice_step(highest / 5.0);
        Self { step, ticks: (highest / step).ceil() as u32 }
    }

    fn y(&self, value: u64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * value as f64 / (self.step * f64::from(self.ticks))
    }

    fn ticks(&self) -> impl Iterator<Item = (u64, String)> {
        let units = [(1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")];
        let highest = self.step * f64::from(self.ticks);
        let (unit, name) = units.into_iter().find(|&(unit, _)| highest >= unit).unwrap_or((1.0, "B"));
        (0..=self.ticks).map(move |tick| {
            let value = self.step * f64::from(tick);
            // In tenths: steps are 1, 2 or 5 times a power of ten.
            let label = (value / unit * 10.0).round() / 10.0;
            (value as u64, if tick == 0 { "0".into() } else { format!("{label} {name}") })
        })
    }
}

/// 1, 2 or 5 times a power of ten, the first that is no less than `least`, and at least 1.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= least).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_steps() {
        assert_eq!([0.2, 1.0, 1.1, 3.0, 70.0, 1.2e9].map(nice_step), [1.0, 1.0, 2.0, 5.0, 100.0, 2e9]);
        let labels: Vec<String> = Scale::up_to(7_493_124_096).ticks().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0", "2 GB", "4 GB", "6 GB", "8 GB"]);
        assert!(Scale::up_to(0).y(0) == BOTTOM && Scale::up_to(u64::MAX).y(u64::MAX) >= TOP);
    }

    #[test]
    fn a_stack_ends_at_the_sum() {
        let series = |name: &str, value| Series::new(name, "size0", Draw::Stacked, vec![value; BINS]);
        let chart = Chart {
            title: "a < b".into(),
            description: String::new(),
            span: Span::Us(1000),
            series: vec![series("low", 40), series("high", 60)],
            marker: None,
        };
        assert_eq!(chart.highest(), 100);
        let svg = chart.standalone();
        // 100 B is the top of the axis: the upper area goes from there down to the lower one.
        let lower = BOTTOM - (BOTTOM - TOP) * 0.4;
        assert!(svg.contains(&format!("M{LEFT:.1} {TOP:.1}H{RIGHT:.1}L{RIGHT:.1} {lower:.1}H{LEFT:.1}Z")), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("high: 60 B\nlow: 40 B"));
    }
}
