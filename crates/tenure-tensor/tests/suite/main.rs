//! Tests of operations on the CPU. Tests that change the state of the process are in programs of their own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod accuracy;
mod algebra;
mod conv;
mod create;
mod elementwise;
mod errors;
mod format;
mod hostile;
mod linalg;
mod observe;
mod pool;
mod products;
mod reduce;
mod scatter;
mod search;
mod shape;
mod table;
mod unsigned;
mod views;
