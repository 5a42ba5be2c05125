//! The profiles and plans of steps, by signature.

use std::collections::HashMap;
use std::sync::Arc;

use crate::course::Planned;
use crate::profiled::Profiled;

/// Events of all profiles together. One takes about a hundred bytes, with its share of the plan.
const MOST_EVENTS: usize = 1 << 20;

/// Remembers profiles and plans of the signatures that were used last. A program whose every step has another signature
/// fills no memory.
#[derive(Default)]
pub(crate) struct StepCache {
    steps: HashMap<u64, CachedStep>,
    events: usize,
    uses: u64,
}

struct CachedStep {
    profiled: Arc<Profiled>,
    planned: Option<Arc<Planned>>,
    used: u64,
}

impl StepCache {
    /// Returns what was measured of steps of a signature, and the plan of that, to be used now.
    pub(crate) fn take_up(&mut self, signature: u64) -> Option<(Arc<Profiled>, Option<Arc<Planned>>)> {
        self.uses += 1;
        let step = self.steps.get_mut(&signature)?;
        step.used = self.uses;
        Some((Arc::clone(&step.profiled), step.planned.clone()))
    }

    /// Returns what was measured of steps of a signature.
    pub(crate) fn profiled(&self, signature: u64) -> Option<&Arc<Profiled>> {
        self.steps.get(&signature).map(|step| &step.profiled)
    }

    /// Returns all that was measured.
    pub(crate) fn all_profiled(&self) -> impl Iterator<Item = &Profiled> {
        self.steps.values().map(|step| &*step.profiled)
    }

    /// Remembers what was measured of steps of a signature, and forgets what was known of them before.
    pub(crate) fn insert(&mut self, signature: u64, profiled: Arc<Profiled>) {
        self.remove(signature);
        self.uses += 1;
        self.events += profiled.events.len();
        self.steps.insert(signature, CachedStep { profiled, planned: None, used: self.uses });
        while self.events > MOST_EVENTS && self.steps.len() > 1 {
            let oldest = self.steps.iter().min_by_key(|(_, step)| step.used).map(|(signature, _)| *signature);
            oldest.into_iter().for_each(|oldest| self.remove(oldest));
        }
    }

    /// Remembers the plan of what was measured of a signature.
    pub(crate) fn insert_plan(&mut self, signature: u64, planned: Arc<Planned>) {
        if let Some(step) = self.steps.get_mut(&signature) {
            step.planned = Some(planned);
        }
    }

    /// Forgets a signature.
    pub(crate) fn remove(&mut self, signature: u64) {
        if let Some(step) = self.steps.remove(&signature) {
            self.events -= step.profiled.events.len();
        }
    }

    /// Forgets the plans of all signatures.
    pub(crate) fn clear_plans(&mut self) {
        self.steps.values_mut().for_each(|step| step.planned = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiled::Event;

    fn step_of(events: usize) -> Arc<Profiled> {
        Arc::new(Profiled { events: vec![Event::Operation; events], ..Profiled::default() })
    }

    #[test]
    fn the_signature_that_was_used_longest_ago_is_forgotten_first() {
        let mut cache = StepCache::default();
        (0..4).for_each(|signature| cache.insert(signature, step_of(MOST_EVENTS / 4)));
        cache.take_up(0);
        cache.insert(4, step_of(1));
        let known: Vec<u64> = (0..5).filter(|signature| cache.profiled(*signature).is_some()).collect();
        assert_eq!(known, [0, 2, 3, 4]);
        // What is larger than all of it is remembered alone.
        cache.insert(5, step_of(2 * MOST_EVENTS));
        assert_eq!((cache.all_profiled().count(), cache.events), (1, 2 * MOST_EVENTS));
    }

    #[test]
    fn any_number_of_signatures_takes_bounded_memory() {
        let mut cache = StepCache::default();
        (0..10_000).for_each(|signature| cache.insert(signature % 7000, step_of(500)));
        assert!(cache.events <= MOST_EVENTS && cache.steps.len() == MOST_EVENTS / 500);
    }
}
