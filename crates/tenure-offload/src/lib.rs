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

mod budget;
mod cache;
mod clock;
mod course;
mod engine;
mod error;
mod estimate;
mod flashneuron;
mod held;
mod identity;
mod inner;
mod ledger;
mod machine;
mod making;
mod measured;
mod memory;
mod notes;
mod peaks;
mod planning;
mod profile;
mod profiled;
mod reclaim;
mod recompute;
mod record;
mod report;
mod resident;
mod schedule;
mod setup;
mod signature;
mod step;
mod transfer;
mod unwatched;

pub use budget::{Budget, BudgetProgress, OpenBudget, ProcessMeter};
pub use engine::Engine;
pub use error::{LeastBudget, Needed, OffloadError, ProfileError};
pub use flashneuron::{FnMemory, FnMemoryError};
pub use held::SavedHandle;
pub use identity::{ResidentIndex, SavedIndex};
pub use inner::EngineOptions;
pub use machine::{Machine, SpillLink};
pub use memory::Memory;
pub use notes::{Fate, SavedRecord};
pub use profile::{Profile, ProfiledTensor, Recipe};
pub use recompute::{FindSaved, Recomputation, RecomputeInput, SavedBytesId};
pub use record::{StepRecord, StepRecorder, TierMoment};
pub use report::{Planning, StepReport};
pub use resident::Resident;
pub use schedule::{OffloadAction, Schedule};
pub use setup::Setup;
pub use signature::{Pass, Signature};
pub use step::OffloadStep;
