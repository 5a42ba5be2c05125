//! Layers, models and optimizers, on the CPU, and on a device where they say so.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod configs;
mod data;
mod init;
mod language_models;
mod layers;
mod models;
mod module;
mod optim;
mod purpose;
mod sentence;
