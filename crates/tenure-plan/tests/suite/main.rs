//! Tests of traces, packing, problems, plans and planners.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bounds;
mod call_stacks;
mod common;
mod compact;
mod drawn;
mod files;
mod generate;
mod holders;
mod hostile;
mod labels;
mod large;
mod late_histories;
mod mappings;
#[cfg(feature = "milp")]
mod milp;
mod packing;
mod packing_csv;
mod packing_large;
mod packings;
mod planners;
mod problems;
mod simulator;
mod snapshots;
mod summary;
mod validation;
