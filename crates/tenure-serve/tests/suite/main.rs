//! Tests of a server in one process; those of its workers are programs of their own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod drawn;
mod fake;
mod http;
mod http_fuzz;
mod loopback;
mod native;
mod properties;
mod protocol;
mod repository;
mod residency;
mod scheduler;
#[path = "../served/mod.rs"]
mod served;
mod simulation;
