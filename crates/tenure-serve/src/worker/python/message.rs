//! What a server and its process of Python say to each other, as JSON. Tensors are in the frame's payload.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::message::Sizes;
use crate::repository::{PythonFunction, StoredModel};

/// From a server. Each order has one answer, which has its call.
#[derive(Debug, Serialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order<'a> {
    /// Loads a module to see how many bytes it has. On a device it stays in the host's memory.
    Open {
        call: u64,
        model: u64,
        place: &'a Place,
    },
    /// Brings a module to the memory that it is computed in, and loads it before if it is not open. It must have so many bytes.
    Load {
        call: u64,
        model: u64,
        place: &'a Place,
        bytes: u64,
    },
    /// Frees so many bytes there, or more.
    Evict {
        call: u64,
        model: u64,
        bytes: u64,
    },
    /// Frees all of a module.
    Close {
        call: u64,
        model: u64,
    },
    /// Gives the device's memory that no module has back to the driver.
    Trim {
        call: u64,
    },
    Run {
        call: u64,
        model: u64,
        inputs: Vec<Sizes>,
    },
}

/// Where a module comes from, and what its outputs are called.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    folder: PathBuf,
    source: String,
    function: String,
    outputs: Vec<String>,
}

/// From a process of Python.
#[derive(Debug, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// It takes orders.
    Ready,
    /// A batch is computed from now on.
    Begun { call: u64 },
    /// A module takes so many bytes of the memory that it is computed in. All images take `host_bytes` of pinned memory.
    Opened { call: u64, bytes: u64, host_bytes: u64 },
    /// A module is in memory.
    Loaded { call: u64, seconds: f64, host_bytes: u64 },
    /// Memory is free. So many bytes of the module are still there.
    Freed { call: u64, resident_bytes: u64, host_bytes: u64 },
    /// A batch is computed. For a part of the time, weights were copied that had not come yet.
    Computed { call: u64, outputs: Vec<Sizes>, seconds: f64, copy_seconds: f64 },
    /// The code of the model raised an error.
    Failed { call: u64, reason: String },
}

impl Place {
    pub(super) fn of(stored: &StoredModel, python: &PythonFunction) -> Self {
        Self {
            folder: stored.folder.clone(),
            source: python.source.clone(),
            function: python.function.clone(),
            outputs: stored.config.outputs.iter().map(|output| output.name.clone()).collect(),
        }
    }
}
