//! Graphs: work of a stream that is captured once and launched as one. PyTorch's `CUDAGraph`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_alloc::{PoolId, PoolUse};

use crate::check_warn;
use crate::memory::{DeviceMemory, MemoryError};
use crate::streams::CaptureStream;
use crate::{Event, EventKind, GraphId, Stream, StreamGuard};

/// Captured work, with the memory that it uses.
///
/// Memory allocated in the capture lives in a pool of the graph's own. Its addresses stay, and each launch writes to
/// the same ones. So read or copy results before the next launch, and write inputs to where the capture read them.
///
/// ```
/// use std::sync::Arc;
/// use tenure_device::graph::Graph;
/// use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
/// use tenure_device::sim::{SimConfig, SimDriver};
///
/// let driver = Arc::new(SimDriver::new(SimConfig::default()));
/// let memory: &'static DeviceMemory = Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default())?));
/// let target = memory.driver().malloc(4)?;
/// let fill = |stream: &tenure_device::Stream| {
///     memory.driver().memset(target, 7, 4, stream.id()).map_err(MemoryError::from)
/// };
/// let (graph, ()) = Graph::capture(memory, fill)?;
/// graph.launch()?;
/// let mut bytes = [0; 4];
/// memory.driver().copy_from_device(&mut bytes, target, memory.streams().current_id())?;
/// assert_eq!(bytes, [7; 4]);
/// # Ok::<(), MemoryError>(())
/// ```
pub struct Graph {
    id: GraphId,
    pool: GraphPool,
}

/// A memory pool that several graphs share. Only one of them runs at a time, and it overwrites the results of the
/// others. The pool is as large as the largest graph needs. This is a handle: clones stand for the same pool.
#[derive(Clone)]
pub struct GraphPool {
    shared: Arc<SharedPool>,
}

/// A private pool of the allocator.
struct SharedPool {
    memory: &'static DeviceMemory,
    id: PoolId,
}

impl Graph {
    /// Captures what `work` puts on the stream that it is given, and runs none of it. That stream is the thread's
    /// current one meanwhile; no other code gets it, until later captures reuse it. Work that prepares itself at its
    /// first use, such as a kernel that is compiled, must have run before: do the same work once outside a capture.
    ///
    /// `work` must not wait for the device, nor read from it: that fails, and ends the capture.
    ///
    /// # Errors
    /// The errors of `work`; failures of the driver. Nothing is left of the capture then, nor if `work` panics.
    pub fn capture<T, E: From<MemoryError>>(
        memory: &'static DeviceMemory,
        work: impl FnOnce(&Stream) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        Self::capture_in(&GraphPool::new(memory)?, work)
    }

    /// Captures as [`capture`](Self::capture) does, into memory that other graphs use too. The next graph of the pool
    /// may use memory that this capture allocated and freed. The caller makes sure that no two of the pool's graphs run
    /// at once, on any streams, and reads the results of one before it launches the next.
    ///
    /// # Errors
    /// The errors of [`capture`](Self::capture); another capture in this pool goes on.
    pub fn capture_in<T, E: From<MemoryError>>(
        pool: &GraphPool,
        work: impl FnOnce(&Stream) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let capture = GraphCapture::begin(pool, None)?;
        let made = work(capture.stream())?;
        Ok((capture.end()?, made))
    }

    /// Puts the whole graph on the thread's current stream. Launches of one graph run one after the other, on any
    /// streams.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn launch(&self) -> Result<(), MemoryError> {
        let memory = self.memory();
        let stream = memory.streams().current_id();
        memory.before_launch(stream);
        Ok(memory.driver().launch_graph(self.id, stream)?)
    }

    /// Returns the driver's id of the graph.
    pub fn id(&self) -> GraphId {
        self.id
    }

    /// Returns the device's memory.
    pub fn memory(&self) -> &'static DeviceMemory {
        self.pool.memory()
    }

    /// Returns the pool of the memory that was allocated in the capture.
    pub fn pool(&self) -> PoolId {
        self.pool.id()
    }
}

impl GraphPool {
    /// Creates a pool without memory.
    ///
    /// # Errors
    /// The allocator cannot create the pool.
    pub fn new(memory: &'static DeviceMemory) -> Result<Self, MemoryError> {
        let id = next_pool();
        memory.allocator().create_pool(id, None)?;
        let pool = Self { shared: Arc::new(SharedPool { memory, id }) };
        // With segments of fixed sizes, a step of ResNet-50 would take a fifth more memory than it uses.
        memory.allocator().set_expandable(id)?;
        Ok(pool)
    }

    /// Returns the device's memory.
    pub fn memory(&self) -> &'static DeviceMemory {
        self.shared.memory
    }

    /// Returns the allocator's id of the pool.
    pub fn id(&self) -> PoolId {
        self.shared.id
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        // The allocator gives the pool's memory back when it is asked to, or needs memory, after all launches on the
        // device.
        let _ = self.memory.allocator().release_pool(self.id);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Launches already made go on. If the context is lost, the graph is gone too.
        check_warn(self.memory().driver().destroy_graph(self.id));
    }
}

