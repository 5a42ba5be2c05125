//! Training steps within a memory budget: of PyTorch's tensors, and of Tenure's.

mod state;
mod steps;
mod tensors;
mod torch;

use std::path::PathBuf;

use pyo3::PyResult;
use pyo3::prelude::PyErr;
use tenure::core::Device;
use tenure::offload::{Engine, Memory, OffloadError, Setup};
use tenure::plan::Planner;
use tenure::plan::planner::{self, Evolutionary, FlashNeuron, Scheduled};

use crate::errors::complaint;

pub(crate) use state::BudgetState;
pub(crate) use steps::{BudgetPhase, BudgetSteps};
pub(crate) use tensors::TensorBudget;
pub(crate) use torch::{Budget, PackedTensor};

/// The folders that a budget spills to, their capacity in bytes, and how many bytes may be written to them a day.
type SpillFolders = (Vec<PathBuf>, Option<u64>, Option<u64>);

/// Opens an engine for a device's memory, or for the host's. The engine keeps all saved tensors smaller than
/// `min_tensor_bytes`, by default [`Memory::min_tensor_bytes`], in memory.
fn open_engine(
    device: Device,
    spill: SpillFolders,
    pinned_bytes: Option<u64>,
    planner: Box<dyn Planner + Send + Sync>,
    min_tensor_bytes: Option<u64>,
) -> Result<Engine, String> {
    let (mut folders, disk_bytes, daily_bytes) = spill;
    let Some(memory) = Memory::of(device) else {
        return Err(format!("Tenure does not manage the memory of {device}"));
    };
    if folders.is_empty() && device.is_cpu() {
        folders.push(Setup::default_folder());
    }
    let min_tensor_bytes = min_tensor_bytes.unwrap_or_else(|| memory.min_tensor_bytes());
    let setup = Setup { folders, disk_bytes, daily_bytes, pinned_bytes, planner, min_tensor_bytes, ..Setup::default() };
    let engine = setup.engine(memory).map_err(|error| error.to_string())?;
    engine.set_strict();
    Ok(engine)
}

/// Returns CUDA device number `index`, or the CPU.
fn device_of(index: Option<u16>) -> Device {
    index.map_or(Device::CPU, |index| Device::cuda(index as _))
}

fn told(error: OffloadError) -> PyErr {
    complaint(error.to_string())
}

fn planner_of(name: &str) -> PyResult<Box<dyn Planner + Send + Sync>> {
    Ok(match name {
        "scheduled" => Box::new(Scheduled),
        "flashneuron" => Box::new(FlashNeuron),
        "evolutionary" => Box::new(Evolutionary::default()),
        "milp" => planner::milp().map_err(|error| {
            let install = "pip install --config-settings build-args=\"--features milp\" .";
            complaint(format!("planner='milp': {error}: `{install}` installs a package that has it"))
        })?,
        _ => {
            let names = "'scheduled', 'flashneuron', 'evolutionary' or 'milp'";
            return Err(complaint(format!("planner={name:?}: expected {names}")));
        }
    })
}
