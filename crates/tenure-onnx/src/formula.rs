//! Formulas that compute a size of other sizes, found from the numbers of several traces.

use crate::size::{FITTED, Size};

/// The largest divisor of a quotient.
const LARGEST_DIVISOR: i64 = 64;

/// The largest divisor of a quotient of a multiple.
const LARGEST_DIVISOR_OF_TERM: i64 = 16;

/// A formula that computes a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Formula {
    /// A number.
    Fixed(i64),
    /// The known size of this index.
    Known(usize),
    /// A size that is computed of two.
    Of(Operator, Box<[Self; 2]>),
}

/// An operator of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Mul,
    /// A quotient of numbers that are not negative, rounded down.
    Div,
    Min,
    Max,
}

impl Operator {
    /// Returns the operator's name in ONNX.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Mul => "Mul",
            Self::Div => "Div",
            Self::Min => "Min",
            Self::Max => "Max",
        }
    }

    fn compute(self, one: i64, other: i64) -> i64 {
        match self {
            Self::Add => one.saturating_add(other),
            Self::Mul => one.saturating_mul(other),
            Self::Div => one.checked_div(other).unwrap_or(0),
            Self::Min => one.min(other),
            Self::Max => one.max(other),
        }
    }
}

impl Formula {
    fn of(operator: Operator, one: Self, other: Self) -> Self {
        match (operator, &other) {
            (Operator::Add, Self::Fixed(0)) | (Operator::Mul, Self::Fixed(1)) => one,
            _ => Self::Of(operator, Box::new([one, other])),
        }
    }

    /// Computes `factor` · `of` + `plus`.
    fn line(of: Self, factor: i64, plus: i64) -> Self {
        let product = Self::of(Operator::Mul, of, Self::Fixed(factor));
        Self::of(Operator::Add, product, Self::Fixed(plus))
    }

    /// Returns the number that the formula gives in each trace.
    pub(crate) fn evaluate(&self, known: &[Size]) -> Size {
        match self {
            Self::Fixed(number) => Size::fixed(*number),
            Self::Known(index) => known[*index],
            Self::Of(operator, of) => {
                let [one, other] = of.each_ref().map(|formula| formula.evaluate(known));
                one.zip(other, |one, other| operator.compute(one, other))
            }
        }
    }

    /// Finds the simplest formula that gives a size in all traces but the last, which this function does not look at:
    /// a known size, a multiple plus a number, a quotient by a number, a minimum or maximum with a number, a product
    /// or a sum of two. The first `axes` known sizes are those of dynamic axes.
    pub(crate) fn find(size: &Size, known: &[Size], axes: usize) -> Option<Self> {
        let equal = known.iter().position(|other| other.fitted() == size.fitted()).map(Self::Known);
        equal
            .or_else(|| of_one(size, known, &[linear, quotient, multiple_of_quotient, bounded]))
            .or_else(|| product(size, known, 3))
            .or_else(|| sum(size, known, axes))
    }
}

/// Finds a formula of a size, of a known one, and of its index.
type Find = fn(&Size, &Size, usize) -> Option<Formula>;

/// Finds a formula of one known size, of the first kind that there is one of.
fn of_one(size: &Size, known: &[Size], kinds: &[Find]) -> Option<Formula> {
    kinds.iter().find_map(|find| known.iter().enumerate().find_map(|(index, of)| find(size, of, index)))
}

/// Finds a multiple of a known size plus a number.
fn linear(size: &Size, of: &Size, index: usize) -> Option<Formula> {
    let numbers = size.fitted();
    let others = of.fitted();
    let other = (1..FITTED).find(|trace| others[*trace] != others[0])?;
    let rise = numbers[other] - numbers[0];
    let run = others[other] - others[0];
    if rise == 0 || rise % run != 0 {
        return None;
    }
    let factor = rise / run;
    let plus = numbers[0].checked_sub(factor.checked_mul(others[0])?)?;
    let line = of.map(|of| factor.saturating_mul(of).saturating_add(plus));
    (line.fitted() == numbers).then(|| Formula::line(Formula::Known(index), factor, plus))
}

