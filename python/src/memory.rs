//! Functions on this process's device memory, whether PyTorch's allocator shim or a caller of the C interface opened
//! it.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tenure::device::memory::DeviceMemory;
use tenure::report::MemoryReport;
use tenure::units::Amount;
use tenure_device::host::HostMemory;
use tenure_device::memory::{self, MAX_DEVICES};
use tenure_device::pinned::PinnedUse;

use crate::errors::{complaint, exception};
use crate::json;

/// Returns the numbers of the devices whose memory is open.
#[pyfunction]
pub(crate) fn installed() -> Vec<usize> {
    (0..MAX_DEVICES).filter(|&device| memory::installed(device).is_some()).collect()
}

/// Returns counters by PyTorch's names, and the bytes that the process holds outside the allocator's memory.
#[pyfunction]
pub(crate) fn memory_stats(py: Python<'_>, device: Opened) -> PyResult<Bound<'_, PyDict>> {
    let Opened(memory) = device;
    let (figures, overhead) =
        py.detach(|| (memory.allocator().statistics().flat(), memory.backing().known_overhead_bytes()));
    let stats = PyDict::new(py);
    figures.iter().try_for_each(|(name, figure)| stats.set_item(name, figure))?;
    // `None` where the system does not report it.
    stats.set_item("overhead_bytes", overhead)?;
    Ok(stats)
}

/// Returns the counters of the memory of tensors on the CPU, by PyTorch's names.
#[pyfunction]
pub(crate) fn host_memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let memory = HostMemory::installed().ok_or_else(|| complaint("the system gives no address space".into()))?;
    let figures = py.detach(|| memory.statistics().flat());
    let stats = PyDict::new(py);
    figures.iter().try_for_each(|(name, figure)| stats.set_item(name, figure))?;
    Ok(stats)
}

/// Resets every peak to the current value.
#[pyfunction]
pub(crate) fn reset_peak_stats(py: Python<'_>, device: Opened) -> PyResult<()> {
    let Opened(memory) = device;
    py.detach(|| memory.allocator().reset_peak_statistics());
    Ok(())
}

/// Returns a snapshot as a pickle of plain data.
#[pyfunction]
pub(crate) fn memory_snapshot(py: Python<'_>, device: Opened) -> PyResult<Bound<'_, PyBytes>> {
    let Opened(memory) = device;
    let mut pickle = Vec::new();
    py.detach(|| memory.allocator().snapshot().write_pickle(&mut pickle))?;
    Ok(PyBytes::new(py, &pickle))
}

/// Returns a report on memory by tag and module: an HTML page, or figures as JSON.
#[pyfunction]
pub(crate) fn memory_report(py: Python<'_>, device: Opened, title: String, as_json: bool) -> PyResult<String> {
    let Opened(memory) = device;
    py.detach(|| {
        let allocator = memory.allocator();
        let report = MemoryReport::new(title, &allocator.snapshot(), &allocator.statistics());
        let report = report.on_device(memory.device_use().map_err(exception)?).with_pinned(PinnedUse::of_process());
        if as_json { json(&report) } else { Ok(report.html()) }
    })
}

/// Gives cached memory back to the device.
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>, device: Opened) -> PyResult<()> {
    let Opened(memory) = device;
    py.detach(|| memory.allocator().release_cached()).map_err(exception)
}

/// Limits the fraction of the device's memory that this process may hold.
#[pyfunction]
pub(crate) fn set_memory_fraction(py: Python<'_>, device: Opened, fraction: f64) -> PyResult<()> {
    let Opened(memory) = device;
    py.detach(|| memory.allocator().set_memory_fraction(fraction)).map_err(exception)
}

/// The memory of a device. Python passes the device's number.
pub(crate) struct Opened(&'static DeviceMemory);

impl<'py> FromPyObject<'_, 'py> for Opened {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let device = number.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(number.py()) {
                complaint(format!("device {} does not exist: devices are numbered from 0", &*number))
            } else {
                error
            }
        })?;
        memory::installed(device).map(Self).ok_or_else(|| not_open(device))
    }
}

/// Returns the error that says why a device has no memory here, and how to get it.
pub(crate) fn not_open(device: usize) -> PyErr {
    complaint(if tenure_capi::torch::is_configured() {
        format!(
            "PyTorch has not used device {device} yet, so that it has no memory there: ask after its first tensor on \
             it, such as torch.empty(1, device=\"cuda:{device}\")"
        )
    } else {
        format!(
            "this process has no memory of Tenure's on device {device}: call tenure.torch.install() before the first \
             CUDA allocation, or open the device through the C interface"
        )
    })
}

/// Parses `text`, a budget given as the parameter `name`. Returns either bytes or a share in percent; the other is `None`.
#[pyfunction]
pub(crate) fn parse_amount(name: &str, text: &str) -> PyResult<(Option<u64>, Option<f64>)> {
    match Amount::of_budget(text) {
        Ok(Amount::Bytes(bytes)) => Ok((Some(bytes), None)),
        Ok(Amount::Percent(percent)) => Ok((None, Some(percent))),
        Err(error) => Err(complaint(format!("{name}={text:?}: {error}"))),
    }
}
