//! The conversion of half-precision numbers from and to the decimal numbers of JSON.

use half::{bf16, f16};

/// A half-precision number.
pub(super) trait Half: Copy + PartialEq {
    /// The largest number of decimal digits that tells each number from its neighbours.
    const DIGITS: i32;

    /// Rounds to the nearest number, and to the even one of two.
    fn from_single(number: f32) -> Self;

    fn to_single(self) -> f32;

    fn to_bytes(self) -> [u8; 2];

    fn from_bytes(bytes: [u8; 2]) -> Self;
}

macro_rules! halves {
    ($($half:ty: $digits:literal,)*) => {$(
        impl Half for $half {
            const DIGITS: i32 = $digits;

            fn from_single(number: f32) -> Self {
                Self::from_f32(number)
            }

            fn to_single(self) -> f32 {
                self.to_f32()
            }

            fn to_bytes(self) -> [u8; 2] {
                self.to_le_bytes()
            }

            fn from_bytes(bytes: [u8; 2]) -> Self {
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}

halves! { f16: 5, bf16: 4, }

/// Rounds to the nearest number, and to the even one of two. Returns `None` if it is too large.
pub(super) fn nearest<H: Half>(number: f64) -> Option<H> {
    let single = number as f32;
    // Rounding twice would err near the middle between two halves. An inexact result is made odd in its last bit, so it
    // is on the right side of the middle.
    let error = number - f64::from(single);
    let odd = if error == 0.0 || single.to_bits() & 1 == 1 {
        single
    } else if error > 0.0 {
        single.next_up()
    } else {
        single.next_down()
    };
    let half = H::from_single(odd);
    half.to_single().is_finite().then_some(half)
}

/// Returns the single-precision number with the shortest decimal text that is read back as this half. The half must be
/// finite.
pub(super) fn shortest<H: Half>(half: H) -> f32 {
    let exact = half.to_single();
    let number = f64::from(exact);
    if number == 0.0 {
        return exact;
    }
    let exponent = number.abs().log10().floor() as i32;
    (0..H::DIGITS)
        .map(|digits| {
            // Each power is exact enough for so few digits.
            let scale = 10_f64.powi(digits - exponent);
            ((number * scale).round() / scale) as f32
        })
        .find(|short| nearest(f64::from(*short)) == Some(half))
        .unwrap_or(exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<H: Half>() -> impl Iterator<Item = H> {
        (0..=u16::MAX).map(|bits| H::from_bytes(bits.to_le_bytes())).filter(|half| half.to_single().is_finite())
    }

    /// Returns the shortest text of a number, found among the texts themselves.
    fn text_of<H: Half>(half: H) -> String {
        let texts = (0..H::DIGITS as usize).map(|digits| format!("{:.digits$e}", half.to_single()));
        texts.into_iter().find(|text| nearest(text.parse().unwrap()) == Some(half)).unwrap()
    }

    fn has_shortest_texts<H: Half>() {
        for half in numbers::<H>() {
            let written = serde_json::to_string(&shortest(half)).unwrap();
            let read: H = nearest(written.parse().unwrap()).unwrap();
            assert_eq!(read.to_bytes(), half.to_bytes(), "{written}");
            let text: f32 = text_of(half).parse().unwrap();
            let digits = |number: f32| format!("{number:e}").split('e').next().unwrap().len();
            assert!(digits(shortest(half)) <= digits(text), "{written} {text:e}");
        }
    }

    #[test]
    fn each_half_has_its_shortest_text() {
        has_shortest_texts::<f16>();
        has_shortest_texts::<bf16>();
        assert_eq!(shortest(bf16::from_f32(0.1)), 0.1);
        assert_eq!(shortest(f16::MAX), 65500.0);
    }

    fn rounds_to_the_nearest<H: Half>() {
        let mut numbers: Vec<f64> = numbers::<H>().map(|half| half.to_single().into()).collect();
        numbers.sort_by(f64::total_cmp);
        for pair in numbers.windows(2).filter(|pair| pair[0] < pair[1]) {
            let middle = f64::midpoint(pair[0], pair[1]);
            let rounded = |number| f64::from(nearest::<H>(number).unwrap().to_single());
            assert_eq!((rounded(middle.next_down()), rounded(middle.next_up())), (pair[0], pair[1]));
            let even = nearest::<H>(middle).unwrap();
            assert_eq!(even.to_bytes()[0] & 1, 0, "{middle}");
        }
    }

    #[test]
    fn a_number_is_rounded_once_and_to_even() {
        rounds_to_the_nearest::<f16>();
        rounds_to_the_nearest::<bf16>();
        assert_eq!((nearest::<f16>(65519.9), nearest::<f16>(65520.0)), (Some(f16::MAX), None));
        assert_eq!((nearest::<bf16>(3.4e38), nearest::<bf16>(1e300)), (None, None));
    }
}
