//! `tenure.cuda.Stream`: streams of a device, and each thread's current one.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tenure::core::StreamId;
use tenure::device::{Priority, Stream, StreamKind};
use tenure_device::{functions, memory};

use super::super::device::DeviceObject;
use super::super::{TensorObject, dlpack};
use super::{EventObject, opened};
use crate::errors::exception;

/// A stream: work put on it runs in order, and may run at the same time as work on other streams.
///
/// Parameters
/// ----------
/// device : device, default None
///     Default: the current device.
/// priority : int, default 0
///     A negative number takes a stream of the highest priority, a positive one of the lowest. A device has a pool of 32
///     streams of each priority, whose streams take turns: after that many, two objects stand for one stream.
/// stream_ptr : int, default None
///     The handle of a stream that another library created and keeps, in place of a stream of a pool.
#[pyclass(frozen, subclass, weakref, name = "Stream", module = "tenure.cuda")]
pub(crate) struct StreamObject {
    stream: Stream,
}

impl StreamObject {
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }
}

#[pymethods]
impl StreamObject {
    #[new]
    #[pyo3(signature = (device = None, priority = 0, *, stream_ptr = None))]
    fn new(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        priority: i64,
        stream_ptr: Option<u64>,
    ) -> PyResult<Self> {
        /// CUDA's handle of the null stream, beside 0.
        const LEGACY_DEFAULT: u64 = 1;
        let memory = opened(py, device)?;
        let stream = match stream_ptr {
            Some(LEGACY_DEFAULT) => memory.streams().null(),
            Some(handle) => dlpack::known_stream(memory, StreamId(handle)),
            None => {
                let priority = match priority {
                    1.. => Priority::Low,
                    0 => Priority::Default,
                    ..0 => Priority::High,
                };
                py.detach(|| memory.streams().pooled(priority)).map_err(exception)?
            }
        };
        Ok(Self { stream })
    }

    /// The device.
    #[getter]
    fn device(&self) -> DeviceObject {
        DeviceObject::new(self.stream.device())
    }

    /// The number of the device.
    #[getter]
    fn device_index(&self) -> u8 {
        self.stream.device().index()
    }

    /// CUDA's handle of the stream; 0 is the default stream's.
    #[getter]
    fn cuda_stream(&self) -> u64 {
        self.stream.id().0
    }

    /// The identity of the stream: CUDA's handle.
    #[getter]
    fn stream_id(&self) -> u64 {
        self.stream.id().0
    }

    /// The priority: -1 is the highest, 1 the lowest.
    #[getter]
    fn priority(&self) -> i64 {
        match self.stream.kind() {
            StreamKind::Pooled(Priority::High) => -1,
            StreamKind::Pooled(Priority::Low) => 1,
            _ => 0,
        }
    }

    /// Returns the version of the protocol by which other libraries take the stream, and its handle.
    fn __cuda_stream__(&self) -> (u32, u64) {
        (0, self.stream.id().0)
    }

    /// Returns whether all work of the stream has completed.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.stream.query()).map_err(exception)
    }

    /// Waits until all work of the stream has completed.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stream.synchronize()).map_err(exception)
    }

    /// Makes later work of the stream wait, on the device, for `event`.
    fn wait_event(&self, py: Python<'_>, event: &EventObject) -> PyResult<()> {
        event.wait_on(py, &self.stream)
    }

    /// Makes later work of the stream wait, on the device, for the work that is on `stream` now.
    fn wait_stream(&self, py: Python<'_>, stream: &Self) -> PyResult<()> {
        py.detach(|| stream.stream.lead_to(&self.stream)).map_err(exception)
    }

    /// Records an event, by default a new one, on the stream, and returns it.
    #[pyo3(signature = (event = None))]
    fn record_event<'py>(
        &self,
        py: Python<'py>,
        event: Option<Bound<'py, EventObject>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let event = match event {
            Some(event) => event,
            None => py.import("tenure.cuda")?.getattr("Event")?.call0()?.cast_into()?,
        };
        event.get().record_on(py, &self.stream)?;
        Ok(event.into_any())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().stream == self.stream)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.stream.device(), self.stream.id()).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("<tenure.cuda.Stream device={} cuda_stream={}>", self.stream.device(), self.stream.id())
    }
}

/// Returns the thread's current stream of a device, by default the current device.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn current_stream(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<StreamObject> {
    Ok(StreamObject { stream: opened(py, device)?.streams().current() })
}

/// Returns the default stream of a device, by default the current device.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn default_stream(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<StreamObject> {
    Ok(StreamObject { stream: opened(py, device)?.streams().null() })
}

/// Makes a stream, and its device, the thread's current ones. `None` changes nothing.
#[pyfunction]
#[pyo3(signature = (stream))]
pub(crate) fn set_stream(stream: Option<&StreamObject>) {
    if let Some(StreamObject { stream }) = stream {
        stream.make_current();
        functions::set_device(stream.device().index());
    }
}

#[pymethods]
impl TensorObject {
    /// Records that a stream uses the tensor's memory too: once freed, it is not used again before that stream has done
    /// the work that is on it then. Operations on tensors record that themselves.
    fn record_stream(&self, py: Python<'_>, stream: &StreamObject) -> PyResult<()> {
        let tensor = self.tensor();
        if tensor.device().is_cpu() {
            return Err(PyRuntimeError::new_err("record_stream: a tensor on the CPU is used by no stream"));
        }
        py.detach(|| memory::record_stream(tensor.storage(), stream.stream.id())).map(drop).map_err(exception)
    }
}
