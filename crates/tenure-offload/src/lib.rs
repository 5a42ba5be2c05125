//! Training inside a memory budget.
//!
//! Each tensor that a forward pass saves for the backward pass is kept, spilled to slower memory, or dropped and
//! recomputed. A front end tells an [`Engine`] what its steps save and need. The engine measures a step, as a
//! [`Profile`]. A planner plans the [`Problem`](tenure_plan::Problem) that the profile makes, and later steps follow
//! the plan's [`Schedule`].
//!
//! This crate knows only bytes, streams and names. The front end knows the tensors that they belong to.
//!
//! ```
//! use tenure_core::Amount;
//! use tenure_offload::Budget;
//!
//! let budget: Budget = "50%".parse()?; // of what a step takes without one; or "24GiB"
//! let budget = budget.spill("/mnt/ssd").spill_bytes(64 << 30);
//! assert_eq!(budget.amount(), Amount::Percent(50.0)); // `Trainer::within` of tenure-nn takes it
//! # Ok::<(), tenure_core::AmountError>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]

mod align;
mod budget;
mod cache;
mod clock;
mod course;
mod engine;
mod error;
mod estimate;
mod flashneuron;
mod identity;
mod inner;
mod layout;
mod ledger;
mod machine;
mod measured;
mod pace;
mod paced;
mod place;
mod planning;
mod profile;
mod profiled;
mod reclaim;
mod record;
mod report;
mod resident;
mod schedule;
mod state;
mod step;
mod transfer;

pub use budget::{Budget, BudgetProgress, OpenBudget, ProcessMeter, Setup};
pub use engine::Engine;
pub use error::{LeastBudget, Needed, OffloadError, ProfileError};
pub use flashneuron::{FnMemory, FnMemoryError};
pub use identity::{Pass, ResidentIndex, SavedIndex, Signature};
pub use inner::EngineOptions;
pub use machine::{Machine, Memory, SpillLink};
pub use pace::{PacedFrontEnd, Position, StatePart, Watched};
pub use place::{KnownBytes, Recomputation, RecomputeInput, SavedBytesId, SavedHandle};
pub use profile::{Profile, ProfiledTensor, Recipe};
pub use record::{StepRecord, StepRecorder, TierMoment};
pub use report::{Fate, Planning, SavedRecord, StepReport};
pub use resident::Resident;
pub use schedule::{OffloadAction, Schedule};
pub use step::OffloadStep;
