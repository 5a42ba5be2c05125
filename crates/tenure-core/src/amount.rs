//! Amounts of memory as people write them: sizes with units, and shares.

use std::fmt;
use std::str::FromStr;

/// The units of a size, in bytes. A number without a unit is in bytes.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// The largest share that [`Amount::of_budget`] reads, in percent.
const MOST_PERCENT: f64 = 1000.0;

/// An amount of memory as people write it: `12GiB`, `60%`.
///
/// ```
/// use tenure_core::Amount;
///
/// let half: Amount = "50%".parse()?;
/// assert_eq!((half.of(1000), "12GiB".parse()), (500, Ok(Amount::Bytes(12 << 30))));
/// # Ok::<(), tenure_core::AmountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// A share of a whole, in percent.
    Percent(f64),
}

/// The error for a text that is no amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// The text is no size.
    #[error("expected a whole number of bytes, or of {}, such as 12GiB", units())]
    NotBytes,
    /// The text is neither a size nor a share.
    #[error("expected a whole number of bytes, or of {}, or a share from 0% to 100%, such as 12GiB or 60%", units())]
    NotAmount,
    /// The text is neither a size nor a share of a step's memory.
    #[error(
        "expected a whole number of bytes, or of {}, or a share from 0% to {MOST_PERCENT}%, such as 12GiB or 60%",
        units()
    )]
    NotBudget,
    /// The size is too large for any memory.
    #[error("more than 2^64 bytes")]
    TooLarge,
}

/// Reads a size in bytes: a whole number, alone or with a unit such as MiB or GB.
///
/// # Errors
/// [`AmountError`] if the text is no size, or a size beyond 2^64 bytes.
pub fn parse_bytes(text: &str) -> Result<u64, AmountError> {
    let with_unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), *factor)));
    let (number, factor) = with_unit.unwrap_or((text, 1));
    let count: u64 = number.parse().map_err(|_| AmountError::NotBytes)?;
    count.checked_mul(factor).ok_or(AmountError::TooLarge)
}

impl Amount {
    /// Returns the amount in bytes, where a percentage is of `whole_bytes`.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole_bytes as f64 * percent / 100.0) as u64,
        }
    }

    /// Reads the amount of a budget for training steps. Its share is of the memory that a step takes without a budget,
    /// so it may be larger than 100 %: then there is room for steps that grow.
    ///
    /// ```
    /// use tenure_core::Amount;
    ///
    /// assert_eq!(Amount::of_budget("150%"), Ok(Amount::Percent(150.0)));
    /// assert!("150%".parse::<Amount>().is_err(), "other shares are of a whole");
    /// ```
    ///
    /// # Errors
    /// [`AmountError`] if the text is neither a size nor a share from 0 % to 1000 %.
    pub fn of_budget(text: &str) -> Result<Self, AmountError> {
        Self::parse(text, MOST_PERCENT, AmountError::NotBudget)
    }

    /// Reads a size, or a share of at most `most_percent`. Returns `error` if the text is neither.
    fn parse(text: &str, most_percent: f64, error: AmountError) -> Result<Self, AmountError> {
        let Some(percent) = text.strip_suffix('%') else {
            return parse_bytes(text).map(Self::Bytes).map_err(|reason| match reason {
                AmountError::NotBytes => error,
                reason => reason,
            });
        };
        let percent = percent.trim_end().parse().ok().filter(|percent| (0.0..=most_percent).contains(percent));
        percent.map(Self::Percent).ok_or(error)
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        Self::parse(text, 100.0, AmountError::NotAmount)
    }
}

impl fmt::Display for Amount {
    /// Writes the amount so that it can be read again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

fn units() -> String {
    UNITS.map(|(unit, _)| unit).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let parsed = ["0", "17", "17B", "2KiB", "16GiB", "16 GiB", "3MB"].map(parse_bytes);
        assert_eq!(parsed, [0, 17, 17, 2048, 16 << 30, 16 << 30, 3_000_000].map(Ok));
        for text in ["", "GiB", "1.5GiB", "-1", "16gib", "50%"] {
            assert_eq!(parse_bytes(text), Err(AmountError::NotBytes), "{text}");
        }
        assert_eq!(parse_bytes("18446744073709551615KiB"), Err(AmountError::TooLarge));
    }

    #[test]
    fn amounts_are_sizes_or_shares() {
        let of = |text: &str| text.parse::<Amount>().map(|amount| amount.of(1000));
        assert_eq!(["3MiB", "100%", "0%", "12.5 %"].map(of), [3 << 20, 1000, 0, 125].map(Ok));
        for text in ["-1%", "101%", "NaN%", "half", "%", ""] {
            assert_eq!(of(text), Err(AmountError::NotAmount), "{text}");
        }
        assert_eq!([Amount::Bytes(7), Amount::Percent(12.5)].map(|amount| amount.to_string()), ["7", "12.5%"]);
    }

    #[test]
    fn a_budget_may_be_more_than_a_step_takes() {
        let of = |text: &str| Amount::of_budget(text).map(|amount| amount.of(1000));
        assert_eq!(["3MiB", "100%", "150%", "1000 %"].map(of), [3 << 20, 1000, 1500, 10_000].map(Ok));
        for text in ["-1%", "1001%", "NaN%", "inf%", "half", "%", ""] {
            assert_eq!(of(text), Err(AmountError::NotBudget), "{text}");
        }
        assert!(AmountError::NotBudget.to_string().contains("from 0% to 1000%"));
    }

    #[test]
    fn errors_say_what_is_accepted() {
        let said = AmountError::NotAmount.to_string();
        assert!(["bytes", "KiB", "GiB", "60%"].iter().all(|word| said.contains(word)), "{said}");
    }
}
