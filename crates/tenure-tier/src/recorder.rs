//! A recorder of a program's allocations, which makes a placement problem of them.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use tenure_core::{
    Allocator, AllocatorError, AllocatorRegistry, AllocatorScope, DataPtr, Device, DeviceKind, KeyId, Purpose, Tag,
    Unforked,
};
use tenure_device::host::HostMemory;
use tenure_plan::Problem;
use tenure_plan::problem::{
    ProblemAccess, ProblemError, ProblemKernel, ProblemLink, ProblemParts, ProblemTensor, ProblemTier,
};

/// Records every allocation of the threads that [entered](Self::enter) it, and of those that work for them. The memory
/// still comes from the same allocator as without it.
///
/// It sees when bytes are allocated and freed, and for which tag and key. It does not see which kernels read them, so
/// [`problem`](Self::problem) makes assumptions.
#[derive(Clone)]
pub struct Recorder {
    recording: Arc<Recording>,
}

/// The state that a recorder shares with its allocators.
struct Recording {
    began: Instant,
    /// The allocator that provides the memory.
    inner: Arc<dyn Allocator>,
    events: Unforked<Vec<RecordedEvent>>,
}

impl Recording {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// An event in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEvent {
    /// Bytes were allocated.
    Allocated {
        /// The time in nanoseconds since the recorder was created.
        at_ns: u64,
        /// The tag.
        tag: Tag,
        /// The key.
        key: KeyId,
        /// The number of bytes.
        bytes: u64,
    },
    /// Bytes were freed.
    Freed {
        /// The number of the event that allocated them.
        allocation: usize,
    },
    /// An iteration began.
    Iteration {
        /// The time in nanoseconds since the recorder was created.
        at_ns: u64,
    },
}

/// Records a thread until it is dropped.
#[must_use = "it holds for as long as it lives"]
pub struct RecorderGuard {
    _scope: AllocatorScope,
}

impl Recorder {
    /// Creates a recorder that no thread has entered yet.
    ///
    /// # Errors
    /// There is no allocator for the CPU.
    pub fn new() -> Result<Self, AllocatorError> {
        HostMemory::install();
        let inner = AllocatorRegistry::global().allocator(DeviceKind::Cpu)?;
        Ok(Self { recording: Arc::new(Recording { began: Instant::now(), inner, events: Unforked::default() }) })
    }

    /// Records the calling thread.
    pub fn enter(&self) -> RecorderGuard {
        RecorderGuard { _scope: AllocatorScope::enter(Arc::new(RecordingAllocator(Arc::clone(&self.recording)))) }
    }

    /// Begins another iteration of the program. Problems describe the last iteration, and tensors held at its start
    /// exist from its beginning. Without any iteration, the whole recording is one.
    pub fn begin_iteration(&self) {
        let mut events = self.recording.events.lock();
        events.push(RecordedEvent::Iteration { at_ns: self.recording.now_ns() });
    }

    /// Returns the events so far, in order.
    pub fn events(&self) -> Vec<RecordedEvent> {
        self.recording.events.lock().clone()
    }

    /// Returns the problem of placing the tensors that have a key, in these tiers. All allocations with one key are one
    /// tensor, with the largest size that it had at once. Each allocation is a kernel that writes it, and the last
    /// kernel before a tensor is freed reads it. The time of a kernel is the time until the next. No kernel touches a
    /// tensor that only earlier iterations allocated.
    ///
    /// An allocator does not see which kernels read weights. So each module that computes something is assumed to read
    /// its own weights, once until another module computes. If there are gradients, the iteration ends with an update
    /// that reads them, and reads and writes the weights and the optimizer's state.
    ///
    /// # Errors
    /// The tiers or links are invalid.
    pub fn problem(
        &self,
        name: &str,
        tiers: Vec<ProblemTier>,
        links: Vec<ProblemLink>,
    ) -> Result<Problem, ProblemError> {
        let mut draft = ProblemDraft::default();
        for event in self.events() {
            draft.add(event);
        }
        draft.add_update();
        draft.extend_lives();
        let parts = ProblemParts {
            name: name.into(),
            source: "allocations of a program".into(),
            tiers,
            links,
            tensors: draft.tensors,
            kernels: draft.kernels,
            backward: draft.backward,
        };
        Problem::new(parts)
    }
}

/// A problem under construction.
#[derive(Default)]
struct ProblemDraft {
    tensors: Vec<ProblemTensor>,
    kernels: Vec<ProblemKernel>,
    /// The tensor of each key.
    numbers: HashMap<KeyId, usize>,
    /// The bytes of each tensor that are held now.
    held: Vec<u64>,
    /// The weights of each module.
    weights: HashMap<String, Vec<usize>>,
    /// The module of the last kernel.
    module: String,
    /// For each event, the tensor and the bytes that it allocated, if it did.
    allocated: Vec<Option<(usize, u64)>>,
    /// The time at which the last kernel or iteration began.
    last_ns: u64,
    /// The first kernel that writes a gradient.
    backward: Option<usize>,
}

