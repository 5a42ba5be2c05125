//! Work of a stream, put together once and launched as one. PyTorch's `CUDAGraph`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_alloc::{PoolId, PoolUse};

use crate::memory::{DeviceMemory, MemoryError};
use crate::streams::CaptureStream;
use crate::{Event, EventKind, GraphId, Stream, StreamGuard};

/// Work that was captured, with the memory that it uses.
///
/// What was allocated in the capture lives in a pool of the graph's own: addresses stay, and each launch writes the same
/// ones. So results are read, or copied, before the next launch, and inputs are written to where the capture read them.
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

/// Memory that several graphs share, of which one runs at a time: each writes over what the others left there. So it takes what
/// the largest of them needs. A handle: clones are one.
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
    /// Captures what `work` puts on the stream that it is given, which is the thread's current one meanwhile, and runs none
    /// of it. The stream is nobody else's, and another capture's afterwards. Whatever prepares itself when it is first used,
    /// such as a kernel that is compiled, must have been used before: so do the same work once, outside.
    ///
    /// `work` must not wait for the device, nor read from it: that would fail, and end the capture.
    ///
    /// # Errors
    /// Those of `work`; failures of the driver. Then, and if `work` panics, nothing is left of the capture.
    pub fn capture<T, E: From<MemoryError>>(
        memory: &'static DeviceMemory,
        work: impl FnOnce(&Stream) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        Self::capture_in(&GraphPool::new(memory)?, work)
    }

    /// The same, with memory that other graphs use too. What was allocated in the capture and is freed, the next graph of the pool
    /// may have. The caller sees to it that no two of them run at once, on whichever streams, and reads results before the
    /// next one.
    ///
    /// # Errors
    /// The errors of [`capture`](Self::capture); another capture in this pool goes on.
    pub fn capture_in<T, E: From<MemoryError>>(
        pool: &GraphPool,
        work: impl FnOnce(&Stream) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let allocations = Allocations::begin(pool)?;
        let capture = Capture::begin(pool.memory())?;
        let made = {
            let _current = StreamGuard::new(&capture.stream);
            work(&capture.stream)?
        };
        let id = capture.end()?;
        drop(allocations);
        Ok((Self { id, pool: pool.clone() }, made))
    }

    /// Puts all of it on the thread's current stream. Launches come one after the other, on whichever streams.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn launch(&self) -> Result<(), MemoryError> {
        let memory = self.memory();
        let stream = memory.streams().current_id();
        memory.before_launch(stream);
        Ok(memory.driver().launch_graph(self.id, stream)?)
    }

    /// What the driver calls it.
    pub fn id(&self) -> GraphId {
        self.id
    }

    /// The device's memory.
    pub fn memory(&self) -> &'static DeviceMemory {
        self.pool.memory()
    }

    /// Where the memory that was allocated in the capture lies.
    pub fn pool(&self) -> PoolId {
        self.pool.id()
    }
}

impl GraphPool {
    /// A pool without memory.
    ///
    /// # Errors
    /// The allocator makes none.
    pub fn new(memory: &'static DeviceMemory) -> Result<Self, MemoryError> {
        let id = next_pool();
        memory.allocator().create_pool(id, None)?;
        let pool = Self { shared: Arc::new(SharedPool { memory, id }) };
        // With segments of fixed sizes, a step of ResNet-50 takes a fifth more than it uses.
        memory.allocator().set_expandable(id)?;
        Ok(pool)
    }

    /// The device's memory.
    pub fn memory(&self) -> &'static DeviceMemory {
        self.shared.memory
    }

    /// The allocator's name for it.
    pub fn id(&self) -> PoolId {
        self.shared.id
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        // It is given back when memory is asked back, or wanted, after all launches on the device.
        let _ = self.memory.allocator().release_pool(self.id);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Launches that were made go on. A lost context took the graph along.
        let _ = self.memory().driver().destroy_graph(self.id);
    }
}

/// A stream that is captured as long as this lives, through a panic too.
struct Capture {
    stream: CaptureStream,
    is_open: bool,
}

impl Capture {
    fn begin(memory: &DeviceMemory) -> Result<Self, MemoryError> {
        let stream = memory.streams().for_capture()?;
        memory.driver().begin_capture(stream.id())?;
        Ok(Self { stream, is_open: true })
    }

    fn end(mut self) -> Result<GraphId, MemoryError> {
        // If the driver refuses, `drop` tries again: nobody else can end it.
        let graph = self.stream.driver().end_capture(self.stream.id())?;
        self.is_open = false;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let driver = self.stream.driver();
        // It may be over already, by a call that nobody may make in a capture.
        if let Ok(graph) = driver.end_capture(self.stream.id()) {
            let _ = driver.destroy_graph(graph);
        }
    }
}

/// Allocations go to a pool as long as this lives.
struct Allocations<'a> {
    pool: &'a GraphPool,
}

impl<'a> Allocations<'a> {
    fn begin(pool: &'a GraphPool) -> Result<Self, MemoryError> {
        let memory = pool.memory();
        let asked = Arc::clone(memory.driver());
        // A side stream that joined the capture allocates from the pool too.
        let is_captured = move |stream| asked.is_capturing(stream).unwrap_or(false);
        memory.allocator().begin_pool(pool.id(), PoolUse::Capture, Box::new(is_captured))?;
        Ok(Self { pool })
    }
}

impl Drop for Allocations<'_> {
    fn drop(&mut self) {
        let allocator = self.pool.memory().allocator();
        // The pool is there, which is all that these can fail for.
        let _ = allocator.end_pool(self.pool.id());
        let _ = allocator.release_pool(self.pool.id());
    }
}

/// A point that a graph waits for from outside: each launch waits for the last [`record`](Gate::record) before it.
pub struct Gate {
    event: Event,
}

impl Gate {
    /// A gate of a device, open until it is first recorded.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn new(memory: &DeviceMemory) -> Result<Self, MemoryError> {
        let mut event = Event::new(Arc::clone(memory.driver()), EventKind::Order);
        event.prepare()?;
        Ok(Self { event })
    }

    /// Makes graphs that are launched from now on wait until `stream` has passed what is on it now.
    ///
    /// # Errors
    /// The stream is of another device, or a driver call failed.
    pub fn record(&mut self, stream: &Stream) -> Result<(), MemoryError> {
        Ok(self.event.record(stream)?)
    }

    /// Makes later work of a stream that is captured wait at the gate, in each launch; and of another stream, now.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn wait(&self, stream: &Stream) -> Result<(), MemoryError> {
        let event = self.event.id().expect("it was prepared");
        Ok(stream.driver().wait_event_outside(stream.id(), event)?)
    }
}

/// A pool that no other graph has, and no program's own.
fn next_pool() -> PoolId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    PoolId(NEXT.fetch_add(1, Ordering::Relaxed), u64::MAX)
}
