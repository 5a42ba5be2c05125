//! The cache of steps: profiles and plans by signature, and estimates by kind and size for sizes that were not
//! measured.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::course::Planned;
use crate::estimate::{estimated, least_of_part, part_of};
use crate::identity::Signature;
use crate::profiled::Profiled;

/// The most events of all profiles together. One takes about a hundred bytes, with its share of the plan.
const MOST_EVENTS: usize = 1 << 20;

/// The most signatures that are remembered because no estimate works for them.
const MOST_UNLIKE: usize = 1 << 16;

/// A cache of the profiles and plans of the most recent steps. It stays bounded even if every step has another size.
#[derive(Default)]
pub(crate) struct StepCache {
    steps: HashMap<StepKey, CachedStep>,
    /// The events of all profiles together.
    events: usize,
    /// The number of additions and look-ups so far.
    uses: u64,
    /// Signatures of steps that differed from their estimate.
    unlike: HashSet<u64>,
    /// The bytes of the program's state in memory: see [`Engine::set_state_bytes`](crate::Engine::set_state_bytes).
    state_bytes: u64,
}

/// Identifies steps that share a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepKey {
    /// Measured steps, by signature.
    Measured(u64),
    /// Estimated steps, by kind and by a [part](part_of) of all sizes.
    Estimated(u64, u32),
}

struct CachedStep {
    signature: Signature,
    profiled: Arc<Profiled>,
    planned: Option<Arc<Planned>>,
    /// Whether the profile or the spare bytes have changed since the plan was made.
    is_outdated: bool,
    /// The value of [`StepCache::uses`] at the last use.
    used: u64,
}

impl CachedStep {
    /// Returns whether the step was measured, is of a kind, and began with at least `allocated_bytes` allocated, so
    /// that it can serve to estimate steps of other sizes.
    fn can_be_scaled(&self, kind: u64, allocated_bytes: u64) -> bool {
        let Signature { kind: own_kind, input_bytes, .. } = self.signature;
        let profiled = &self.profiled;
        own_kind == kind && input_bytes > 0 && !profiled.is_estimate && profiled.allocated_bytes >= allocated_bytes
    }
}

/// The profile of steps with a signature, and their plan if one was made.
#[derive(Clone)]
pub(crate) struct CachedPlan {
    /// The key in the cache.
    pub(crate) key: StepKey,
    pub(crate) profiled: Arc<Profiled>,
    /// The plan, if one was made.
    pub(crate) planned: Option<Arc<Planned>>,
    /// Whether the profile or the spare bytes have changed since the plan was made.
    pub(crate) is_outdated: bool,
}

impl StepCache {
    /// Returns the profile and plan of steps with a signature, and marks them as used now. Without a measurement,
    /// estimates the profile from steps of the same kind that began with at least `allocated_bytes` allocated.
    pub(crate) fn look_up(&mut self, signature: Signature, allocated_bytes: u64) -> Option<CachedPlan> {
        self.uses += 1;
        let key = self.key_of(signature).or_else(|| self.estimate(signature, allocated_bytes))?;
        let step = self.steps.get_mut(&key)?;
        step.used = self.uses;
        let profiled = Arc::clone(&step.profiled);
        let planned = step.planned.clone();
        let is_outdated = step.is_outdated;
        Some(CachedPlan { key, profiled, planned, is_outdated })
    }

    /// Returns the profile of steps with a signature, measured or else estimated.
    pub(crate) fn profiled(&self, signature: Signature) -> Option<&Arc<Profiled>> {
        Some(&self.steps.get(&self.key_of(signature)?)?.profiled)
    }

    /// Returns whether another plan is to be made for steps with a signature.
    pub(crate) fn is_outdated(&self, signature: Signature) -> bool {
        self.key_of(signature).and_then(|key| self.steps.get(&key)).is_some_and(|step| step.is_outdated)
    }

    /// Returns the measured profile of steps with a signature.
    pub(crate) fn measured(&self, signature: Signature) -> Option<&Profiled> {
        self.steps.get(&StepKey::Measured(signature.id)).map(|step| &*step.profiled)
    }

    /// Returns all measured profiles.
    pub(crate) fn all_measured(&self) -> impl Iterator<Item = &Profiled> {
        let measured = self.steps.iter().filter(|(key, _)| matches!(key, StepKey::Measured(_)));
        measured.map(|(_, step)| &*step.profiled)
    }

