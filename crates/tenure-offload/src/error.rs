use tenure_core::StorageError;
use tenure_device::DriverError;
use tenure_plan::planner::PlannerError;
use tenure_tier::{MoverError, TierError};

use crate::ProfileError;

/// Why a step does not keep to its budget. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// What was saved could not be moved.
    #[error(transparent)]
    Mover(Box<MoverError>),
    /// There is no disk to spill to where one was to be.
    #[error(transparent)]
    Disk(#[from] TierError),
    /// No plan keeps to the budget.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A step that is measured does not keep to it: the least that would do is not known yet.
    #[error(
        "a budget of {budget_bytes} bytes is too small: {held_bytes} are held {when} that cannot leave, and more is asked \
         for; take a smaller batch or a larger budget: one of \"100%\" measures two steps without a limit, and its \
         `least_bytes` says what would do"
    )]
    TooSmallSoFar {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
        /// Bytes that are held, when all that may leave has left.
        held_bytes: u64,
        /// The moment, in words.
        when: String,
    },
    /// What leaves finds too little room.
    #[error(
        "no plan keeps to a budget of {budget_bytes} bytes {when}: of {saved_bytes} bytes that are saved {rooms}, and too \
         little can be computed again; give it more room, or take a larger budget or a smaller batch"
    )]
    NoPlan {
        /// The budget that was asked for, in bytes.
        budget_bytes: u64,
        /// The interval that found none, in words.
        when: String,
        /// Bytes that are saved.
        saved_bytes: u64,
        /// Where they go, and how many, in words.
        rooms: String,
    },
    /// The planner failed.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// There is no memory for what comes back.
    #[error("{name} cannot come back: {source}")]
    Back {
        /// What was saved.
        name: String,
        /// Why.
        source: StorageError,
    },
    /// What was given up cannot be computed again.
    #[error("{name} cannot be computed again: {reason}")]
    Again {
        /// What was saved.
        name: String,
        /// Why.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The allocator refused.
    #[error("the budget's memory: {0}")]
    Memory(String),
}

impl From<MoverError> for OffloadError {
    fn from(error: MoverError) -> Self {
        Self::Mover(error.into())
    }
}
