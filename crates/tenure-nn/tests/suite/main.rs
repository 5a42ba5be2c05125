//! Tests of layers, models, optimizers, data and checkpoints, on the CPU, and some also on a CUDA device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod configs;
mod data;
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod init;
mod language_models;
mod layers;
mod models;
mod module;
mod optim;
mod sentence;
