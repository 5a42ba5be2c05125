//! The alignment of two measured steps of other sizes: which of their events and saved tensors are the same.

use std::collections::HashMap;

use crate::identity::{SavedIndex, TensorId};
use crate::profiled::{Profiled, StepEvent};

/// The alignment of a measured step with another one.
pub(crate) struct Alignment {
    /// For each event, the number of the same one in the other step. These numbers grow.
    pub(crate) events: Vec<Option<usize>>,
    /// For each saved tensor, the same one in the other step.
    pub(crate) saved: Vec<Option<SavedIndex>>,
}

/// The kind of an event, with the tensor that it is about, and without its size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Save(SavedIndex),
    Need(SavedIndex),
    Lend(TensorId),
    GiveBack(TensorId),
    Operation,
}

impl Alignment {
    /// Aligns two steps. Returns None if they do not do the same.
    ///
    /// Some tensors are too small to count in the smaller step, and with them their events. So if the program's
    /// allocations are counted, saved tensors are the same where they were saved at the same place, and at least half of
    /// the saved bytes must be of such tensors. Otherwise all events must be the same.
    pub(crate) fn of(own: &Profiled, other: &Profiled) -> Option<Self> {
        let indices = (0..own.profile.saved().len()).map(SavedIndex);
        let same_saves = match (&own.pace, &other.pace) {
            (Some(pace), Some(other_pace)) => Some(pace.same_saves(other_pace)),
            _ if own.events.len() != other.events.len() => return None,
            _ => None,
        };
        let same_as = |index: SavedIndex| same_saves.as_ref().map_or(Some(index), |same| same.get(&index).copied());
        let saved: Vec<Option<SavedIndex>> = indices.map(same_as).collect();
        let mut there: HashMap<(What, usize), usize> = HashMap::new();
        let own_index = |index: SavedIndex| saved.get(index.0).copied().flatten();
        for (number, what) in numbered(&other.events, Some).into_iter().enumerate() {
            there.extend(what.map(|what| (what, number)));
        }
        let mut last = None;
        let same = numbered(&own.events, own_index).into_iter().map(|what| {
            // Those that changed places are not the same.
            let number = there.get(&what?).copied().filter(|number| last < Some(*number))?;
            last = Some(number);
            last
        });
        let events: Vec<Option<usize>> = same.collect();
        let are_alike = match same_saves {
            None => events.iter().all(Option::is_some),
            Some(_) => {
                let bytes = own.profile.saved().iter().map(|saved| saved.bytes);
                let same = bytes.clone().zip(&saved).filter(|(_, same)| same.is_some()).map(|(bytes, _)| bytes);
                2 * same.sum::<u64>() >= bytes.sum()
            }
        };
        are_alike.then_some(Self { events, saved })
    }
}

/// Returns what happens at each event, with the number of times that it happened before. None if the event is of a saved
/// tensor for which `index` returns None.
fn numbered(events: &[StepEvent], index: impl Fn(SavedIndex) -> Option<SavedIndex>) -> Vec<Option<(What, usize)>> {
    let mut seen: HashMap<What, usize> = HashMap::new();
    let mut saves = 0;
    let mut of = |event: &StepEvent| {
        let what = match *event {
            StepEvent::Save { .. } => {
                saves += 1;
                What::Save(index(SavedIndex(saves - 1))?)
            }
            StepEvent::Need { index: needed } => What::Need(index(needed)?),
            StepEvent::Lend { id } => What::Lend(id),
            StepEvent::GiveBack { id } => What::GiveBack(id),
            StepEvent::Operation => What::Operation,
        };
        let before = seen.entry(what).or_default();
        *before += 1;
        Some((what, *before - 1))
    };
    events.iter().map(&mut of).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn what_only_one_step_saves_is_in_proportion_in_the_other() {
        let mut large = Profile::new();
        let wide = large.save(50, "wide", 400);
        let narrow = large.save(60, "narrow", 40);
        large.need(70, narrow);
        large.need(30, wide);
        large.end(10);
        large.set_times([8, 2, 6, 4, 1]);
        let mut small = Profile::new();
        let wide = small.save(25, "wide", 200);
        small.need(35, wide);
        small.end(5);
        small.set_times([4, 6, 1]);
        let saved = vec![Some(SavedIndex(0)), None];
        let alignment = Alignment { events: vec![Some(0), None, None, Some(1)], saved };
        // The small step, as the large one sees it: time and bytes between the events that both have are distributed.
        let seen = large.combined(&small, &alignment, 0.5, |_, other| other).unwrap();
        assert_eq!(seen.saved().iter().map(|saved| saved.bytes).collect::<Vec<_>>(), [200, 20]);
        assert_eq!(seen.times().collect::<Vec<_>>(), [4, 1, 3, 2, 1]);
        assert_eq!(seen.other_bytes().collect::<Vec<_>>(), [25, 30, 35, 15, 5]);
        // The large step, as the small one sees it: what it alone saves is among the other bytes.
        let alignment = Alignment { events: vec![Some(0), Some(3)], saved: vec![Some(SavedIndex(0))] };
        let seen = small.combined(&large, &alignment, 2.0, |_, other| other).unwrap();
        assert_eq!(seen.saved()[0].bytes, 400);
        assert_eq!(seen.times().collect::<Vec<_>>(), [8, 12, 1]);
        assert_eq!(seen.other_bytes().collect::<Vec<_>>(), [50, 110, 10]);
    }

    #[test]
    fn events_that_changed_places_are_not_the_same() {
        let step = |needs: [usize; 2]| {
            let mut profile = Profile::new();
            let saved = [0, 1].map(|_| profile.save(0, "saved", 1));
            let mut events = vec![StepEvent::Save { bytes: 1 }; 2];
            for index in needs {
                profile.need(0, saved[index]);
                events.push(StepEvent::Need { index: SavedIndex(index) });
            }
            profile.end(0);
            Profiled { events, profile, ..Profiled::default() }
        };
        let same = Alignment::of(&step([1, 0]), &step([1, 0])).unwrap();
        assert_eq!(same.events, [Some(0), Some(1), Some(2), Some(3)]);
        assert!(Alignment::of(&step([1, 0]), &step([0, 1])).is_none());
    }
}
