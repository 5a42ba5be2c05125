//! What a plan does at each point of a step.

use std::ops::Range;

use tenure_plan::plan::{self, Plan};

use crate::identity::{ResidentIndex, SavedIndex};
use crate::profile::Profile;

/// What is done with something that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It begins to go out, to a link's tier by its number.
    Spill {
        /// Of the machine's links.
        link: usize,
    },
    /// It begins to come back.
    Fetch,
    /// It is given up.
    Drop,
}

impl Action {
    /// What brings something to a tier of a machine.
    fn to(tier: usize) -> Self {
        tier.checked_sub(1).map_or(Self::Fetch, |link| Self::Spill { link })
    }
}

/// What is done at each point: the work of the interval that begins there has not been asked for yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Where residents are at first.
    begin: Vec<(usize, Action)>,
    /// By point: tensors of the problem, which are what was saved, by index, and then residents.
    points: Vec<Vec<(usize, Action)>>,
}

impl Schedule {
    /// Of a plan of the profile's problem. What is computed again is so where it is needed.
    pub fn of(profile: &Profile, plan: &Plan) -> Self {
        let saved = profile.saved();
        let residents = saved.len()..saved.len() + profile.residents();
        let place = |tensor: usize| (tensor, Action::to(plan.places[tensor]));
        let mut begin: Vec<_> = residents.clone().map(place).collect();
        let mut points = vec![Vec::new(); profile.intervals()];
        for step in &plan.steps {
            // A kernel begins at the point before it; what it makes is there from the point that it ends at.
            let begins = match saved.get(step.tensor) {
                Some(saved) => Some(step.kernel.saturating_sub(1).max(saved.at())),
                None if residents.contains(&step.tensor) => {
                    profile.unused_from(ResidentIndex(step.tensor - saved.len()), step.kernel).checked_sub(1)
                }
                None => continue,
            };
            let (point, action) = match step.action {
                plan::Action::Move { to } => (begins, Action::to(to)),
                plan::Action::Drop => (Some(step.kernel), Action::Drop),
                plan::Action::Recompute { .. } => continue,
            };
            point.map_or(&mut begin, |point| &mut points[point]).push((step.tensor, action));
        }
        Self { begin, points }
    }

    /// What is done before the first point.
    pub fn at_begin(&self) -> &[(usize, Action)] {
        &self.begin
    }

    /// Bytes that each interval of the profile needs at once: of what was saved or stays, all that has not been let go of, or
    /// is used.
    pub(crate) fn needed_bytes(&self, profile: &Profile) -> Vec<u64> {
        let saved = profile.saved().iter().map(|saved| Some(saved.at()));
        // From which interval on a tensor is there.
        let mut since: Vec<Option<usize>> = saved.chain((0..profile.residents()).map(|_| Some(0))).collect();
        let mut here: Vec<Vec<Range<usize>>> = vec![Vec::new(); since.len()];
        let begin = self.begin.iter().map(|action| (0, action));
        let points = self.points.iter().enumerate();
        let later = points.flat_map(|(point, actions)| actions.iter().map(move |action| (point + 1, action)));
        for (interval, (tensor, action)) in begin.chain(later) {
            match action {
                Action::Fetch => drop(since[*tensor].get_or_insert(interval)),
                Action::Spill { .. } | Action::Drop => {
                    here[*tensor].extend(since[*tensor].take().map(|since| since..interval));
                }
            }
        }
        let mut needed: Vec<u64> = profile.other_bytes().collect();
        for (tensor, (since, mut ranges)) in since.into_iter().zip(here).enumerate() {
            let (bytes, used) = profile.use_of(tensor);
            let end = if tensor < profile.saved().len() {
                used.iter().max().map_or(0, |last| last + 1)
            } else {
                needed.len()
            };
            ranges.extend(since.map(|since| since..end));
            let is_here = |interval: &usize| ranges.iter().any(|range| range.contains(interval));
            let used = used.iter().copied().filter(|interval| !is_here(interval)).collect::<Vec<_>>();
            for interval in ranges.into_iter().flatten().chain(used) {
                needed.get_mut(interval).into_iter().for_each(|needed| *needed += bytes);
            }
        }
        needed
    }

    /// What is given up.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = SavedIndex> {
        let is_dropped = |(tensor, action): &(usize, Action)| (*action == Action::Drop).then_some(SavedIndex(*tensor));
        self.points.iter().flatten().filter_map(is_dropped)
    }

    /// What is done at a point.
    pub fn at(&self, point: usize) -> &[(usize, Action)] {
        self.points.get(point).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_need_what_was_saved_until_it_leaves_and_from_when_it_comes_back() {
        let mut profile = Profile::new();
        let first = profile.save(50, "first", 10);
        let second = profile.save(7, "second", 4);
        profile.need(9, second);
        profile.need(5, first);
        profile.end(0);
        let schedule = |actions: &[(usize, Action)]| {
            let mut points = vec![Vec::new(); 5];
            actions.iter().for_each(|(point, action)| points[*point].push((first.0, *action)));
            Schedule { begin: Vec::new(), points }
        };
        let spill = Action::Spill { link: 0 };
        assert_eq!(schedule(&[]).needed_bytes(&profile), [60, 21, 23, 19, 10]);
        assert_eq!(schedule(&[(1, spill), (2, Action::Fetch)]).needed_bytes(&profile), [60, 21, 13, 19, 10]);
        // What is given up is computed again where it is needed.
        assert_eq!(schedule(&[(1, Action::Drop)]).needed_bytes(&profile), [60, 21, 13, 9, 10]);
    }
}
