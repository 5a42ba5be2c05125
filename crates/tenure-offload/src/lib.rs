//! Training inside a memory budget.
//!
//! What a forward pass saves for the backward pass is kept, spilled to slower memory, or given up and computed again. A
//! [`Profile`] is what a step saved and needed, when, and beside what; the [`Problem`](tenure_plan::Problem) that it
//! makes is planned by any planner, and a [`Schedule`] says what its plan does at each point of a step.
//!
//! Bytes and keys are all that is known here: whose tensors they are, a front end knows.
#![forbid(unsafe_code)]

mod profile;
mod schedule;

pub use profile::{Link, Machine, Profile, ProfileError, Recipe, Saved};
pub use schedule::{Action, Schedule};
