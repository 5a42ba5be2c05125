//! Tests of the crate's public interface.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod allocator;
mod data_ptr;
mod error;
mod layout;
mod layout_limits;
mod layout_model;
mod storage;
mod tag;
mod user_files;
