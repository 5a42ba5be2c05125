//! Tests of the allocators and their adaptors, on a backing that panics on every misuse.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adaptors;
mod arena;
mod bump;
mod common;
mod cycles;
mod donated;
mod forecast;
mod history;
mod history_properties;
mod native;
mod paged;
mod pools;
mod properties;
mod snapshot;
mod tags;
