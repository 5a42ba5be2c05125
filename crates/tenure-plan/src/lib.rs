//! What happened to a device's memory, as data, and what should live where.
//!
//! A [`Trace`] is everything one device's allocator did while a program ran: read from a PyTorch memory snapshot or
//! from Tenure's own compact format, checked once, and from then on known to make sense.
//!
//! A [`Problem`] is what a program computes with, and tiers of memory for it; a [`Rule`] makes a [`Placement`] of it. What
//! comes of a [`Plan`], in which tensors move and are computed again, [`simulate`] says. A [`Planner`] looks for the best, and
//! no plan surpasses [a bound](bound).
//!
//! The feature `milp`, which is on if nothing is said, is the planner that solves mixed-integer problems. Building it takes
//! cmake, a C++ compiler and libclang.
// But for the solver's callbacks, in `planner::milp::solver`.
#![cfg_attr(not(feature = "milp"), forbid(unsafe_code))]
#![deny(unsafe_code)]

pub mod bound;
mod file;
mod interner;
pub mod mapping;
pub mod packing;
mod pickle;
mod placement;
pub mod plan;
pub mod planner;
pub mod problem;
mod rule;
pub mod simulator;
mod trace;
mod uses;

pub use mapping::{Mapping, MappingError};
pub use placement::Placement;
pub use plan::{Plan, PlanError};
pub use planner::Planner;
pub use problem::{Problem, ProblemError};
pub use rule::Rule;
pub use simulator::simulate;
pub use trace::{
    Action, Annotation, Event, EventError, EventLabel, EventLabels, Format, Frame, LiveBlock, MemoryPool, ReadOptions,
    Settings, SizeClass, SizeClassSummary, Stacks, Summary, Trace, TraceError,
};
