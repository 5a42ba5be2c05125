//! Tests of drivers. [`drivers`] tests the behaviour that all drivers share, and [`backing`] that of an allocator's
//! backing; most others test the simulated driver alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod activities;
mod backing;
mod checks;
mod collectives;
mod common;
mod costs;
mod drivers;
mod events;
mod functions;
mod gone_streams;
mod graphs;
mod host;
mod launches;
mod memory;
mod opened;
mod peers;
mod pinned;
mod platform;
mod preemption;
mod processes;
mod races;
mod schedule;
mod shared;
mod signals;
mod streams;
mod zero_copy;
