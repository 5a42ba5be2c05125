//! `tenure.cuda.Event`: points in a stream that other streams and the host can wait for.

use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tenure::device::{Event, EventHandle, EventKind, Stream};

use super::super::device::DeviceObject;
use super::{StreamObject, opened};
use crate::errors::{exception, warn_once};

/// A point in a stream. Other streams and the host can wait for it, and two of them measure the time between.
///
/// Parameters
/// ----------
/// enable_timing : bool, default False
///     Whether `elapsed_time` takes the event.
/// blocking : bool, default False
///     Changes nothing, and warns once.
/// interprocess : bool, default False
///     Whether another process can open the event. It keeps no time then.
#[pyclass(frozen, subclass, weakref, name = "Event", module = "tenure.cuda")]
pub(crate) struct EventObject {
    kind: EventKind,
    /// The event, which belongs to a device from its first record on.
    event: Mutex<Option<Event>>,
}

impl EventObject {
    pub(super) fn record_on(&self, py: Python<'_>, stream: &Stream) -> PyResult<()> {
        py.detach(|| {
            let mut event = self.event.lock();
            event.get_or_insert_with(|| Event::new(stream.driver().clone(), self.kind)).record(stream)
        })
        .map_err(exception)
    }

    pub(super) fn wait_on(&self, py: Python<'_>, stream: &Stream) -> PyResult<()> {
        py.detach(|| self.event.lock().as_ref().map_or(Ok(()), |event| event.wait(stream))).map_err(exception)
    }
}

#[pymethods]
impl EventObject {
    #[new]
    #[pyo3(signature = (enable_timing = false, blocking = false, interprocess = false))]
    fn new(py: Python<'_>, enable_timing: bool, blocking: bool, interprocess: bool) -> PyResult<Self> {
        if blocking {
            static WARNED: AtomicBool = AtomicBool::new(false);
            warn_once(py, &WARNED, c"blocking=True changes nothing: synchronize() waits as it does for every event")?;
        }
        let kind = match (enable_timing, interprocess) {
            (false, false) => EventKind::Order,
            (true, false) => EventKind::Timing,
            (false, true) => EventKind::Interprocess,
            (true, true) => {
                return Err(PyRuntimeError::new_err(
                    "an event cannot have both enable_timing and interprocess: CUDA keeps no time for other processes",
                ));
            }
        };
        Ok(Self { kind, event: Mutex::new(None) })
    }

    /// Opens an event of another process, given the handle that its `ipc_handle` returned.
    #[classmethod]
    fn from_ipc_handle<'py>(
        class: &Bound<'py, pyo3::types::PyType>,
        device: &Bound<'py, PyAny>,
        handle: [u8; 64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = class.py();
        let memory = opened(py, Some(device))?;
        let event = py.detach(|| Event::open(memory.driver().clone(), &EventHandle(handle))).map_err(exception)?;
        let object = class.call1((false, false, true))?;
        *object.cast::<Self>()?.get().event.lock() = Some(event);
        Ok(object)
    }

    /// Returns a handle with which another process can open the event. It must have been made with `interprocess`.
    fn ipc_handle(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let memory = opened(py, None)?;
        let handle = py.detach(|| {
            let mut event = self.event.lock();
            event.get_or_insert_with(|| Event::new(memory.driver().clone(), self.kind)).export()
        });
        Ok(handle.map_err(exception)?.0.to_vec())
    }

    /// The device of the stream on which the event was first recorded; `None` before.
    #[getter]
    fn device(&self) -> Option<DeviceObject> {
        self.event.lock().as_ref().map(|event| DeviceObject::new(event.device()))
    }

    /// CUDA's handle of the event; 0 before it is recorded.
    #[getter]
    fn cuda_event(&self) -> u64 {
        self.event.lock().as_ref().and_then(Event::id).map_or(0, |id| id.0)
    }

    /// Records the event on a stream, by default the current one.
    #[pyo3(signature = (stream = None))]
    fn record(&self, py: Python<'_>, stream: Option<&StreamObject>) -> PyResult<()> {
        match stream {
            Some(stream) => self.record_on(py, stream.stream()),
            None => self.record_on(py, &opened(py, None)?.streams().current()),
        }
    }

    /// Makes later work of a stream, by default the current one, wait on the device for the event.
    #[pyo3(signature = (stream = None))]
    fn wait(&self, py: Python<'_>, stream: Option<&StreamObject>) -> PyResult<()> {
        match stream {
            Some(stream) => self.wait_on(py, stream.stream()),
            None => self.wait_on(py, &opened(py, None)?.streams().current()),
        }
    }

    /// Returns whether the work before the event has completed. An event that was never recorded counts as passed.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.event.lock().as_ref().map_or(Ok(true), Event::query)).map_err(exception)
    }

    /// Waits until the work before the event has completed.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.event.lock().as_ref().map_or(Ok(()), Event::synchronize)).map_err(exception)
    }

    /// Returns the time from this event to `end_event` on the device, in milliseconds.
    fn elapsed_time(slf: &Bound<'_, Self>, end_event: &Bound<'_, Self>) -> PyResult<f64> {
        let start = slf.get();
        let end = end_event.get();
        if start.kind != EventKind::Timing || end.kind != EventKind::Timing {
            return Err(PyRuntimeError::new_err("Both events must be created with argument 'enable_timing=True'."));
        }
        if slf.is(end_event) {
            return Ok(0.0);
        }
        let elapsed = slf.py().detach(|| {
            let (first, second) = lock_both(start, end);
            match (&*first, &*second) {
                (Some(first), Some(second)) => Some(first.elapsed_us(second)),
                _ => None,
            }
        });
        match elapsed {
            Some(elapsed) => Ok(elapsed.map_err(exception)? / 1000.0),
            None => Err(PyRuntimeError::new_err("Both events must be recorded before calculating elapsed time.")),
        }
    }

    fn __repr__(&self) -> String {
        match self.cuda_event() {
            0 => "<tenure.cuda.Event uninitialized>".to_owned(),
            handle => format!("<tenure.cuda.Event {handle:#x}>"),
        }
    }
}

type EventGuard<'a> = parking_lot::MutexGuard<'a, Option<Event>>;

/// Locks two events, the one at the lower address first, so that threads that take both never wait for each other.
fn lock_both<'a>(start: &'a EventObject, end: &'a EventObject) -> (EventGuard<'a>, EventGuard<'a>) {
    if std::ptr::from_ref(start) < std::ptr::from_ref(end) {
        let start = start.event.lock();
        (start, end.event.lock())
    } else {
        let end = end.event.lock();
        (start.event.lock(), end)
    }
}
