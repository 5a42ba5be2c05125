//! Tests of features that only NVIDIA devices have; the suite of drivers tests what all devices do. Each test takes a
//! device for itself. It is skipped, with a message, if there is no device. A test that loses the context or needs a
//! second process runs as a child.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod capture;
mod common;
mod contexts;
mod errors;
mod fractions;
mod kernels;
mod libraries;
mod memory;
mod platform;
mod sharing;
