//! `tenure.cuda.CUDAGraph`: work that is captured once and replayed as one launch.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tenure::core::StreamId;
use tenure::device::Stream;
use tenure::tensor::cuda::{Capture, Captured};
use tenure_device::graph::GraphPool;

use super::super::exception as tensor_exception;
use super::{StreamObject, opened};
use crate::errors::{exception, warn_once};

/// Memory that several graphs share, of which one runs at a time. `graph_pool_handle` and `CUDAGraph.pool` return it.
#[pyclass(frozen, name = "GraphPool", module = "tenure.cuda")]
pub(crate) struct GraphPoolObject {
    pool: GraphPool,
}

#[pymethods]
impl GraphPoolObject {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let memory = opened(py, None)?;
        Ok(Self { pool: GraphPool::new(memory).map_err(exception)? })
    }
}

/// Work of a device that is captured once and replayed as one launch. `tenure.cuda.graph` captures into it.
///
/// Each replay reads and writes the same memory: write inputs to where the capture read them, and read or copy results
/// before the next replay. Random numbers, and the numbers of optimizers, are new in each replay.
#[pyclass(frozen, subclass, weakref, name = "CUDAGraph", module = "tenure.cuda")]
pub(crate) struct GraphObject {
    captured: Mutex<Option<Captured>>,
    /// The memory that the capture allocates from.
    pool: Mutex<Option<GraphPool>>,
}

/// A thread's capture that goes on, and the address of the graph object that it is for.
struct OpenCapture {
    graph: usize,
    /// A thread that ends without an end of its capture leaves the capture open.
    capture: ManuallyDrop<Capture>,
}

thread_local! {
    static OPEN: RefCell<Option<OpenCapture>> = const { RefCell::new(None) };
}

#[pymethods]
impl GraphObject {
    #[new]
    #[pyo3(signature = (keep_graph = false))]
    fn new(py: Python<'_>, keep_graph: bool) -> PyResult<Self> {
        if keep_graph {
            static WARNED: AtomicBool = AtomicBool::new(false);
            warn_once(py, &WARNED, c"keep_graph=True changes nothing: the captured graph cannot be changed")?;
        }
        Ok(Self { captured: Mutex::default(), pool: Mutex::default() })
    }

    /// Begins to capture the work that this thread puts on the current stream, which must not be the default stream.
    /// Nothing runs until `replay`.
    ///
    /// Parameters
    /// ----------
    /// pool : GraphPool, default None
    ///     Memory that other graphs use too, from `graph_pool_handle` or `pool`. Default: memory of its own.
    /// capture_error_mode : str, default "global"
    ///     Accepted for PyTorch's programs: other threads may always use the device, as with ``"thread_local"``.
    #[pyo3(signature = (pool = None, capture_error_mode = "global"))]
    fn capture_begin(&self, py: Python<'_>, pool: Option<&GraphPoolObject>, capture_error_mode: &str) -> PyResult<()> {
        check_error_mode(capture_error_mode)?;
        let current = opened(py, None)?.streams().current();
        if current.id() == StreamId::NULL {
            return Err(PyRuntimeError::new_err(
                "CUDA graphs must be captured on a non-default stream: use tenure.cuda.graph(), or make another stream \
                 current",
            ));
        }
        self.begin(py, pool, Some(&current))
    }

    /// Begins to capture on a stream, or on one that only captures use.
    #[pyo3(signature = (pool, stream, capture_error_mode))]
    fn _capture_on(
        &self,
        py: Python<'_>,
        pool: Option<&GraphPoolObject>,
        stream: Option<&StreamObject>,
        capture_error_mode: &str,
    ) -> PyResult<()> {
        check_error_mode(capture_error_mode)?;
        self.begin(py, pool, stream.map(StreamObject::stream))
    }

