//! Estimates of steps whose sizes were never measured, from measured steps of their kind: their profile, and their peak
//! memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use crate::align::Alignment;
use crate::identity::Signature;
use crate::profiled::{Profiled, StepEvent};

/// The largest size of an estimate, as a multiple of the largest measured size.
const MOST_GROWTH: f64 = 1.25;

/// A measured step, with the bytes that it computed on.
pub(crate) type Measurement<'a> = (u64, &'a Profiled);

/// Estimates a step that computes on `input_bytes`, by taking each size and time to be linear in these bytes.
///
/// Returns None where fewer than two sizes were measured, none of which is `input_bytes`; where `input_bytes` is much
/// larger than all; and where the two steps that it would use differ in more than sizes and times.
pub(crate) fn estimated(measured: &[Measurement<'_>], input_bytes: u64) -> Option<Profiled> {
    let largest = measured.iter().map(|(bytes, _)| *bytes).max()?;
    if input_bytes as f64 > largest as f64 * MOST_GROWTH {
        return None;
    }
    let distance = |(bytes, _): &Measurement<'_>| (*bytes as f64 / input_bytes as f64).ln().abs();
    let nearer = |a: &Measurement<'_>, b: &Measurement<'_>| distance(a).total_cmp(&distance(b));
    let (at, near) = *measured.iter().min_by(|a, b| nearer(a, b))?;
    if at == input_bytes {
        return Some(Profiled { is_estimate: true, ..near.clone() });
    }
    // The second step is the nearest on the other side of this size, or else the one that is farthest away: no
    // measurement is exact.
    let side = |bytes: u64| bytes.cmp(&input_bytes);
    let others = || measured.iter().filter(|(bytes, _)| *bytes != at);
    let across = others().filter(|(bytes, _)| side(*bytes) != side(at) && side(*bytes) != Ordering::Equal);
    let (other_at, other) = *across.min_by(|a, b| nearer(a, b)).or_else(|| others().max_by(|a, b| nearer(a, b)))?;
    let share = (input_bytes as f64 - at as f64) / (other_at as f64 - at as f64);
    let linear = |near: u64, other: u64| (near as f64 + (other as f64 - near as f64) * share).max(0.0) as u64;
    let alignment = Alignment::of(near, other)?;
    let scale = other_at as f64 / at as f64;
    let profile = near.profile.combined(&other.profile, &alignment, scale, linear)?;
    let mut saved = profile.saved().iter().map(|saved| saved.bytes);
    let event = |event: &StepEvent| match event {
        StepEvent::Save { bytes } => StepEvent::Save { bytes: saved.next().unwrap_or(*bytes) },
        _ => *event,
    };
    let events = near.events.iter().map(event).collect();
    Some(Profiled { events, profile, untimed_steps: 0, is_estimate: true, ..near.clone() })
}

/// The peak that stands for a step in which an allocation found no room: more bytes than any memory has.
const TOO_MUCH: u64 = 1 << 50;

/// The number of parts that an octave of sizes, from a power of two to the next, is divided into.
const PARTS: u32 = 16;

/// The most kinds of steps that are remembered.
const MOST_KINDS: usize = 256;

/// Predicts the peak of a step from the peaks of steps of its kind that have other sizes.
///
/// It stays bounded even if every step is of another kind: a new kind beyond `MOST_KINDS` makes it forget all others.
#[derive(Debug, Default)]
pub(crate) struct StepPeaks {
    kinds: HashMap<u64, PeaksOfKind>,
}

impl StepPeaks {
    /// Records that a step took `bytes` beyond those that were allocated when it began.
    pub(crate) fn record(&mut self, signature: Signature, bytes: u64) {
        if self.kinds.len() == MOST_KINDS && !self.kinds.contains_key(&signature.kind) {
            self.kinds.clear();
        }
        self.kinds.entry(signature.kind).or_default().record(signature.input_bytes, bytes);
    }

    /// Records that an allocation of a step found no room.
    pub(crate) fn record_too_much(&mut self, signature: Signature) {
        self.record(signature, TOO_MUCH);
    }

    /// Returns whether steps like this one found no room.
    pub(crate) fn is_too_much(&self, signature: Signature) -> bool {
        self.predict(signature).is_some_and(|bytes| bytes >= TOO_MUCH)
    }

    /// Predicts the bytes that a step takes. Returns None if nothing like it is known.
    pub(crate) fn predict(&self, signature: Signature) -> Option<u64> {
        self.kinds.get(&signature.kind)?.predict(signature.input_bytes)
    }
}

/// The peaks of one kind. Sizes are told apart to a sixteenth of an octave.
#[derive(Debug, Default)]
struct PeaksOfKind {
    /// The smallest size that was seen and the most bytes that a step took, by the part of an octave.
    parts: BTreeMap<u32, (u64, u64)>,
}

impl PeaksOfKind {
    /// Records that a step whose inputs have `input_bytes` took `bytes` beyond those that were allocated when it began.
    fn record(&mut self, input_bytes: u64, bytes: u64) {
        if input_bytes == 0 {
            return;
        }
        let (least, most) = self.parts.entry(part_of(input_bytes)).or_insert((input_bytes, bytes));
        (*least, *most) = ((*least).min(input_bytes), (*most).max(bytes));
    }

    /// Predicts the bytes that a step takes whose inputs have `input_bytes`. Returns None if nothing like it is known.
    ///
    /// A smaller step takes no more than a larger one. A larger one takes more by at most the square of the ratio of
    /// the sizes, as attention does.
    fn predict(&self, input_bytes: u64) -> Option<u64> {
        if input_bytes == 0 {
            return None;
        }
        let scaled = |(least, most): &(u64, u64)| {
            let ratio = (input_bytes as f64 / *least as f64).max(1.0);
            (ratio <= 2.0).then_some((*most as f64 * ratio * ratio) as u64)
        };
        let part = part_of(input_bytes);
        let above = self.parts.range(part..).next().and_then(|(_, peak)| scaled(peak));
        above.or_else(|| self.parts.range(..part).next_back().and_then(|(_, peak)| scaled(peak)))
    }
}

/// Returns the part of an octave that contains a number of bytes above 0. Parts are numbered through all octaves.
pub(crate) fn part_of(bytes: u64) -> u32 {
    let octave = bytes.ilog2();
    let within = (u128::from(bytes - (1 << octave)) * u128::from(PARTS)) >> octave;
    octave * PARTS + within as u32
}

/// Returns the least number of bytes that is in a part or a later one, and `u64::MAX` after the last part.
pub(crate) fn least_of_part(part: u32) -> u64 {
    let octave = part / PARTS;
    let within = part % PARTS;
    let least = (1_u128 << octave) + (u128::from(within) << octave).div_ceil(u128::from(PARTS));
    u64::try_from(least).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::identity::SavedIndex;
    use crate::profile::Profile;

    /// Returns a step that computes on `bytes`: it saves as many beside 100 bytes of weights, and needs them again.
    fn step_of(bytes: u64) -> Profiled {
        let mut profile = Profile::new();
        let saved = profile.save(100 + 2 * bytes, "saved", bytes);
        profile.need(100, saved);
        profile.end(150 + bytes);
        profile.set_times([10 * bytes, 7, bytes]);
        let events = vec![StepEvent::Save { bytes }, StepEvent::Need { index: SavedIndex(0) }];
        Profiled { events, profile, ..Profiled::default() }
    }

    fn of(measured: &[&Profiled], input_bytes: u64) -> Option<Profiled> {
        let bytes = |profiled: &Profiled| profiled.profile.saved()[0].bytes;
        let measured: Vec<Measurement<'_>> = measured.iter().map(|profiled| (bytes(profiled), *profiled)).collect();
        estimated(&measured, input_bytes)
    }

    #[test]
    fn sizes_and_times_are_linear_in_what_a_step_computes_on() {
        let small = step_of(1000);
        let middle = step_of(2000);
        let large = step_of(4000);
        for input_bytes in [1, 500, 1500, 2000, 3000, 4999] {
            let estimate = of(&[&large, &small, &middle], input_bytes).unwrap();
            assert_eq!(
                (&estimate.profile, &estimate.events),
                (&step_of(input_bytes).profile, &step_of(input_bytes).events)
            );
        }
    }

    #[test]
    fn there_is_no_estimate_of_much_more_than_was_measured_or_by_steps_that_are_not_alike() {
        let small = step_of(1000);
        let large = step_of(2000);
        assert!(of(&[&small], 1100).is_none() && of(&[], 1100).is_none());
        // A step of a measured size needs no estimate.
        assert_eq!(of(&[&small], 1000).unwrap().profile, small.profile);
        assert!(of(&[&small, &large], 2501).is_none());
        let mut another = step_of(2000);
        another.events.pop();
        assert!(of(&[&small, &another], 1500).is_none());
        let mut another = step_of(2000);
        another.profile.need(0, SavedIndex(0));
        another.events.push(StepEvent::Need { index: SavedIndex(0) });
        assert!(of(&[&small, &another], 1500).is_none());
    }

    #[test]
    fn larger_steps_are_predicted_by_the_square_and_smaller_ones_by_what_took_more() {
        let mut peaks = PeaksOfKind::default();
        assert_eq!(peaks.predict(100), None);
        peaks.record(0, 7);
        peaks.record(1000, 50);
        assert_eq!((peaks.predict(0), peaks.predict(1000), peaks.predict(10)), (None, Some(50), Some(50)));
        assert_eq!((peaks.predict(2000), peaks.predict(2001)), (Some(200), None));
        peaks.record(2000, 60);
        assert_eq!((peaks.predict(1500), peaks.predict(3000)), (Some(60), Some(135)));
        // The larger peak counts.
        peaks.record(2001, 90);
        peaks.record(2000, 70);
        assert_eq!(peaks.predict(2000), Some(90));
    }

    #[test]
    fn kinds_are_told_apart() {
        let mut peaks = StepPeaks::default();
        let step = |kind, input_bytes| Signature { id: 0, kind, input_bytes };
        peaks.record(step(1, 2000), 70);
        assert_eq!((peaks.predict(step(1, 2000)), peaks.predict(step(2, 2000))), (Some(70), None));
        peaks.record_too_much(step(1, 2000));
        assert!(peaks.is_too_much(step(1, 3000)) && !peaks.is_too_much(step(2, 3000)));
        for kind in 0..10_000 {
            peaks.record(step(kind, 1), 1);
        }
        assert!(peaks.kinds.len() <= MOST_KINDS);
    }

    #[test]
    fn each_size_is_in_the_part_that_begins_at_or_before_it() {
        let sizes = (1..5000).chain((0..64).flat_map(|octave| [1 << octave, u64::MAX >> octave]));
        for size in sizes {
            let part = part_of(size);
            assert!(least_of_part(part) <= size && (size < least_of_part(part + 1) || size == u64::MAX), "{size}");
        }
    }

    #[test]
    fn any_number_of_sizes_takes_little_memory() {
        let mut peaks = PeaksOfKind::default();
        for size in 1..100_000 {
            peaks.record(size, size);
        }
        peaks.record(u64::MAX, 1);
        assert!(peaks.parts.len() < 300, "{}", peaks.parts.len());
        assert!((1..100_000).all(|size| peaks.predict(size).is_some_and(|bytes| bytes >= size)));
    }
}
