//! The JSON messages between a server and its Python process. Tensors are in the frame's payload.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::message::Sizes;
use crate::repository::{PythonFunction, StoredModel};

/// An order of a server. Each order gets one answer with the same call number.
#[derive(Debug, Serialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum PythonOrder<'a> {
    /// Loads a module to learn how many bytes it has. With a device, it stays in host memory.
    Open { call: u64, model: u64, place: &'a ModuleSource },
    /// Loads a module into the memory that it is computed in; opens it first if it is not open. It must have `bytes`
    /// bytes.
    Load { call: u64, model: u64, place: &'a ModuleSource, bytes: u64 },
    /// Frees at least this many bytes of a module in the memory that it is computed in.
    Evict { call: u64, model: u64, bytes: u64 },
    /// Frees all of a module.
    Close { call: u64, model: u64 },
    /// Asks for a sign of life, which is [`PythonReport::Alive`] and no answer.
    Ask { call: u64 },
    /// Makes the batch that is computed, and those after it, yield the processors to other processes by their niceness.
    Yield { niceness: i32 },
    /// Makes later batches compute with the normal niceness again.
    Compete,
    /// Returns device memory that no module uses to the driver.
    Trim { call: u64 },
    /// Computes a batch, whose inputs are in the payload.
    Run { call: u64, model: u64, inputs: Vec<Sizes> },
}

/// The source of a module, and the names of its outputs.
#[derive(Debug, Serialize)]
pub(super) struct ModuleSource {
    folder: PathBuf,
    source: String,
    function: String,
    outputs: Vec<String>,
}

/// A report of a Python process.
#[derive(Debug, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum PythonReport {
    /// The process accepts orders.
    Ready,
    /// The process starts to compute a batch.
    Begun { call: u64 },
    /// A module is open and takes `bytes` bytes of the memory that it is computed in. All images take `host_bytes` of
    /// pinned memory.
    Opened { call: u64, bytes: u64, host_bytes: u64 },
    /// A module is in memory.
    Loaded { call: u64, seconds: f64, host_bytes: u64 },
    /// Memory is free. `resident_bytes` of the module are still there.
    Freed { call: u64, resident_bytes: u64, host_bytes: u64 },
    /// A batch is computed. `copy_seconds` of its time went to copying weights that were not there yet.
    Computed { call: u64, outputs: Vec<Sizes>, seconds: f64, copy_seconds: f64 },
    /// The model's code raised an error: it found too little memory, or another one.
    Failed { call: u64, reason: String, is_out_of_memory: bool },
    /// The process receives orders.
    Alive,
}

impl ModuleSource {
    pub(super) fn of(stored: &StoredModel, python: &PythonFunction) -> Self {
        Self {
            folder: stored.folder.clone(),
            source: python.source.clone(),
            function: python.function.clone(),
            outputs: stored.config.outputs.iter().map(|output| output.name.clone()).collect(),
        }
    }
}
