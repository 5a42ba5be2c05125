//! Errors: why a step does not keep to its budget, or cannot be planned.

use tenure_core::{StorageError, Tag};
use tenure_device::DriverError;
use tenure_plan::planner::PlannerError;
use tenure_plan::problem::ProblemError;
use tenure_tier::{MoverError, TierError};

/// An error of a step that does not keep to its budget. Its message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// A saved tensor could not be moved.
    #[error(transparent)]
    Mover(Box<MoverError>),
    /// The disk to spill to cannot be used.
    #[error(transparent)]
    Disk(#[from] TierError),
    /// No plan keeps to the budget.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A step that is measured does not keep to the budget. The least budget that works is not known yet.
    #[error(
        "a budget of {budget_bytes} bytes is too small: {held_bytes} are held {when} that cannot leave, and more is asked \
         for; take a smaller batch or a larger budget{}", larger(*least_bytes)
    )]
    TooSmallSoFar {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
        /// The bytes that are held when all tensors that may leave have left.
        held_bytes: u64,
        /// The moment, in words.
        when: String,
        /// The least budget in bytes by the steps that were measured, if that is more than the budget.
        least_bytes: Option<u64>,
    },
    /// The daily limit of the disks' writes is too low to measure the disks.
    #[error(
        "spilling needs more: {daily_bytes} bytes may be written in a day, and measuring the disk takes more than that \
         before the first step; allow more"
    )]
    DailyLimit {
        /// The limit in bytes per day.
        daily_bytes: u64,
    },
    /// The tiers have too little room for the bytes that must leave.
    #[error(
        "no plan keeps to a budget of {budget_bytes} bytes {when}: of {saved_bytes} bytes that are saved {rooms}, and too \
         little can be computed again; give it more room, or take a larger budget or a smaller batch"
    )]
    NoPlan {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
        /// The interval that found no room, in words.
        when: String,
        /// The bytes that are saved.
        saved_bytes: u64,
        /// The tiers and the bytes that each takes, in words.
        rooms: String,
    },
    /// The planner failed.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// There is no memory for a tensor that comes back.
    #[error("{name} cannot come back: {source}")]
    Back {
        /// The name of the saved tensor.
        name: String,
        /// The reason.
        source: StorageError,
    },
    /// A dropped tensor cannot be recomputed.
    #[error("{name} cannot be computed again: {reason}")]
    Again {
        /// The name of the saved tensor.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The allocator refused.
    #[error("the budget's memory: {0}")]
    Memory(String),
}

/// Returns the words on which larger budget to take.
fn larger(least_bytes: Option<u64>) -> String {
    match least_bytes {
        Some(bytes) => format!(": the steps measured so far take at least {bytes}"),
        None => {
            ". None is known to work yet: run a few steps with a share, such as \"100%\", which has no limit until \
                 the optimizer has stepped twice, and take its `least_bytes`"
                .into()
        }
    }
}

impl From<MoverError> for OffloadError {
    fn from(error: MoverError) -> Self {
        Self::Mover(error.into())
    }
}

/// An error of a step that cannot be planned. Its message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The budget is too small, however much is spilled.
    #[error(
        "a budget of {budget_bytes} bytes is too small: it takes {least_bytes}, most of them {when} ({}); take a smaller \
         batch, or a budget of {}",
        needed.in_words(),
        least.in_words(*least_bytes)
    )]
    TooSmall {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
        /// The budget to take, in bytes.
        least_bytes: u64,
        /// How that budget was found.
        least: LeastBudget,
        /// The interval that needs the most, in words.
        when: String,
        /// The bytes of that interval, by purpose.
        needed: Needed,
    },
    /// The profile or the machine has times, bytes or bandwidths that no problem can have.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

/// How a larger budget was found, where one is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeastBudget {
    /// It is computed from a measured step: no plan works with less. Whether one works with it was not tried.
    Bound,
    /// As [`Bound`](Self::Bound), if there were more room to spill to.
    BoundWithRoom {
        /// The bytes of room that are missing, unless tensors are recomputed.
        missing_bytes: u64,
    },
    /// A step was run within it. A slightly smaller one may work.
    Tried,
    /// An estimate: a step was run within it while some bytes stayed unused, because the process's other memory differs
    /// from run to run. A smaller one may work.
    Estimate {
        /// The bytes that stayed unused.
        spare_bytes: u64,
    },
}

impl LeastBudget {
    fn in_words(self, bytes: u64) -> String {
        match self {
            Self::Bound => format!("at least {bytes}"),
            Self::BoundWithRoom { missing_bytes } => {
                format!("at least {bytes}, and room to spill {missing_bytes} bytes more to")
            }
            Self::Tried => format!("{bytes}, within which a step was run"),
            Self::Estimate { spare_bytes } => format!(
                "about {bytes}: this is an estimate, within which a step was run with {spare_bytes} bytes to spare, as the \
                 memory of the process differs from run to run"
            ),
        }
    }
}

/// The memory of an interval by purpose, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Memory that is never spilled, by tag, as far as front ends gave tags.
    pub known: Vec<(Tag, u64)>,
    /// Memory that is allocated throughout the step, `known` included.
    pub always_bytes: u64,
    /// All memory except saved tensors and residents, `known` and `always_bytes` included.
    pub other_bytes: u64,
    /// Saved tensors and residents that must be in memory in the interval.
    pub used_bytes: u64,
    /// Memory that is kept free, or reserved for bytes on their way.
    pub aside_bytes: u64,
}

impl Needed {
    /// Returns the parts in words, the largest first.
    fn in_words(&self) -> String {
        let known = self.known.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let unknown = self.always_bytes.saturating_sub(known);
        let mut parts: Vec<(u64, &str)> = self.known.iter().map(|(tag, bytes)| (*bytes, tag.name())).collect();
        parts.extend([
            (unknown, "what else is there all the time"),
            (self.other_bytes.saturating_sub(known.max(self.always_bytes)), "what is being computed"),
            (self.used_bytes, "what can be spilled but is used"),
            (self.aside_bytes, "what is set aside"),
        ]);
        parts.sort_unstable_by(|a, b| b.cmp(a));
        let words = parts.into_iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, name)| format!("{name} {bytes}"));
        words.collect::<Vec<_>>().join(", ")
    }
}
