//! The parts of SVG that charts need.

use std::fmt::{Arguments, Write};

/// An SVG drawing under construction.
#[derive(Default)]
pub(super) struct Svg(String);

/// A path of horizontal and vertical lines.
#[derive(Default)]
pub(super) struct Steps(String);

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

impl Svg {
    /// Adds an element, or a part of one.
    pub(super) fn add(&mut self, element: Arguments<'_>) {
        write!(self.0, "{element}").expect("a string takes every character");
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

impl Steps {
    /// Adds steps from left to right: `heights[i]` from `x(i)` to `x(i + 1)`.
    pub(super) fn right(&mut self, heights: &[f64], x: impl Fn(usize) -> f64) {
        self.go(x(0), heights.iter().enumerate().map(|(i, &y)| (y, x(i + 1))));
    }

    /// Adds the same steps from right to left, to close an area.
    pub(super) fn left(&mut self, heights: &[f64], x: impl Fn(usize) -> f64) {
        self.go(x(heights.len()), heights.iter().enumerate().rev().map(|(i, &y)| (y, x(i))));
    }

    pub(super) fn close(&mut self) {
        self.0.push('Z');
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    /// Moves from `start`, at each height `y`, to the next `x`. A level stretch is one line.
    fn go(&mut self, start: f64, steps: impl Iterator<Item = (f64, f64)>) {
        let command = if self.0.is_empty() { 'M' } else { 'L' };
        let mut steps = steps.peekable();
        let mut first = true;
        while let Some((y, x)) = steps.next() {
            let written = if first { write!(self.0, "{command}{start:.1} {y:.1}") } else { write!(self.0, "V{y:.1}") };
            written.expect("a string takes every character");
            first = false;
            let mut end = x;
            while let Some((_, x)) = steps.next_if(|&(next, _)| (next - y).abs() < 0.05) {
                end = x;
            }
            write!(self.0, "H{end:.1}").expect("a string takes every character");
        }
    }
}
