//! Operations on the CPU. What changes the state of a process is tested in programs of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod accuracy;
mod attention;
mod conv;
mod create;
mod elementwise;
mod errors;
mod format;
mod hostile;
mod matmul;
mod pool;
mod reduce;
mod scatter;
mod shape;
mod views;