impl ProblemDraft {
    /// Adds all tensors held now to the last kernel, so that they live until its end.
    fn extend_lives(&mut self) {
        let Some(kernel) = self.kernels.last_mut() else { return };
        let held = self.held.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        kernel.reads.extend(held.map(|(tensor, _)| ProblemAccess { tensor, bytes: 0 }));
    }

    /// Adds the optimizer's kernel, if the program is training.
    fn add_update(&mut self) {
        if self.backward.is_some() {
            let reads = self.whole(&[Tag::Weight, Tag::OptimizerState, Tag::Gradient]);
            let writes = self.whole(&[Tag::Weight, Tag::OptimizerState]);
            self.kernels.push(ProblemKernel { name: "update".into(), time_ns: 0, reads, writes });
        }
    }

    /// Returns accesses to all of each tensor with one of these tags that is held now.
    fn whole(&self, tags: &[Tag]) -> Vec<ProblemAccess> {
        let tensors = self.tensors.iter().enumerate();
        tensors
            .filter(|(number, tensor)| self.held[*number] > 0 && tags.contains(&tensor.tag))
            .map(|(number, tensor)| ProblemAccess { tensor: number, bytes: tensor.bytes })
            .collect()
    }

    /// Returns the accesses to a module's weights by its next kernel.
    fn weights_of(&mut self, module: &str) -> Vec<ProblemAccess> {
        if self.module == module {
            return Vec::new();
        }
        self.module = module.to_owned();
        let weights = self.weights.get(module).into_iter().flatten();
        weights.map(|weight| ProblemAccess { tensor: *weight, bytes: self.held[*weight] }).collect()
    }

    /// Adds an event: an allocation is a kernel of its own, and a free is a read by the last kernel.
    fn add(&mut self, event: RecordedEvent) {
        let allocated = match event {
            RecordedEvent::Allocated { at_ns, tag, key, bytes } => key.key().map(|name| {
                if let Some(before) = self.kernels.last_mut() {
                    before.time_ns = at_ns - self.last_ns;
                }
                self.last_ns = at_ns;
                let tensor = *self.numbers.entry(key).or_insert_with(|| {
                    self.tensors.push(ProblemTensor {
                        key: name.to_string(),
                        bytes: 0,
                        tag,
                        compression: None,
                        recompute: None,
                    });
                    self.held.push(0);
                    let tensor = self.tensors.len() - 1;
                    if tag == Tag::Weight {
                        self.weights.entry(name.module.clone()).or_default().push(tensor);
                    }
                    tensor
                });
                self.held[tensor] += bytes;
                self.tensors[tensor].bytes = self.tensors[tensor].bytes.max(self.held[tensor]);
                if tag == Tag::Gradient {
                    self.backward.get_or_insert(self.kernels.len());
                }
                let reads = if tag == Tag::Weight { Vec::new() } else { self.weights_of(&name.module) };
                let writes = vec![ProblemAccess { tensor, bytes }];
                self.kernels.push(ProblemKernel { name: name.to_string(), time_ns: 0, reads, writes });
                (tensor, bytes)
            }),
            RecordedEvent::Freed { allocation } => {
                if let Some((tensor, bytes)) = self.allocated[allocation] {
                    self.held[tensor] -= bytes;
                    if let Some(kernel) = self.kernels.last_mut() {
                        kernel.reads.push(ProblemAccess { tensor, bytes });
                    }
                }
                None
            }
            RecordedEvent::Iteration { at_ns } => {
                self.last_ns = at_ns;
                let begin = ProblemKernel { name: "begin".into(), time_ns: 0, reads: Vec::new(), writes: Vec::new() };
                (self.kernels, self.backward) = (vec![begin], None);
                self.extend_lives();
                None
            }
        };
        self.allocated.push(allocated);
    }
}

/// The allocator of recorded threads. It records and forwards.
struct RecordingAllocator(Arc<Recording>);

// SAFETY: this hands out the other allocator's memory as that gives it.
unsafe impl Allocator for RecordingAllocator {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::identify();
        let data = self.0.inner.allocate(bytes)?;
        if data.is_null() {
            return Ok(data);
        }
        let allocation = {
            let mut events = self.0.events.lock();
            // Reads the clock under the lock, so that times of events never go back.
            let at_ns = self.0.now_ns();
            events.push(RecordedEvent::Allocated { at_ns, tag, key, bytes: bytes as u64 });
            events.len() - 1
        };
        let recording = Arc::clone(&self.0);
        Ok(DataPtr::foreign(data.as_ptr(), Device::CPU, move || {
            recording.events.lock().push(RecordedEvent::Freed { allocation });
            drop(data);
        }))
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }
}
