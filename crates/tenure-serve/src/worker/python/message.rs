//! What a server and its process of Python say to each other, as JSON. Tensors are in the frame's payload.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::message::Sizes;
use crate::repository::{PythonFunction, StoredModel};

/// From a server. Each order has one answer, which has its call.
#[derive(Debug, Serialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order<'a> {
    Load { call: u64, model: u64, place: &'a Place },
    Evict { call: u64, model: u64 },
    Run { call: u64, model: u64, inputs: Vec<Sizes> },
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
    /// A module is in memory: so many bytes of it.
    Loaded { call: u64, bytes: u64, seconds: f64 },
    /// A module is not in memory any more.
    Evicted { call: u64 },
    /// A batch is computed.
    Computed { call: u64, outputs: Vec<Sizes>, seconds: f64 },
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
