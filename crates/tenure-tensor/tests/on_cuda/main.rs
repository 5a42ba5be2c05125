//! Tests of operations on CUDA against the CPU. The device is a simulated one, where the CPU computes instead of the
//! kernels, unless `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod attention_dropout;
#[path = "../common/mod.rs"]
mod common;
mod moved;
mod rows;
mod unsigned;