    /// Adds the measured profile of steps with a signature. Replaces their former profile and plan, and removes all
    /// estimates of their kind.
    pub(crate) fn insert(&mut self, signature: Signature, profiled: Arc<Profiled>) {
        let kind = signature.kind;
        let estimates = self.steps.keys().filter(|key| matches!(key, StepKey::Estimated(of, _) if *of == kind));
        estimates.copied().collect::<Vec<_>>().into_iter().for_each(|key| self.remove(key));
        self.add(StepKey::Measured(signature.id), signature, profiled);
    }

    /// Replaces the profile of measured steps with a signature by a better one. If it differs much, their plan becomes
    /// outdated.
    pub(crate) fn update(&mut self, signature: Signature, profiled: Arc<Profiled>, is_outdated: bool) {
        if let Some(step) = self.steps.get_mut(&StepKey::Measured(signature.id)) {
            step.profiled = profiled;
            step.is_outdated |= is_outdated;
        }
    }

    /// Adds the plan of a step, if the step still has the profile that was planned.
    pub(crate) fn insert_plan(&mut self, key: StepKey, profiled: &Arc<Profiled>, planned: Arc<Planned>) {
        if let Some(step) = self.steps.get_mut(&key).filter(|step| Arc::ptr_eq(&step.profiled, profiled)) {
            (step.planned, step.is_outdated) = (Some(planned), false);
        }
    }

    /// Marks all plans as outdated.
    pub(crate) fn outdate_plans(&mut self) {
        self.steps.values_mut().for_each(|step| step.is_outdated = true);
    }

    /// Removes the profile and plan of steps with a signature, because one did something else. If they were estimated,
    /// they are not estimated again.
    pub(crate) fn remove_unlike(&mut self, signature: Signature) {
        let measured = StepKey::Measured(signature.id);
        if self.steps.contains_key(&measured) {
            return self.remove(measured);
        }
        if self.unlike.len() == MOST_UNLIKE {
            self.unlike.clear();
        }
        self.unlike.insert(signature.id);
    }

    /// Returns the bytes of the program's state in memory.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Changes all profiles to those of steps with so many bytes of the program's state in memory.
    pub(crate) fn set_state_bytes(&mut self, bytes: u64) {
        self.state_bytes = bytes;
        for step in self.steps.values_mut().filter(|step| step.profiled.state_bytes != bytes) {
            step.profiled = Arc::new(step.profiled.with_state(bytes));
            step.planned = None;
        }
    }

    /// Removes the plans of all steps.
    pub(crate) fn clear_plans(&mut self) {
        self.steps.values_mut().for_each(|step| step.planned = None);
    }

    /// Returns the key under which steps with a signature are cached, if they are.
    fn key_of(&self, signature: Signature) -> Option<StepKey> {
        let may_estimate = signature.input_bytes > 0 && !self.unlike.contains(&signature.id);
        let keys = [
            Some(StepKey::Measured(signature.id)),
            may_estimate.then(|| StepKey::Estimated(signature.kind, part_of(signature.input_bytes))),
        ];
        keys.into_iter().flatten().find(|key| self.steps.contains_key(key))
    }

    /// Estimates a step and adds the estimate to the cache. All sizes of a [part](part_of) share it, so it is of the
    /// largest.
    fn estimate(&mut self, signature: Signature, allocated_bytes: u64) -> Option<StepKey> {
        let Signature { id, kind, input_bytes } = signature;
        if input_bytes == 0 || self.unlike.contains(&id) {
            return None;
        }
        let part = part_of(input_bytes);
        let largest_bytes = least_of_part(part + 1) - 1;
        let measured = self.steps.values().filter(|step| step.can_be_scaled(kind, allocated_bytes));
        let measured: Vec<_> = measured.map(|step| (step.signature.input_bytes, &*step.profiled)).collect();
        let profiled = estimated(&measured, largest_bytes)?;
        let key = StepKey::Estimated(kind, part);
        self.add(key, signature, Arc::new(profiled));
        Some(key)
    }

    fn add(&mut self, key: StepKey, signature: Signature, mut profiled: Arc<Profiled>) {
        self.remove(key);
        if profiled.state_bytes != self.state_bytes {
            profiled = Arc::new(profiled.with_state(self.state_bytes));
        }
        self.uses += 1;
        self.events += profiled.events.len();
        self.steps.insert(key, CachedStep { signature, profiled, planned: None, is_outdated: false, used: self.uses });
        while self.events > MOST_EVENTS && self.steps.len() > 1 {
            let oldest = self.steps.iter().min_by_key(|(_, step)| step.used).map(|(key, _)| *key);
            oldest.into_iter().for_each(|oldest| self.remove(oldest));
        }
    }

