//! What only NVIDIA devices do. The suite of drivers holds what all devices do. Each test takes a device for itself, and
//! is skipped, with a message, where there is none; what loses the context, or needs a second process, runs as a child.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod capture;
mod common;
mod contexts;
mod errors;
mod fractions;
mod kernels;
mod libraries;
mod memory;
mod peers;
mod platform;
mod sharing;
