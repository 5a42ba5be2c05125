//! Rankings: the order in which a search tries buffers.

use std::cmp::Ordering;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Random;

use Measure::{Area, Fullness, Lifetime, Sections};

/// A measure of a buffer.
#[derive(Clone, Copy)]
pub(super) enum Measure {
    /// The number of its sections.
    Sections,
    /// The length of its lifetime.
    Lifetime,
    /// The product of its size and its lifetime.
    Area,
    /// The unplaced bytes in the fullest of its sections.
    Fullness,
}

/// Measures that rank buffers: by the first, where that is equal by the second, and so on. The buffer with the highest
/// value comes first.
pub(super) type Ranking = [Measure; 3];

/// The rankings that a search takes in turn, since the best one is not known in advance.
pub(super) const RANKINGS: [Ranking; 6] = [
    [Sections, Area, Fullness],
    [Fullness, Area, Sections],
    [Fullness, Sections, Area],
    [Lifetime, Area, Fullness],
    [Fullness, Area, Lifetime],
    [Fullness, Lifetime, Area],
];

/// The most that chance changes a measure, as a share of it.
const CHANCE: f64 = 0.1;

/// Random factors on the length and area of a buffer, so that a restarted search goes another way.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub(super) length: f64,
    pub(super) area: f64,
}

impl Factors {
    /// Factors that change nothing.
    pub(super) const NONE: Self = Self { length: 1.0, area: 1.0 };

    /// Draws random factors.
    pub(super) fn random(random: &mut Random) -> Self {
        let mut factor = || random.random_range(1.0 - CHANCE..1.0 + CHANCE);
        Self { length: factor(), area: factor() }
    }
}

/// Compares two buffers by their measures; the one with the higher values comes first.
pub(super) fn compare(a: &[f64; 3], b: &[f64; 3]) -> Ordering {
    let by_measure = a.iter().zip(b).map(|(a, b)| b.total_cmp(a));
    by_measure.fold(Ordering::Equal, Ordering::then)
}
