//! The axes of charts, and the area between them.

use super::svg::text_width;
use crate::units::{Bytes, Micros};

/// The number of points in a chart from left to right.
pub(super) const BINS: usize = 400;
/// The width of charts on a desktop, in pixels.
pub(super) const WIDE: f64 = 960.0;
/// The width of charts on a phone, in pixels.
pub(super) const NARROW: f64 = 400.0;

/// The height from the top of the plot to the horizontal axis, in pixels.
const HEIGHT: f64 = 246.0;
/// The height below that axis for its labels and its name, in pixels.
const BELOW: f64 = 44.0;
/// The gap between the vertical axis and its labels, in pixels.
const GAP: f64 = 8.0;
/// The margin on the left and right of labels, in pixels.
const MARGIN: f64 = 4.0;
/// The least distance between labels of the horizontal axis, in pixels.
const BETWEEN: f64 = 80.0;

/// The length of the horizontal axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Us(u64),
    Events(u64),
    Steps(u64),
}

/// The unit of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    /// Bytes per second.
    Bandwidth,
    Ms,
    /// A number without a unit.
    Number,
}

impl Unit {
    /// Formats a value.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => Bytes(value as u64).to_string(),
            Self::Bandwidth => format!("{}/s", Bytes(value as u64)),
            Self::Ms => Micros(value * 1e3).to_string(),
            Self::Number => format!("{value:.3}"),
        }
    }

    /// Returns the factors and names of its scaled units, the largest first.
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

    /// Returns the finest step of an axis.
    fn finest(self) -> f64 {
        match self {
            Self::Bytes | Self::Bandwidth => 1.0,
            Self::Ms => 1e-3,
            Self::Number => 1e-6,
        }
    }
}

/// The plot area of a chart in its drawing.
pub(super) struct PlotFrame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// The height of the whole drawing.
    pub(super) height: f64,
}

impl PlotFrame {
    /// Makes the frame in a drawing of this width, below a legend, with room for every label of its axes.
    pub(super) fn new(width: f64, legend: f64, scale: &ValueAxis, span: Span) -> Self {
        let longest = scale.ticks().map(|(_, label)| text_width(&label)).fold(0.0, f64::max);
        let left = MARGIN + longest + GAP;
        let (ticks, _) = horizontal(span, width - left);
        // The last label may be centred at the very end.
        let right = width - MARGIN - ticks.last().map_or(0.0, |(_, label)| text_width(label) / 2.0);
        // A marker's text stands between the legend and the figures.
        let top = legend + 20.0;
        let bottom = top + HEIGHT;
        Self { left, right, top, bottom, height: bottom + BELOW }
    }

    /// Returns the left edge of a bin.
    pub(super) fn x(&self, bin: usize) -> f64 {
        self.left + (self.right - self.left) * bin as f64 / BINS as f64
    }

    /// Returns the vertical position of a value.
    pub(super) fn y(&self, scale: &ValueAxis, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * value / scale.end()
    }

    /// Returns the vertical positions of values.
    pub(super) fn heights(&self, scale: &ValueAxis, values: &[f64]) -> Vec<f64> {
        values.iter().map(|&value| self.y(scale, value)).collect()
    }
}

/// The vertical axis, from 0.
pub(super) struct ValueAxis {
    step: f64,
    ticks: u32,
    unit: Unit,
}

impl ValueAxis {
    /// Returns the shortest axis of whole steps that holds `highest`.
    pub(super) fn up_to(highest: f64, unit: Unit) -> Self {
        let highest = highest.max(unit.finest());
        let step = nice_step((highest / 5.0).max(unit.finest()));
        Self { step, ticks: (highest / step).ceil() as u32, unit }
    }

    fn end(&self) -> f64 {
        self.step * f64::from(self.ticks)
    }

