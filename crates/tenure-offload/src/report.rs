//! Reports of a step's peak, moves and stalls, and of the effort of its plan.

use std::fmt;
use std::time::Duration;

use tenure_tier::codec::Choice;

/// The report of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// The most bytes that were allocated at once. None unless the step was measured.
    pub peak_bytes: Option<u64>,
    /// The most bytes at once that were allocated or cached for later allocations. None unless the step was measured.
    pub reserved_bytes: Option<u64>,
    /// The bytes that were spilled.
    pub spilled_bytes: u64,
    /// The bytes that were fetched.
    pub fetched_bytes: u64,
    /// The bytes that were recomputed.
    pub recomputed_bytes: u64,
    /// The time to recompute them, as measured when they were computed first.
    pub recomputed: Duration,
    /// The time that the host waited for bytes to leave or arrive.
    pub stalled: Duration,
    /// The number of spills that no plan asked for, because there was no room otherwise.
    pub unplanned: u64,
    /// Whether the step followed a plan to its end.
    pub is_planned: bool,
    /// The predicted time of the plan, by what was measured: on the device, without an update after backward. None if
    /// there was no plan.
    pub predicted: Option<Duration>,
    /// The codec for bytes on their way to a disk. A lossy one changes the results.
    pub codec: Choice,
}

/// The effort of making a plan. Displayed as one line for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning {
    /// The number of operations of the step: the intervals of its profile.
    pub operations: usize,
    /// The number of plans that the planner tried.
    pub evaluations: u64,
    /// The time from the profile to the actions at each operation.
    pub elapsed: Duration,
}

impl fmt::Display for Planning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, evaluations, elapsed } = self;
        write!(formatter, "planned a step of {operations} operations in {elapsed:.2?}: {evaluations} plans tried")
    }
}