/// Finds a multiple of a known size plus a number, divided by a number and rounded down: the only one that gives the
/// size in all traces.
fn quotient(size: &Size, of: &Size, index: usize) -> Option<Formula> {
    let mut distinct = size.fitted().to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    // Two numbers are a quotient of anything by a large divisor.
    if distinct.len() < 3 {
        return None;
    }
    let divisors = (2..=LARGEST_DIVISOR).flat_map(|divisor| {
        let factors = if divisor > LARGEST_DIVISOR_OF_TERM { 1..2 } else { 1..divisor };
        factors.map(move |factor| (divisor, factor))
    });
    // Sizes that are no multiples of this number need no formula: the function fails with them, or was not run.
    let unit = of.0.iter().fold(0, |one, other| gcd(one, *other));
    let mut found: Option<[i64; 3]> = None;
    for (divisor, factor) in divisors {
        // The numbers that may be added to the dividend.
        let (mut least, mut most) = (i64::MIN, i64::MAX);
        for (number, of) in size.0.iter().zip(of.0) {
            let begin = number.checked_mul(divisor)?.checked_sub(of.checked_mul(factor)?)?;
            least = least.max(begin);
            most = most.min(begin + divisor - 1);
        }
        if least > most {
            continue;
        }
        let step = gcd(factor * unit, divisor);
        let plus = if (least..=most).contains(&0) { 0 } else { most };
        let candidate = [divisor, factor, plus];
        // Two quotients that differ for other sizes are none.
        if least.div_euclid(step) != most.div_euclid(step)
            || found.is_some_and(|found| !are_equal(found, candidate, unit))
        {
            return None;
        }
        found = found.or(Some(candidate));
    }
    let [divisor, factor, plus] = found?;
    // The dividend is not negative for any size: ONNX rounds negative quotients up.
    let dividend = Formula::line(Formula::Known(index), factor, plus.rem_euclid(divisor));
    let quotient = Formula::of(Operator::Div, dividend, Formula::Fixed(divisor));
    Some(Formula::of(Operator::Add, quotient, Formula::Fixed(plus.div_euclid(divisor))))
}

/// Returns whether two quotients (divisors, factors, numbers that are added) are equal for multiples of `unit`.
fn are_equal(one: [i64; 3], other: [i64; 3], unit: i64) -> bool {
    (1..=LARGEST_DIVISOR * LARGEST_DIVISOR).all(|count| {
        let [one, other] =
            [one, other].map(|[divisor, factor, plus]| (factor * count * unit + plus).div_euclid(divisor));
        one == other
    })
}

/// Finds a multiple of a quotient.
fn multiple_of_quotient(size: &Size, of: &Size, index: usize) -> Option<Formula> {
    let factor = size.fitted().iter().fold(0, |one, other| gcd(one, *other));
    if factor < 2 {
        return None;
    }
    let part = quotient(&size.map(|number| number / factor), of, index)?;
    Some(Formula::of(Operator::Mul, part, Formula::Fixed(factor)))
}

/// Returns the largest number that divides both.
fn gcd(one: i64, other: i64) -> i64 {
    if other == 0 { one.abs() } else { gcd(other, one % other) }
}

/// Finds the smaller or larger one of a number, and of a known size plus a number. Two traces must have the number, since
/// one alone may be anything.
fn bounded(size: &Size, of: &Size, index: usize) -> Option<Formula> {
    let numbers = size.fitted();
    let bounds = [(Operator::Min, numbers.iter().max()), (Operator::Max, numbers.iter().min())];
    bounds.into_iter().find_map(|(operator, bound)| {
        let bound = *bound?;
        let mut free = numbers.iter().zip(of.fitted()).filter(|(number, _)| **number != bound);
        let (number, other) = free.next()?;
        let plus = number - other;
        // One trace alone is a sum with some number.
        if plus != 0 {
            free.next()?;
        }
        let are_bounded = size.0.iter().filter(|number| **number == bound).count() > 1;
        let mut pairs = numbers.iter().zip(of.fitted());
        let fits = are_bounded && pairs.all(|(number, of)| *number == operator.compute(of + plus, bound));
        fits.then(|| Formula::of(operator, Formula::line(Formula::Known(index), 1, plus), Formula::Fixed(bound)))
    })
}

