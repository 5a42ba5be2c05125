//! The schedule of a step: a plan's spills, fetches and drops at each point.

use std::collections::VecDeque;
use std::ops::Range;

use tenure_plan::plan::{self, Plan};

use crate::identity::{ResidentIndex, SavedIndex};
use crate::profile::Profile;

/// An action on a saved tensor or a resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadAction {
    /// Begins to spill the tensor to a link's tier.
    Spill {
        /// The index of the link among the machine's links.
        link: usize,
    },
    /// Begins to fetch the tensor.
    Fetch,
    /// Drops the bytes, to be recomputed when they are needed.
    Drop,
}

impl OffloadAction {
    /// Returns the action that moves a tensor to a tier. Tier 0 is the budget's memory, and tier `n + 1` belongs to
    /// link `n`.
    fn to_tier(tier: usize) -> Self {
        tier.checked_sub(1).map_or(Self::Fetch, |link| Self::Spill { link })
    }
}

/// The actions of a plan at each point of a step. They are taken before the front end asks for the work of the interval
/// that begins at the point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// The actions before the first point, which move each resident to the tier where the step expects it.
    begin: Vec<(usize, OffloadAction)>,
    /// The actions by point. A tensor's number is that in the problem: saved tensors by index, then residents.
    points: Vec<Vec<(usize, OffloadAction)>>,
    /// The intervals before which dropped tensors are recomputed, each with a tensor. They are no actions: a dropped tensor
    /// is recomputed when it is needed, also to recompute another.
    recomputed: Vec<(usize, usize)>,
}

impl Schedule {
    /// Returns the schedule of a plan for the profile's problem.
    pub fn of(profile: &Profile, plan: &Plan) -> Self {
        let saved = profile.saved();
        let residents = saved.len()..saved.len() + profile.residents();
        let mut begin: Vec<_> =
            residents.clone().map(|tensor| (tensor, OffloadAction::to_tier(plan.places[tensor]))).collect();
        let mut points = vec![Vec::new(); profile.intervals()];
        let mut recomputed = Vec::new();
        for step in &plan.steps {
            // Kernel `n` is the interval that begins at point `n - 1`. Its outputs exist from point `n`, where it ends.
            let begins = match saved.get(step.tensor) {
                Some(saved) => Some(step.kernel.saturating_sub(1).max(saved.at())),
                None if residents.contains(&step.tensor) => {
                    profile.unused_from(ResidentIndex(step.tensor - saved.len()), step.kernel).checked_sub(1)
                }
                None => continue,
            };
            let (point, action) = match step.action {
                plan::PlanAction::Move { to } => (begins, OffloadAction::to_tier(to)),
                plan::PlanAction::Drop => (Some(step.kernel), OffloadAction::Drop),
                plan::PlanAction::Recompute { .. } => {
                    recomputed.push((step.kernel, step.tensor));
                    continue;
                }
            };
            point.map_or(&mut begin, |point| &mut points[point]).push((step.tensor, action));
        }
        recomputed.sort_unstable();
        Self { begin, points, recomputed }
    }

    /// Returns the actions before the first point.
    pub fn at_begin(&self) -> &[(usize, OffloadAction)] {
        &self.begin
    }

    /// Returns the bytes that each interval needs at once: its other bytes, and those of all saved tensors and
    /// residents that the schedule keeps in memory or that the interval uses.
    pub(crate) fn needed_bytes(&self, profile: &Profile) -> Vec<u64> {
        let saved = profile.saved().iter().map(|saved| Some(saved.at()));
        // The interval since which each tensor is in memory.
        let mut since: Vec<Option<usize>> = saved.chain((0..profile.residents()).map(|_| Some(0))).collect();
        // The ranges of intervals in which each tensor was in memory before.
        let mut in_memory: Vec<Vec<Range<usize>>> = vec![Vec::new(); since.len()];
        let begin = self.begin.iter().map(|(tensor, action)| (0, *tensor, Some(*action)));
        let points = self.points.iter().enumerate();
        let later = points.flat_map(|(point, actions)| {
            actions.iter().map(move |(tensor, action)| (point + 1, *tensor, Some(*action)))
        });
        let recomputed = self.recomputed.iter().map(|(interval, tensor)| (*interval, *tensor, None));
        let mut changes: Vec<_> = begin.chain(later).chain(recomputed).collect();
        changes.sort_by_key(|(interval, ..)| *interval);
        for (interval, tensor, action) in changes {
            match action {
                None | Some(OffloadAction::Fetch) => {
                    since[tensor].get_or_insert(interval);
                }
                Some(OffloadAction::Spill { .. } | OffloadAction::Drop) => {
                    in_memory[tensor].extend(since[tensor].take().map(|since| since..interval));
                }
            }
        }
        let mut needed: Vec<u64> = profile.other_bytes().collect();
        for (tensor, (since, mut ranges)) in since.into_iter().zip(in_memory).enumerate() {
            let (bytes, mut used) = profile.bytes_and_uses(tensor);
            let end = if tensor < profile.saved().len() {
                used.iter().max().map_or(0, |last| last + 1)
            } else {
                needed.len()
            };
            ranges.extend(since.map(|since| since..end));
            used.retain(|interval| !ranges.iter().any(|range| range.contains(interval)));
            for interval in ranges.into_iter().flatten().chain(used) {
                needed.get_mut(interval).into_iter().for_each(|needed| *needed += bytes);
            }
        }
        needed
    }

