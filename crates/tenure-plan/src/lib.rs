//! Memory traces, and plans that decide where tensors live.
//!
//! A [`Trace`] records everything that one device's allocator did while a program ran. It is read from a PyTorch memory
//! snapshot or from Tenure's own compact format, and is validated once.
//!
//! A [`Problem`] describes one iteration of a program and the tiers of memory for it; a [`Rule`] makes a
//! [`FixedPlacement`] for it. In a [`Plan`] tensors move and are recomputed; [`simulate`] computes the time and memory
//! that a plan takes.
//! A [`Planner`] searches for the best plan, and no plan surpasses [a bound](bound).
//!
//! ```
//! use tenure_plan::problem::generate::Family;
//! use tenure_plan::{Rule, simulate};
//!
//! let problem = Family::Transformer.fixed(1)?; // made up; `Problem::read` reads a file
//! let fast_bytes = problem.tiers()[0].capacity.expect("the fast tier is limited");
//! let placement = Rule::Density.place(&problem, fast_bytes);
//! let outcome = simulate(&problem, &placement.plan())?;
//! println!("{:.0} % of the accessed bytes are in the fast tier", 100.0 * outcome.score());
//! assert!(outcome.peak_bytes[0] <= fast_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The feature `milp`, off by default, adds the planner that solves mixed-integer problems. Building it takes cmake, a
//! C++ compiler and libclang.
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
// The exception is the solver's callbacks, in `planner::milp::solver`.
#![cfg_attr(not(feature = "milp"), forbid(unsafe_code))]
#![deny(unsafe_code)]

pub mod bound;
mod file;
pub mod mapping;
pub mod packing;
mod placement;
pub mod plan;
pub mod planner;
pub mod problem;
mod rule;
pub mod simulator;
mod trace;
mod uses;

pub use mapping::{Mapping, MappingError};
pub use placement::FixedPlacement;
pub use plan::{Plan, PlanError};
pub use planner::Planner;
pub use problem::{Problem, ProblemError};
pub use rule::Rule;
pub use simulator::simulate;
pub use trace::{
    Annotation, BlockState, EventError, EventLabel, EventLabels, Format, Holder, HolderModule, Holders, LiveBlock,
    MemoryPool, OutOfMemory, ReadOptions, SegmentCoverage, SegmentTotals, Settings, SizeClass, SizeClassSummary,
    SnapshotBlock, SnapshotSegment, StackFrame, Stacks, Summary, Trace, TraceAction, TraceError, TraceEvent,
};
