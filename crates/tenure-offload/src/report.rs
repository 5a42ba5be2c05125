//! Reports: what became of a step, and the effort of its plan.

use std::fmt;
use std::time::Duration;

use tenure_tier::codec::Choice;

/// What became of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// The most that was allocated at once, if that was looked at: in steps that were measured.
    pub peak_bytes: Option<u64>,
    /// The same with what is kept for later allocations.
    pub reserved_bytes: Option<u64>,
    /// Bytes that went out.
    pub spilled_bytes: u64,
    /// Bytes that came back.
    pub fetched_bytes: u64,
    /// Bytes that were computed again.
    pub recomputed_bytes: u64,
    /// How long that takes, as measured when they were computed first.
    pub recomputed: Duration,
    /// How long the host waited for bytes to go or come.
    pub stalled: Duration,
    /// Moves that no plan asked for: there was no room otherwise.
    pub unplanned: u64,
    /// Whether it was made by a plan, to the end.
    pub is_planned: bool,
    /// How long the plan takes, by what was measured: on the device, without an update behind backward. None if there was none.
    pub predicted: Option<Duration>,
    /// By what bytes were encoded on their way to a disk; a lossy one changes what is computed.
    pub codec: Choice,
}

/// The effort of making a plan. Displayed as one line for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning {
    /// Operations of the step: the intervals of its profile.
    pub operations: usize,
    /// Plans that the planner tried.
    pub evaluations: u64,
    /// How long it took, from the profile to what is done at each operation.
    pub elapsed: Duration,
}

impl fmt::Display for Planning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, evaluations, elapsed } = self;
        write!(formatter, "planned a step of {operations} operations in {elapsed:.2?}: {evaluations} plans tried")
    }
}
