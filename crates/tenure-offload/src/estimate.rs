//! Estimates of steps whose sizes were never measured, from two measured steps of their kind.

use std::cmp::Ordering;

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
    let profile = near.profile.combined(&other.profile, linear)?;
    let events = near.events.iter().zip(&other.events).map(|(near, other)| combined(near, other, linear));
    let events = events.collect::<Option<Vec<_>>>().filter(|_| near.events.len() == other.events.len())?;
    Some(Profiled { events, profile, is_timed: true, is_estimate: true, ..near.clone() })
}

/// Returns an event like both of these, with the size that `linear` gives, or None if they are not alike.
fn combined(near: &StepEvent, other: &StepEvent, linear: impl Fn(u64, u64) -> u64) -> Option<StepEvent> {
    match (near, other) {
        (StepEvent::Save { bytes }, StepEvent::Save { bytes: other }) => {
            Some(StepEvent::Save { bytes: linear(*bytes, *other) })
        }
        _ => (near == other).then_some(*near),
    }
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
        assert!(of(&[&small, &another], 1500).is_none());
    }
}