    /// Ends the capture.
    fn capture_end(&self, py: Python<'_>) -> PyResult<()> {
        let graph = self.address();
        let ended = py.detach(|| open_capture(graph).map(Capture::end));
        let captured = ended.ok_or_else(|| {
            PyRuntimeError::new_err("capture_end() needs a capture_begin() before it, on the same graph and thread")
        })?;
        *self.captured.lock() = Some(captured.map_err(tensor_exception)?);
        Ok(())
    }

    /// Ends the capture without a graph.
    fn _abandon(&self, py: Python<'_>) {
        let graph = self.address();
        py.detach(|| drop(open_capture(graph)));
        *self.pool.lock() = None;
    }

    /// Puts the captured work on the current stream as one launch. Does not wait.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        let replayed = py.detach(|| self.captured.lock().as_mut().map(Captured::replay));
        match replayed {
            Some(replayed) => replayed.map_err(tensor_exception),
            None => Err(PyRuntimeError::new_err("Called CUDAGraph::replay without a preceding successful capture.")),
        }
    }

    /// Deletes the captured work. Its memory is free once no tensor of the capture is left.
    fn reset(&self) {
        let captured = self.captured.lock().take();
        let pool = self.pool.lock().take();
        // They are dropped after the locks: a drop may run Python code.
        drop((captured, pool));
    }

    /// Returns the memory of the capture, for other captures to share.
    fn pool(&self) -> PyResult<GraphPoolObject> {
        match &*self.pool.lock() {
            Some(pool) => Ok(GraphPoolObject { pool: pool.clone() }),
            None => Err(PyRuntimeError::new_err("Called CUDAGraph::pool() without a preceding successful capture.")),
        }
    }
}

impl GraphObject {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn begin(&self, py: Python<'_>, pool: Option<&GraphPoolObject>, stream: Option<&Stream>) -> PyResult<()> {
        if self.captured.lock().is_some() {
            return Err(PyRuntimeError::new_err(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance.",
            ));
        }
        let pool = match (pool, stream) {
            (Some(pool), _) => pool.pool.clone(),
            (None, Some(stream)) => {
                let device = super::DeviceObject::new(stream.device()).into_pyobject(py)?;
                GraphPool::new(opened(py, Some(device.as_any()))?).map_err(exception)?
            }
            (None, None) => GraphPool::new(opened(py, None)?).map_err(exception)?,
        };
        if let Some(stream) = stream.filter(|stream| stream.device() != pool.memory().device()) {
            let text = format!("the pool is on {}, and the stream on {}", pool.memory().device(), stream.device());
            return Err(PyRuntimeError::new_err(text));
        }
        let graph = self.address();
        let begun = py.detach(|| {
            let capture = ManuallyDrop::new(Capture::begin(&pool, stream)?);
            OPEN.set(Some(OpenCapture { graph, capture }));
            Ok(())
        });
        begun.map_err(tensor_exception)?;
        *self.pool.lock() = Some(pool);
        Ok(())
    }
}

/// Takes this thread's capture, if it is for a graph.
fn open_capture(graph: usize) -> Option<Capture> {
    let open = OPEN.with_borrow_mut(|open| open.take_if(|open| open.graph == graph));
    open.map(|open| ManuallyDrop::into_inner(open.capture))
}

/// Returns whether work that this thread puts on the current stream is captured.
#[pyfunction]
pub(crate) fn is_stream_capturing(py: Python<'_>) -> PyResult<bool> {
    let memory = opened(py, None)?;
    let stream = memory.streams().current_id();
    let capturing = memory.driver().is_capturing(stream);
    capturing.map_err(|error| exception(tenure::device::DriverError::from(error)))
}

/// Checks a `capture_error_mode`. All modes do the same: a capture fails by what its own thread does.
fn check_error_mode(mode: &str) -> PyResult<()> {
    match mode {
        "global" | "thread_local" | "relaxed" => Ok(()),
        _ => Err(PyValueError::new_err(format!(
            "'{mode}' is not a capture_error_mode: take 'global', 'thread_local' or 'relaxed'"
        ))),
    }
}
