//! Formats figures for people.

use std::fmt;

pub use tenure_core::{Amount, AmountError, parse_bytes};

/// Bytes in decimal units with three digits: `512 B`, `7.49 GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time given in µs, with three digits: `36.0 µs`, `4.41 ms`, `1.07 s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

/// A time given in ns, with three digits: `87.0 ns`, `1.20 µs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// A share in percent: `18%`, `0.4%`. From ten times on, as a multiple: `12.6 times`, `12,583 times`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(pub f64);

/// A whole number with separated thousands: `91,851`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return f.pad(&format!("{} B", self.0));
        }
        f.pad(&scaled(self.0 as f64 / 1e3, 1e3, &["kB", "MB", "GB", "TB", "PB", "EB"]))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&time(self.0 * 1e3))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&if self.0 < 1000 { format!("{} ns", self.0) } else { time(self.0 as f64) })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        f.pad(&match percent.abs() {
            ..9.95 => format!("{percent:.1}%"),
            ..999.5 => format!("{percent:.0}%"),
            ..9995.0 => format!("{:.1} times", self.0),
            _ => format!("{} times", Count(self.0.round() as u64)),
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// Formats a time in a suitable unit.
fn time(ns: f64) -> String {
    if ns == 0.0 {
        return "0".into();
    }
    scaled(ns, 1e3, &["ns", "µs", "ms", "s"])
}

/// Formats three digits of `value`, in the first unit in which it has at most three before the point.
fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // A value that would round up to four digits belongs to the next unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let shown = [0, 999, 1000, 999_499, 999_500, 7_493_124_096, u64::MAX].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "999 kB", "1.00 MB", "7.49 GB", "18.4 EB"]);
    }

    #[test]
    fn times_have_three_digits() {
        let shown = [0.0, 0.087, 36.0, 4412.0, 1_070_000.0, 3.6e9].map(|us| Micros(us).to_string());
        assert_eq!(shown, ["0", "87.0 ns", "36.0 µs", "4.41 ms", "1.07 s", "3600 s"]);
        assert_eq!([0, 87, 1200].map(|ns| Nanos(ns).to_string()), ["0 ns", "87 ns", "1.20 µs"]);
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!([0, 999, 1000, 1_234_567].map(|n| Count(n).to_string()), ["0", "999", "1,000", "1,234,567"]);
        let shares = [0.0, 0.0042, 0.18, 1.206, 9.994, 9.996, 99.96, 12581.91].map(|share| Percent(share).to_string());
        assert_eq!(shares, ["0.0%", "0.4%", "18%", "121%", "999%", "10.0 times", "100 times", "12,582 times"]);
    }

    #[test]
    fn figures_can_be_aligned() {
        assert_eq!(format!("{:>9}|{:<6}|", Bytes(5), Count(5)), "      5 B|5     |");
    }
}
