//! Tests of the library.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../tenure-alloc/tests/suite/common/mod.rs"]
mod backing;
mod bench;
mod common;
mod layering;
mod memory_report;
mod replay;
mod replay_on_device;
mod report;
mod streams;
mod tensorboard;
