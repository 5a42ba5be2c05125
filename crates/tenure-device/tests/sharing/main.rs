//! Tests of memory shared between processes. [`deaths`] and [`blocks`] start and kill real processes; the other tests
//! need one process only, and drivers that can be made to fail.
//!
//! Tests that start processes run on the simulated driver, or with `TENURE_TEST_DRIVER=cuda` on the first NVIDIA
//! device. `TENURE_SHARING_ROUNDS` sets how many workers are started and killed to look for leaks.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod blocks;
mod cache;
mod chunks;
mod common;
mod daemon;
mod deaths;
mod faults;
mod pool;
mod process;
mod roles;
mod transfers;
mod wire;

/// The entry point of the other processes in these tests. Without a role it does nothing.
#[test]
fn worker() {
    if let Ok(role) = std::env::var(process::ROLE) {
        roles::play(&role);
    }
}
