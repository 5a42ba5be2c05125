//! What a plan does at each point of a step.

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
