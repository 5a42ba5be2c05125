//! The class `Trace`: reads, writes and replays traces for `tenure.trace`.

use std::fs::File;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tenure::plan::{self, Format, ReadOptions, TraceError};
use tenure::replay::{AllocatorKind, Replay};
use tenure::report::Report;

use crate::devices::DriverKind;
use crate::errors::exception;
use crate::interrupt::{Interrupt, Interruptible};
use crate::json;

/// The size in bytes of an event in `Trace.events`: four 8-byte words, and one byte padded to 8.
const EVENT_BYTES: usize = 40;

/// A validated trace.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Trace(plan::Trace);

#[pymethods]
impl Trace {
    /// Reads a trace from a file. Executes nothing in the file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, device: Option<u32>) -> PyResult<Self> {
        let mut interrupt = Interrupt::new();
        let trace = py.detach(|| {
            let file = File::open(&path).map_err(TraceError::from);
            let trace = file.and_then(|reader| {
                let reader = Interruptible { reader, interrupt: &mut interrupt };
                let options = ReadOptions { device, ..ReadOptions::default() };
                plan::Trace::read_from(reader, &plan::Trace::source_of(&path), &options)
            });
            trace.map_err(|error| exception(error.in_file(&path)))
        });
        interrupt.result(trace.map(Self))
    }

    /// Returns the trace's source, counts and peaks as JSON: the properties of `tenure.trace.Trace`.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        let summary = py.detach(|| self.0.summary());
        json(&serde_json::json!({
            "name": self.0.source(),
            "device": self.0.device(),
            "settings": self.0.settings().conf,
            "events": self.0.events().len(),
            "earlier_events": self.0.earlier_events(),
            "earlier_bytes": summary.earlier_bytes,
            "notes": self.0.notes(),
            "allocations": summary.allocations,
            "streams": summary.streams.iter().map(|stream| stream.0).collect::<Vec<_>>(),
            "duration_us": summary.duration_us,
            "segments": summary.segments,
            "ooms": summary.ooms,
            "peak_requested_bytes": summary.peak_requested_bytes,
            "live_at_end_bytes": summary.live_at_end_bytes,
        }))
    }

    /// Returns the events, packed: time, address, bytes and stream in 64 bits each, the action in 8, 56 bits of
    /// padding.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let events = self.0.events();
        PyBytes::new_with(py, events.len() * EVENT_BYTES, |bytes| {
            py.detach(|| {
                for (bytes, event) in bytes.chunks_exact_mut(EVENT_BYTES).zip(events) {
                    let words = [event.time_us, event.address, event.bytes, event.stream.0, event.action as u64];
                    let places = bytes.chunks_exact_mut(8);
                    places.zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
                }
            });
            Ok(())
        })
    }

    /// Writes the trace to a file, in the format that the extension of its name says. Returns lines on what the file
    /// lacks.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
        let format = Format::from_path(&path).ok_or_else(|| {
            let known = Format::ALL.map(Format::extension).join(", ");
            let path = path.display();
            PyValueError::new_err(format!("{path}: the name does not say the format: it must end in one of {known}"))
        })?;
        py.detach(|| self.0.write(&path, format)).map_err(exception)?;
        Ok(self.0.left_out_of(format))
    }

    /// Replays the trace on one allocator. Returns the outcome as JSON.
    fn replay(
        &self,
        py: Python<'_>,
        allocator: &str,
        repeat: u32,
        lag_us: u64,
        driver: &str,
        device: u32,
    ) -> PyResult<String> {
        let replay = Replay { allocator: allocator_named(allocator)?, repeat, lag_us };
        let driver = DriverKind::named(driver)?;
        if matches!(driver, DriverKind::Cuda) && lag_us != 0 {
            let text = "lag_us is for driver=\"sim\": the work of a real device ends when it ends";
            return Err(PyValueError::new_err(text));
        }
        if matches!(driver, DriverKind::Sim) && device != 0 {
            return Err(PyValueError::new_err("device is for driver=\"cuda\": there is one simulated device, 0"));
        }
        let mut interrupt = Interrupt::new();
        let outcome = py.detach(|| {
            let outcome = match driver {
                DriverKind::Sim => replay.run_observed(&self.0, |_| interrupt.step()),
                DriverKind::Cuda => replay.run_on(&driver.open(device)?, &self.0, |_| interrupt.step()),
            };
            outcome.map_err(exception)
        });
        json(&interrupt.result(outcome)?)
    }

    /// Returns the report on the trace: one HTML file.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let mut interrupt = Interrupt::new();
        let page = py.detach(|| Ok(Report::observed(&self.0, |_, _| interrupt.step()).map_err(exception)?.html()));
        interrupt.result(page)
    }
}

fn allocator_named(name: &str) -> PyResult<AllocatorKind> {
    AllocatorKind::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
        let known: Vec<_> = AllocatorKind::ALL.iter().map(|kind| format!("{:?}", kind.name())).collect();
        PyValueError::new_err(format!("unknown allocator {name:?}: expected one of {}", known.join(", ")))
    })
}
