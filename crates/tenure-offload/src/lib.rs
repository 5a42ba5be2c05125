//! Training inside a memory budget.
//!
//! What a forward pass saves for the backward pass is kept, spilled to slower memory, or given up and computed again. An
//! [`Engine`] is told what is saved and needed. It measures a step, as a [`Profile`]; the
//! [`Problem`](tenure_plan::Problem) that this makes is planned by any planner, and later steps follow the plan's
//! [`Schedule`].
//!
//! Bytes, streams and names are all that is known here: whose tensors they are, a front end knows.

mod budget;
mod clock;
mod engine;
mod error;
mod flashneuron;
mod held;
mod machine;
mod memory;
mod moves;
mod peaks;
mod profile;
mod reclaim;
mod recompute;
mod record;
mod resident;
mod schedule;
mod setup;
mod step;
mod unwatched;

pub use budget::{Budget, BudgetProgress, OpenBudget, ProcessMemory};
pub use engine::{Engine, Options};
pub use error::OffloadError;
pub use flashneuron::{FnMemory, FnMemoryError};
pub use held::Saved;
pub use machine::{Link, Machine};
pub use memory::Memory;
pub use profile::{Needed, Profile, ProfileError, Recipe, Saved as ProfiledTensor};
pub use recompute::{Find, Id, Input, Recompute};
pub use record::{Fate, SavedRecord, StepRecord, StepRecorder, TierMoment};
pub use resident::Resident;
pub use schedule::{Action, Schedule};
pub use setup::Setup;
pub use step::{Pass, Planning, Signature, Step, StepReport};
