//! Memory of this process on its devices, whoever opened it: PyTorch's allocator shim or a caller of the C interface.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tenure::prelude::*;
use tenure::report::DeviceUse;
use tenure_device::memory::{self, MAX_DEVICES};

use crate::errors::{complaint, exception};
use crate::json;

/// The numbers of the devices whose memory is open.
#[pyfunction]
pub(crate) fn installed() -> Vec<usize> {
    (0..MAX_DEVICES).filter(|&device| memory::installed(device).is_some()).collect()
}

/// Counters by PyTorch's names, and what the process holds beside the allocator's memory.
#[pyfunction]
pub(crate) fn memory_stats(py: Python<'_>, device: usize) -> PyResult<Bound<'_, PyDict>> {
    let memory = opened(device)?;
    let (figures, overhead) =
        py.detach(|| (memory.allocator().statistics().flat(), memory.backing().known_overhead_bytes()));
    let stats = PyDict::new(py);
    figures.iter().try_for_each(|(name, figure)| stats.set_item(name, figure))?;
    // None where the system does not tell.
    stats.set_item("overhead_bytes", overhead)?;
    Ok(stats)
}

/// Starts every peak again from the current value.
#[pyfunction]
pub(crate) fn reset_peak_stats(py: Python<'_>, device: usize) -> PyResult<()> {
    let memory = opened(device)?;
    py.detach(|| memory.allocator().reset_peak_statistics());
    Ok(())
}

/// A pickle of plain data.
#[pyfunction]
pub(crate) fn memory_snapshot(py: Python<'_>, device: usize) -> PyResult<Bound<'_, PyBytes>> {
    let memory = opened(device)?;
    let mut pickle = Vec::new();
    py.detach(|| memory.allocator().snapshot().write_pickle(&mut pickle))?;
    Ok(PyBytes::new(py, &pickle))
}

/// What memory is for, by tag and module: a page, or figures as JSON.
#[pyfunction]
pub(crate) fn memory_report(py: Python<'_>, device: usize, title: String, as_json: bool) -> PyResult<String> {
    let memory = opened(device)?;
    py.detach(|| {
        let allocator = memory.allocator();
        let report = MemoryReport::new(title, &allocator.snapshot(), &allocator.statistics());
        let device = memory.backing().memory_info().map_err(|error| exception(AllocError::from(error)))?;
        let report = report.on_device(DeviceUse { total_bytes: device.total, free_bytes: device.free });
        if as_json { json(&report) } else { Ok(report.html()) }
    })
}

/// Gives cached memory back to the device.
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>, device: usize) -> PyResult<()> {
    let memory = opened(device)?;
    py.detach(|| memory.allocator().release_cached()).map_err(exception)
}

/// Limits what this process may hold.
#[pyfunction]
pub(crate) fn set_memory_fraction(py: Python<'_>, device: usize, fraction: f64) -> PyResult<()> {
    let memory = opened(device)?;
    py.detach(|| memory.allocator().set_memory_fraction(fraction)).map_err(exception)
}

fn opened(device: usize) -> PyResult<&'static DeviceMemory> {
    memory::installed(device).ok_or_else(|| {
        complaint(format!(
            "this process has no memory of Tenure's on device {device}: call tenure.torch.install() before the first \
             CUDA allocation, or open the device through the C interface"
        ))
    })
}