    fn remove(&mut self, key: StepKey) {
        if let Some(step) = self.steps.remove(&key) {
            self.events -= step.profiled.events.len();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::profiled::StepEvent;

    fn step_of(events: usize) -> Arc<Profiled> {
        Arc::new(Profiled { events: vec![StepEvent::Operation; events], ..Profiled::default() })
    }

    #[test]
    fn the_signature_that_was_used_longest_ago_is_forgotten_first() {
        let mut cache = StepCache::default();
        (0..4).for_each(|signature: u64| cache.insert(signature.into(), step_of(MOST_EVENTS / 4)));
        cache.look_up(0.into(), 0);
        cache.insert(4.into(), step_of(1));
        let known: Vec<u64> = (0..5).filter(|signature| cache.measured((*signature).into()).is_some()).collect();
        assert_eq!(known, [0, 2, 3, 4]);
        // A profile that alone exceeds the limit is the only one that stays.
        cache.insert(5.into(), step_of(2 * MOST_EVENTS));
        assert_eq!((cache.all_measured().count(), cache.events), (1, 2 * MOST_EVENTS));
    }

    #[test]
    fn a_plan_goes_on_until_there_is_one_of_what_is_known_since() {
        let mut cache = StepCache::default();
        let first = step_of(1);
        let timed = step_of(1);
        let known = |cache: &mut StepCache| {
            let known = cache.look_up(1.into(), 0).unwrap();
            (known.planned.map(|planned| planned.needed_bytes.len()), known.is_outdated)
        };
        let plan = |needed| Arc::new(Planned { needed_bytes: vec![0; needed], ..Planned::default() });
        cache.insert(1.into(), Arc::clone(&first));
        assert_eq!(known(&mut cache), (None, false));
        cache.insert_plan(StepKey::Measured(1), &first, plan(1));
        cache.update(1.into(), Arc::clone(&timed), true);
        assert_eq!(known(&mut cache), (Some(1), true));
        // The plan was begun before the step was timed.
        cache.insert_plan(StepKey::Measured(1), &first, plan(2));
        assert_eq!(known(&mut cache), (Some(1), true));
        cache.insert_plan(StepKey::Measured(1), &timed, plan(3));
        assert_eq!(known(&mut cache), (Some(3), false));
        cache.outdate_plans();
        assert_eq!(known(&mut cache), (Some(3), true));
    }

    #[test]
    fn any_number_of_signatures_takes_bounded_memory() {
        let mut cache = StepCache::default();
        (0..10_000).for_each(|signature: u64| cache.insert((signature % 7000).into(), step_of(500)));
        assert!(cache.events <= MOST_EVENTS && cache.steps.len() == MOST_EVENTS / 500);
    }

    #[test]
    fn sizes_near_each_other_have_one_estimate_until_another_is_measured() {
        let mut cache = StepCache::default();
        let step = |id, input_bytes| Signature { id, kind: 1, input_bytes };
        [(1, 1000), (2, 2000)].into_iter().for_each(|(id, bytes)| cache.insert(step(id, bytes), step_of(3)));
        let CachedPlan { key, profiled, .. } = cache.look_up(step(3, 1500), 0).unwrap();
        assert!(profiled.is_estimate && matches!(key, StepKey::Estimated(1, _)));
        assert_eq!(cache.look_up(step(4, 1501), 0).unwrap().key, key);
        assert_ne!(cache.look_up(step(5, 1900), 0).unwrap().key, key);
        // Nothing is known of another kind, of an unknown size, with more bytes allocated, or of a much larger size.
        assert!(cache.look_up(Signature { kind: 2, ..step(6, 1500) }, 0).is_none());
        assert!(cache.look_up(step(6, 0), 0).is_none() && cache.look_up(step(6, 4000), 0).is_none());
        assert!(cache.look_up(step(6, 1200), 1).is_none());
        // A signature whose step did something else is measured.
        cache.remove_unlike(step(3, 1500));
        assert!(cache.look_up(step(3, 1500), 0).is_none() && cache.look_up(step(4, 1501), 0).is_some());
        cache.insert(step(3, 1500), step_of(3));
        assert_eq!(cache.steps.len(), 3);
        assert_eq!(cache.look_up(step(3, 1500), 0).unwrap().key, StepKey::Measured(3));
    }
}
