//! Tests of CUDA's libraries against the CPU in `f64`: on a simulated device, unless the environment asks for a real
//! one (`TENURE_TEST_DRIVER=cuda`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod conv;
mod matmul;
