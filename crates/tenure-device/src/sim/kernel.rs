//! Kernels of the simulated device.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::StreamId;

use super::memory::SimMemory;
use super::race::Touches;
use crate::{ErrorKind, Launch};

/// The code that a kernel runs.
pub(super) type Body = Arc<dyn Fn(&mut KernelMemory<'_>) + Send + Sync>;

/// A kernel of the simulated device: a closure, and the device memory it declares to read and write.
pub struct SimKernel {
    pub(super) name: &'static str,
    pub(super) stream: StreamId,
    pub(super) at: &'static Location<'static>,
    pub(super) touches: Touches,
    pub(super) body: Option<Body>,
}

impl SimKernel {
    /// Creates a kernel that touches nothing. Errors name it by `name` and by the caller's place in the source.
    #[track_caller]
    pub fn new(name: &'static str, stream: StreamId) -> Self {
        let at = Location::caller();
        let touches = Touches::default();
        Self { name, stream, at, touches, body: None }
    }

    /// Declares that the kernel also reads `bytes` bytes at `address`.
    pub fn reads(mut self, address: Address, bytes: u64) -> Self {
        self.touches.reads.push(address..address.saturating_add(bytes));
        self
    }

    /// Declares that the kernel also writes `bytes` bytes at `address`, and may read them.
    pub fn writes(mut self, address: Address, bytes: u64) -> Self {
        self.touches.writes.push(address..address.saturating_add(bytes));
        self
    }

    /// Sets the code that the kernel runs, once for each launch of a graph that captured it. Without a body, the kernel
    /// only counts as having touched what it declares.
    pub fn body(mut self, body: impl Fn(&mut KernelMemory<'_>) + Send + Sync + 'static) -> Self {
        self.body = Some(Arc::new(body));
        self
    }
}

/// Device memory, as a running kernel sees it.
///
/// An access must lie within one declared range. An undeclared access does nothing, and ends the context when the
/// kernel ends; the call that made the kernel run reports it.
pub struct KernelMemory<'a> {
    memory: &'a mut SimMemory,
    launch: &'a Arc<Launch>,
    touches: &'a Touches,
    fault: Option<ErrorKind>,
}

impl<'a> KernelMemory<'a> {
    /// Runs `body`, and reports the first undeclared access.
    pub(super) fn run(
        memory: &'a mut SimMemory,
        launch: &'a Arc<Launch>,
        touches: &'a Touches,
        body: &Body,
    ) -> Result<(), ErrorKind> {
        let mut view = Self { memory, launch, touches, fault: None };
        body(&mut view);
        view.fault.map_or(Ok(()), Err)
    }

    /// Reads `target.len()` bytes at `address`.
    pub fn read(&mut self, address: Address, target: &mut [u8]) {
        let declared = [&self.touches.reads, &self.touches.writes];
        self.access(address, target.len(), &declared, |memory, launch| memory.read(address, target, launch));
    }

    /// Writes `source` at `address`.
    pub fn write(&mut self, address: Address, source: &[u8]) {
        let declared = [&self.touches.writes];
        self.access(address, source.len(), &declared, |memory, launch| memory.write(address, source, launch));
    }

    /// Runs `action` if the range lies within one of `declared`; otherwise keeps the fault.
    fn access(
        &mut self,
        address: Address,
        len: usize,
        declared: &[&Vec<Range<Address>>],
        action: impl FnOnce(&mut SimMemory, &Arc<Launch>) -> Result<(), ErrorKind>,
    ) {
        if len == 0 {
            return;
        }
        let range = address..address.saturating_add(len as u64);
        let mut declared = declared.iter().flat_map(|ranges| ranges.iter());
        let result = if declared.any(|declared| declared.start <= range.start && range.end <= declared.end) {
            action(self.memory, self.launch)
        } else {
            Err(ErrorKind::Undeclared { launch: Arc::clone(self.launch), range })
        };
        if let Err(fault) = result {
            self.fault.get_or_insert(fault);
        }
    }
}