    /// Returns values and their labels.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let highest = self.end();
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

/// Returns the horizontal axis for a length in pixels: labels, each at a share of the length, and the axis's name.
pub(super) fn horizontal(span: Span, pixels: f64) -> (Vec<(f64, String)>, &'static str) {
    // Times are shown to a tenth. Events and steps are whole.
    let (length, unit, finest, name) = match span {
        Span::Us(us @ ..10_000) => (us as f64, 1.0, 0.1, "time, µs"),
        Span::Us(us @ ..2_000_000) => (us as f64, 1e3, 0.1, "time, ms"),
        Span::Us(us) => (us as f64, 1e6, 0.1, "time, s"),
        Span::Events(count) => (count.max(1) as f64, 1.0, 1.0, "events"),
        Span::Steps(count) => (count.max(1) as f64, 1.0, 1.0, "steps"),
    };
    let most = (pixels / BETWEEN).clamp(1.0, 8.0);
    let step = nice_step((length / unit / most).max(finest)) * unit;
    (
        (0..=(length / step) as u32)
            .map(|index| {
                let value = f64::from(index) * step;
                (value / length, ((value / unit * 10.0).round() / 10.0).to_string())
            })
            .collect(),
        name,
    )
}

/// Returns the first number not below `least` that is 1, 2 or 5 times a power of ten.
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
        let labels =
            |highest, unit| ValueAxis::up_to(highest, unit).ticks().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(7_493_124_096.0, Unit::Bytes), ["0", "2 GB", "4 GB", "6 GB", "8 GB"]);
        assert_eq!(labels(3.0, Unit::Bytes), ["0", "1 B", "2 B", "3 B"]);
        assert_eq!(labels(0.57, Unit::Number), ["0", "0.2", "0.4", "0.6"]);
        assert_eq!(labels(1400.0, Unit::Ms), ["0", "0.5 s", "1 s", "1.5 s"]);
        for unit in [Unit::Bytes, Unit::Ms, Unit::Number] {
            let y = |highest, value| {
                let scale = ValueAxis::up_to(highest, unit);
                let frame = PlotFrame::new(WIDE, 0.0, &scale, Span::Steps(1));
                (frame.y(&scale, value), frame)
            };
            let ((zero, empty), (most, full)) = (y(0.0, 0.0), y(1.8e19, 1.8e19));
            assert!(zero == empty.bottom && most >= full.top);
        }
    }

    #[test]
    fn labels_have_the_room_that_their_text_needs() {
        for (highest, unit) in
            [(9.9e8, Unit::Bandwidth), (3.5e9, Unit::Bandwidth), (3.0, Unit::Bytes), (0.1, Unit::Number)]
        {
            let scale = ValueAxis::up_to(highest, unit);
            for width in [NARROW, WIDE] {
                for span in [Span::Steps(100_000), Span::Us(1_999_999), Span::Events(7)] {
                    let PlotFrame { left, right, .. } = PlotFrame::new(width, 0.0, &scale, span);
                    assert!(scale.ticks().all(|(_, label)| left - GAP - text_width(&label) >= 0.0));
                    let (ticks, _) = horizontal(span, right - left);
                    let ends: Vec<(f64, f64)> = ticks
                        .iter()
                        .map(|(share, label)| {
                            let middle = left + (right - left) * share;
                            let half = text_width(label) / 2.0;
                            (middle - half, middle + half)
                        })
                        .collect();
                    assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ends:?}");
                    assert!(ends.last().is_some_and(|(_, end)| *end <= width), "{ends:?}");
                }
            }
        }
    }

    #[test]
    fn counts_have_whole_ticks() {
        for span in (1..40).flat_map(|count| [Span::Steps(count), Span::Events(count)]) {
            let (ticks, _) = horizontal(span, WIDE);
            assert!(ticks.iter().all(|(_, label)| label.parse::<u64>().is_ok()), "{ticks:?}");
        }
        let labels = |span| horizontal(span, WIDE).0.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(Span::Steps(3)), ["0", "1", "2", "3"]);
        assert_eq!(labels(Span::Us(1)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }
}
