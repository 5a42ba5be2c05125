//! What a plan does at each point of a step.

use tenure_plan::plan::{self, Plan};

use crate::Profile;

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

/// What is done at each point: the work of the interval that begins there has not been asked for yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// By point: numbers of what was saved.
    points: Vec<Vec<(usize, Action)>>,
}

impl Schedule {
    /// Of a plan of the profile's problem. What is computed again is so where it is needed.
    pub fn of(profile: &Profile, plan: &Plan) -> Self {
        let mut points = vec![Vec::new(); profile.intervals()];
        for step in &plan.steps {
            let Some(saved) = profile.saved().get(step.tensor) else { continue };
            // A kernel begins at the point before it; what it makes is there from the point that it ends at.
            let begins = step.kernel.saturating_sub(1).max(saved.at());
            let (point, action) = match step.action {
                plan::Action::Move { to: 0 } => (begins, Action::Fetch),
                plan::Action::Move { to } => (begins, Action::Spill { link: to - 1 }),
                plan::Action::Drop => (step.kernel, Action::Drop),
                plan::Action::Recompute { .. } => continue,
            };
            points[point].push((step.tensor, action));
        }
        Self { points }
    }

    /// What is done at a point.
    pub fn at(&self, point: usize) -> &[(usize, Action)] {
        self.points.get(point).map_or(&[], Vec::as_slice)
    }
}