/// A capture that goes on: for callers whose work does not fit in the closure of [`Graph::capture_in`]. A drop ends the
/// capture, and nothing is left of it. It ends on the thread that it began on.
pub struct GraphCapture {
    // The fields are dropped in this order.
    current: StreamGuard,
    capture: StreamCapture,
    pool_guard: PoolGuard,
}

impl GraphCapture {
    /// Begins to capture what is put on `stream`, or on a stream that no other code uses. The stream is the thread's
    /// current one meanwhile. [`Graph::capture_in`] tells what the work must not do, and what the pool's graphs share.
    ///
    /// # Errors
    /// `stream` is the null stream, or is captured already; failures of the driver.
    pub fn begin(pool: &GraphPool, stream: Option<&Stream>) -> Result<Self, MemoryError> {
        let pool_guard = PoolGuard::begin(pool)?;
        let capture = StreamCapture::begin(pool.memory(), stream)?;
        Ok(Self { current: StreamGuard::new(&capture.stream), capture, pool_guard })
    }

    /// Returns the stream that the capture began on.
    pub fn stream(&self) -> &Stream {
        &self.capture.stream
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// A call that is forbidden in a capture ended it before; a stream that took part was not waited for; failures of
    /// the driver. Then there is no graph.
    pub fn end(self) -> Result<Graph, MemoryError> {
        let Self { current, capture, pool_guard } = self;
        drop(current);
        let id = capture.end()?;
        Ok(Graph { id, pool: pool_guard.pool.clone() })
    }
}

/// A stream that is captured while this lives; the capture ends even if the thread panics.
struct StreamCapture {
    stream: Stream,
    /// Gives the stream back if it is one that only captures use.
    _own: Option<CaptureStream>,
    is_open: bool,
}

impl StreamCapture {
    /// Begins a capture on `stream`, or on a stream that no other code uses.
    fn begin(memory: &DeviceMemory, stream: Option<&Stream>) -> Result<Self, MemoryError> {
        let (stream, own) = match stream {
            Some(stream) => (stream.clone(), None),
            None => {
                let own = memory.streams().for_capture()?;
                (own.clone(), Some(own))
            }
        };
        memory.driver().begin_capture(stream.id())?;
        Ok(Self { stream, _own: own, is_open: true })
    }

    fn end(mut self) -> Result<GraphId, MemoryError> {
        // If the driver refuses, `drop` tries again: no other code can end the capture.
        let graph = self.stream.driver().end_capture(self.stream.id())?;
        self.is_open = false;
        Ok(graph)
    }
}

impl Drop for StreamCapture {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let driver = self.stream.driver();
        // The capture may be over already, ended by a call that is forbidden in a capture.
        if let Ok(graph) = driver.end_capture(self.stream.id()) {
            check_warn(driver.destroy_graph(graph));
        }
    }
}

/// Makes allocations of captured streams come from a pool while it lives.
struct PoolGuard {
    pool: GraphPool,
}

impl PoolGuard {
    fn begin(pool: &GraphPool) -> Result<Self, MemoryError> {
        let memory = pool.memory();
        let driver = Arc::clone(memory.driver());
        // A side stream that joined the capture must allocate from the pool too.
        memory.allocator().begin_pool(
            pool.id(),
            PoolUse::Capture,
            Box::new(move |stream| driver.is_capturing(stream).unwrap_or(false)),
        )?;
        Ok(Self { pool: pool.clone() })
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        let allocator = self.pool.memory().allocator();
        // These calls fail only if the pool does not exist, and it does.
        let _ = allocator.end_pool(self.pool.id());
        let _ = allocator.release_pool(self.pool.id());
    }
}

/// A point outside a graph that the graph waits for: each launch waits for the last [`record`](GraphGate::record)
/// before it.
pub struct GraphGate {
    event: Event,
}

impl GraphGate {
    /// Creates a gate of a device, open until it is first recorded.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn new(memory: &DeviceMemory) -> Result<Self, MemoryError> {
        let mut event = Event::new(Arc::clone(memory.driver()), EventKind::Order);
        event.create()?;
        Ok(Self { event })
    }

    /// Makes graphs that are launched from now on wait until `stream` has passed what is on it now.
    ///
    /// # Errors
    /// The stream is of another device, or a driver call failed.
    pub fn record(&mut self, stream: &Stream) -> Result<(), MemoryError> {
        Ok(self.event.record(stream)?)
    }

    /// Makes later work of a stream wait at the gate: on a captured stream at each launch, on another stream once, now.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn wait(&self, stream: &Stream) -> Result<(), MemoryError> {
        let event = self.event.id().expect("it was prepared");
        Ok(stream.driver().wait_event_outside(stream.id(), event)?)
    }
}

/// Returns an id for a pool that no other graph has, nor a program's own pool.
fn next_pool() -> PoolId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    PoolId(NEXT.fetch_add(1, Ordering::Relaxed), u64::MAX)
}
