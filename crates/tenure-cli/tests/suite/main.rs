//! The program, as it is called.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod agent;
mod background;
mod bench;
mod embed;
mod export;
mod memory;
mod plan;
mod program;
mod serve;
mod train;
mod train_images;
