//! Profiles of operations, for `tenure.profiler`.

use parking_lot::Mutex;
use std::time::Duration;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::prelude::*;
use serde_json::json;
use tenure::tensor::profile::{Profile, Profiler, ProfilerOptions, SortBy, SpanKind, TableOptions};
use tenure_device::Clock;

use crate::errors::complaint;
use crate::json;

/// A running profiler.
#[pyclass(frozen, name = "Profiler", module = "tenure._native")]
pub(crate) struct ProfilerObject(Mutex<Option<Profiler>>);

/// Starts to record.
#[pyfunction]
pub(crate) fn start_profiler(
    py: Python<'_>,
    record_host: bool,
    record_devices: bool,
    record_shapes: bool,
    profile_memory: bool,
    max_events: usize,
) -> PyResult<ProfilerObject> {
    let clock = Clock::default();
    let options = ProfilerOptions { record_host, record_devices, record_shapes, profile_memory, max_events, clock };
    let profiler = py.detach(|| Profiler::start(options));
    let profiler = profiler.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(ProfilerObject(Mutex::new(Some(profiler))))
}

#[pymethods]
impl ProfilerObject {
    /// Stops recording, and returns the profile.
    fn stop(&self, py: Python<'_>) -> PyResult<ProfileObject> {
        let profiler = self.0.lock().take();
        let profiler = profiler.ok_or_else(|| PyRuntimeError::new_err("the profiler was stopped already"))?;
        Ok(ProfileObject(py.detach(|| profiler.stop())))
    }
}

/// A recorded profile.
#[pyclass(frozen, name = "Profile", module = "tenure._native")]
pub(crate) struct ProfileObject(Profile);

#[pymethods]
impl ProfileObject {
    /// Returns the Chrome trace, as JSON.
    fn chrome_trace(&self, py: Python<'_>) -> PyResult<String> {
        let mut bytes = Vec::new();
        py.detach(|| self.0.chrome_trace(&mut bytes))?;
        String::from_utf8(bytes).map_err(|error| complaint(error.to_string()))
    }

    /// Returns the sums by name, as JSON.
    fn averages(&self, by_shape: bool) -> PyResult<String> {
        json(&self.0.averages(by_shape))
    }

    /// Returns a table of the sums by name. Widths are in characters.
    fn table(
        &self,
        sort_by: &str,
        rows: usize,
        by_shape: bool,
        name_width: usize,
        shapes_width: usize,
    ) -> PyResult<String> {
        let sort = SortBy::named(sort_by).ok_or_else(|| {
            let names = SortBy::NAMES.map(|(name, _)| name).join(", ");
            // As PyTorch, which looks for an attribute of this name.
            PyAttributeError::new_err(format!("a table cannot be sorted by {sort_by:?}: give one of {names}"))
        })?;
        let options = TableOptions { sort, rows, name_width, shapes_width };
        Ok(self.0.table_of(self.0.averages(by_shape), options))
    }

    /// Returns the spans, as JSON: times are in µs.
    fn events(&self) -> PyResult<String> {
        let events = self.0.spans.iter().map(|span| {
            let kind = match span.kind {
                SpanKind::Operation => "operation",
                SpanKind::Backward => "backward",
                SpanKind::Section => "section",
            };
            json!({
                "id": span.id, "parent": span.parent, "name": span.name, "kind": kind, "thread": span.thread,
                "start_us": microseconds(span.begin), "duration_us": microseconds(span.duration),
                "own_us": microseconds(span.own),
                "input_shapes": span.inputs.iter().map(|input| &input.sizes).collect::<Vec<_>>(),
            })
        });
        json(&events.collect::<Vec<_>>())
    }

    /// The number of events that were not kept.
    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}