/// Finds the product of a known size, and of a multiple, a quotient or a product of known ones.
fn product(size: &Size, known: &[Size], depth: usize) -> Option<Formula> {
    known.iter().enumerate().find_map(|(index, of)| {
        let pairs = size.fitted().iter().zip(of.fitted());
        let is_multiple = pairs.clone().all(|(number, of)| *of > 1 && *number != 0 && number % of == 0);
        if !is_multiple || pairs.clone().all(|(number, of)| number == of) {
            return None;
        }
        // The last trace's number is not looked at, so that any rest will do.
        let rest = size.zip(*of, |number, of| number.checked_div(of).unwrap_or(0));
        let rest = of_one(&rest, known, &[linear, quotient, multiple_of_quotient])
            .or_else(|| if depth == 0 { None } else { product(&rest, known, depth - 1) })?;
        Some(Formula::of(Operator::Mul, Formula::Known(index), rest))
    })
}

/// Finds the sum of a dynamic axis's size, and of a multiple of another known size plus a number.
fn sum(size: &Size, known: &[Size], axes: usize) -> Option<Formula> {
    known[..axes.min(known.len())].iter().enumerate().find_map(|(index, of)| {
        let rest = *size - *of;
        let rest = of_one(&rest, known, &[linear])?;
        Some(Formula::of(Operator::Add, Formula::Known(index), rest))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    const ROWS: Size = Size([6, 47, 97, 2, 48, 7]);
    const COLUMNS: Size = Size([6, 97, 2, 48, 7, 47]);

    fn found(compute: impl Fn(i64, i64) -> i64) -> Option<Size> {
        let known = [ROWS, COLUMNS];
        let size = ROWS.zip(COLUMNS, compute);
        Formula::find(&size, &known, 2).map(|formula| formula.evaluate(&known))
    }

    #[test]
    fn a_formula_of_several_traces_holds_in_the_one_that_it_is_not_found_from() {
        let computed: [fn(i64, i64) -> i64; 14] = [
            |rows, _| rows,
            |_, columns| columns,
            |rows, _| 3 * rows - 2,
            |rows, _| 7 - rows,
            |rows, _| rows / 2,
            |rows, _| (rows + 1) / 2,
            |rows, _| (rows - 3).div_euclid(2) + 1,
            |rows, _| 3 * rows / 4,
            |rows, _| rows.min(8),
            |rows, _| (rows - 4).max(4),
            |rows, columns| rows * columns,
            |rows, columns| (rows / 2) * columns * 3,
            |rows, columns| rows + columns + 1,
            |rows, columns| rows - columns,
        ];
        for (index, compute) in computed.into_iter().enumerate() {
            let expected = ROWS.zip(COLUMNS, compute);
            assert_eq!(found(compute), Some(expected), "{index}");
        }
    }

    #[test]
    fn a_number_that_is_no_formula_has_none() {
        assert_eq!(found(|rows, _| (rows as f64).sqrt() as i64), None);
        assert_eq!(found(|rows, _| rows * rows % 7), None);
        assert_eq!(found(|rows, columns| rows.max(columns)), None);
        // Only the largest size has another difference.
        assert_eq!(found(|rows, _| rows * 63 / 64), None);
    }

    #[test]
    fn a_dividend_is_not_negative_for_small_sizes() {
        let size = ROWS.map(|rows| (rows - 3).div_euclid(2));
        let formula = Formula::find(&size, &[ROWS], 1).unwrap();
        assert_eq!(formula.evaluate(&[Size::fixed(0)]), Size::fixed(-2));
    }
}