    /// Returns the bytes by which intermediate results of recomputed tensors exceed `room_bytes` at most, beside what each
    /// interval needs.
    pub(crate) fn lacking_bytes(&self, profile: &Profile, needed_bytes: &[u64], room_bytes: u64) -> u64 {
        let taken = self.recomputed.iter().filter_map(|(interval, tensor)| {
            Some(needed_bytes.get(*interval)? + profile.saved().get(*tensor)?.intermediate_bytes())
        });
        taken.max().unwrap_or(0).saturating_sub(room_bytes)
    }

    /// Returns those of the `saved` saved tensors that the schedule moves or drops.
    pub(crate) fn saved(&self, saved: usize) -> impl Iterator<Item = SavedIndex> {
        let actions = self.points.iter().flatten();
        actions.filter_map(move |(tensor, _)| (*tensor < saved).then_some(SavedIndex(*tensor)))
    }

    /// Returns the points at which sources of spills have to be released, so that no interval needs more than
    /// `room_bytes`: the engine does so at these points, for as many as an interval needs.
    pub(crate) fn releases(&self, profile: &Profile, needed_bytes: &[u64], room_bytes: u64) -> Vec<usize> {
        let mut releases = Vec::new();
        let mut spilling = VecDeque::new();
        let mut spilling_bytes = 0;
        for (point, actions) in self.points.iter().enumerate() {
            for (tensor, action) in actions {
                if matches!(action, OffloadAction::Spill { .. }) {
                    let (bytes, _) = profile.bytes_and_uses(*tensor);
                    spilling.push_back(bytes);
                    spilling_bytes += bytes;
                }
            }
            let needed = needed_bytes.get(point + 1).copied().unwrap_or(0);
            if needed + spilling_bytes > room_bytes && spilling_bytes > 0 {
                releases.push(point);
            }
            while needed + spilling_bytes > room_bytes
                && let Some(bytes) = spilling.pop_front()
            {
                spilling_bytes -= bytes;
            }
        }
        releases
    }

    /// Returns the saved tensors that the schedule drops.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = SavedIndex> {
        self.points
            .iter()
            .flatten()
            .filter_map(|(tensor, action)| (*action == OffloadAction::Drop).then_some(SavedIndex(*tensor)))
    }

    /// Returns the actions at a point.
    pub fn at(&self, point: usize) -> &[(usize, OffloadAction)] {
        self.points.get(point).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Recipe;

    #[test]
    fn intervals_need_what_was_saved_until_it_leaves_and_from_when_it_comes_back() {
        let mut profile = Profile::new();
        let first = profile.save(50, "first", 10);
        let second = profile.save(7, "second", 4);
        profile.need(9, second);
        profile.need(5, first);
        profile.end(0);
        let schedule = |actions: &[(usize, OffloadAction)]| {
            let mut points = vec![Vec::new(); 5];
            actions.iter().for_each(|(point, action)| points[*point].push((first.0, *action)));
            Schedule { begin: Vec::new(), points, recomputed: Vec::new() }
        };
        let spill = OffloadAction::Spill { link: 0 };
        assert_eq!(schedule(&[]).needed_bytes(&profile), [60, 21, 23, 19, 10]);
        assert_eq!(schedule(&[(1, spill), (2, OffloadAction::Fetch)]).needed_bytes(&profile), [60, 21, 13, 19, 10]);
        // A dropped tensor is recomputed where it is needed, or before, to recompute another.
        let mut dropped = schedule(&[(1, OffloadAction::Drop)]);
        assert_eq!(dropped.needed_bytes(&profile), [60, 21, 13, 9, 10]);
        dropped.recomputed = vec![(3, first.0)];
        let needed = dropped.needed_bytes(&profile);
        assert_eq!(needed, [60, 21, 13, 19, 10]);
        // Of three operations, two make intermediate results of the tensor's size.
        profile.saved_mut(first).recipe = Some(Recipe { inputs: Vec::new(), operations: 3, time_ns: 1 });
        assert_eq!([30, 40].map(|room| dropped.lacking_bytes(&profile, &needed, room)), [9, 0]);
    }
}
