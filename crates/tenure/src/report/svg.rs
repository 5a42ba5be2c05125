//! Drawings, and the parts of SVG that they need.

use std::fmt;

use maud::{Markup, PreEscaped, html};

/// Colours and strokes of drawings.
pub(super) const STYLE: &str = include_str!("chart.css");

/// A drawing, as a part of a page that has [`STYLE`], or as a file.
pub(super) struct Drawing {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The description for readers who do not see it.
    pub(super) label: String,
    pub(super) content: Markup,
}

/// A position or a length in pixels.
pub(super) struct Px(pub(super) f64);

impl Drawing {
    /// Returns the drawing as a part of a page.
    pub(super) fn inline(&self) -> Markup {
        let Self { width, height, label, content } = self;
        html! {
            svg.chart xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (height) } role="img"
                aria-label=(label) { (content) }
        }
    }

    /// Returns the drawing as a file.
    pub(super) fn file(self) -> String {
        let content = html! {
            style { (PreEscaped(STYLE)) }
            rect.ground width=(self.width) height=(self.height) {}
            (self.content)
        };
        printable(Self { content, ..self }.inline())
    }
}

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

/// Returns an upper bound on the width of text in a chart's font, in pixels: systems have different fonts, and none is
/// available here.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|character| match character {
            ' ' | '.' | ',' | ':' | '/' | '(' | ')' | 'i' | 'l' | 'j' | 't' | 'f' => 5.0,
            'M' | 'W' | 'm' | 'w' | '%' => 12.0,
            'A'..='Z' | '_' => 9.5,
            character if character.is_ascii() => 8.0,
            _ => 12.5,
        })
        .sum()
}

/// Returns the path of steps from left to right, `heights[i]` from `x(i)` to `x(i + 1)`. With a `ground`, the path goes
/// back along its steps and encloses an area.
pub(super) fn steps(heights: &[f64], ground: Option<&[f64]>, x: impl Fn(usize) -> f64) -> String {
    let mut path = String::from("M");
    go(&mut path, x(0), heights.iter().enumerate().map(|(i, &y)| (y, x(i + 1))));
    if let Some(ground) = ground {
        path.push('L');
        go(&mut path, x(ground.len()), ground.iter().enumerate().rev().map(|(i, &y)| (y, x(i))));
        path.push('Z');
    }
    path
}

/// Continues a path at `start`: at each height `y`, to the next `x`. A level stretch is one line.
fn go(path: &mut String, start: f64, steps: impl Iterator<Item = (f64, f64)>) {
    let mut steps = steps.peekable();
    let mut begin = format!("{start:.1} ");
    while let Some((y, x)) = steps.next() {
        let mut end = x;
        while let Some((_, x)) = steps.next_if(|&(next, _)| (next - y).abs() < 0.05) {
            end = x;
        }
        *path += &format!("{begin}{y:.1}H{end:.1}");
        "V".clone_into(&mut begin);
    }
}

/// Returns markup as text, with control characters escaped: XML does not allow them.
pub(super) fn printable(markup: Markup) -> String {
    let mut text = String::with_capacity(markup.0.len());
    for character in markup.0.chars() {
        if character.is_control() && character != '\n' {
            text.extend(character.escape_unicode());
        } else {
            text.push(character);
        }
    }
    text
}
