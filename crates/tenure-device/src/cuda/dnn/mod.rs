//! Convolutions and attention, through cuDNN's graphs.
//!
//! What is to be computed is described once; of the ways that cuDNN knows, those are left out whose results differ from
//! time to time, or are rougher than asked for, and the best of the others, as cuDNN thinks, is kept by the description.
//! The library promises little to threads that use it at once, so one does at a time on each device.

mod attention;
mod convolution;
mod descriptor;
mod graph;
#[cfg(test)]
mod tests;

use std::panic::Location;
use std::ptr;
use std::sync::{Arc, LazyLock};

use cudarc::cudnn::sys::{self, cudnnHandle_t};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tenure_alloc::Address;
use tenure_core::StreamId;

pub use self::attention::Attention;
pub use self::convolution::{Convolution, ConvolutionPass};
use self::descriptor::check;
use self::graph::{Plan, Target};
use super::CudaDriver;
use crate::{Call, CallError, ErrorKind};

/// How something is computed on a device. It is for good.
#[derive(Clone)]
pub struct DnnPlan(Arc<Plan>);

impl DnnPlan {
    /// Bytes that its workspace must have.
    pub fn workspace_bytes(&self) -> usize {
        self.0.workspace_bytes
    }

    /// Whether it was [measured](CudaDriver::tune_convolution).
    pub fn is_tuned(&self) -> bool {
        self.0.is_tuned
    }
}

/// The library on a device, and the plans that were asked for.
pub(super) struct Dnn {
    handle: Mutex<Handle>,
    /// Errors too: what the library does not compute once, it never does.
    plans: RwLock<FxHashMap<Description, Result<DnnPlan, CallError>>>,
}

/// What there are plans for, or none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Description {
    Convolution(Convolution),
    Attention(Attention),
}

struct Handle(cudnnHandle_t);

// SAFETY: a handle may go from thread to thread, as long as one uses it at a time.
unsafe impl Send for Handle {}

impl Handle {
    fn new() -> Result<Self, ErrorKind> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable, and the caller's thread has the context.
        check(unsafe { sys::cudnnCreate(&mut raw) })?;
        Ok(Self(raw))
    }
}

impl CudaDriver {
    /// How a convolution is computed: what the library thinks best, the same every time.
    ///
    /// # Errors
    /// There is no cuDNN, or it does not compute that.
    pub fn convolution_plan(&self, convolution: &Convolution) -> Result<DnnPlan, CallError> {
        self.plan(Description::Convolution(*convolution), |target| Ok(convolution.plans(target, 1)?.swap_remove(0)))
    }

    /// How attention is computed, or its gradients: the same every time. Gradients that are not
    /// [in any order](Attention::is_in_any_order) take a workspace of two bytes for each query and key, so that they are the
    /// same bits: computing some batches or heads after the others takes less.
    ///
    /// # Errors
    /// There is no cuDNN, or it does not compute that.
    pub fn attention_plan(&self, attention: &Attention) -> Result<DnnPlan, CallError> {
        self.plan(Description::Attention(*attention), |target| attention.plan(target))
    }

    fn plan(
        &self,
        description: Description,
        make: impl FnOnce(&Target) -> Result<Plan, ErrorKind>,
    ) -> Result<DnnPlan, CallError> {
        if let Some(plan) = self.dnn.get().and_then(|dnn| dnn.plans.read().get(&description).cloned()) {
            return plan;
        }
        let dnn = self.in_context(Call::PlanGraph, || self.dnn())?;
        let plan = self.in_context(Call::PlanGraph, || {
            let handle = dnn.handle.lock();
            Ok(DnnPlan(Arc::new(make(&Target::Device(handle.0))?)))
        });
        dnn.plans.write().entry(description).or_insert(plan).clone()
    }

    /// Puts a convolution on `stream`: its images, weight and result, or their gradients, of which one is written.
    ///
    /// # Errors
    /// The stream does not exist, or the library refuses.
    ///
    /// # Safety
    /// The three tensors are as the plan's convolution says, the workspace has as many bytes as the plan, and all stay
    /// there until the stream has passed it; nothing else touches what is written unordered, nor writes what is read.
    #[track_caller]
    pub unsafe fn convolve(
        &self,
        plan: &DnnPlan,
        [input, weight, output]: [Address; 3],
        workspace: Address,
        stream: StreamId,
    ) -> Result<(), CallError> {
        let data = [(convolution::INPUT, input), (convolution::WEIGHT, weight), (convolution::OUTPUT, output)];
        // SAFETY: the caller's promise.
        unsafe { self.run_graph(plan, &data, workspace, stream) }
    }

    /// Puts attention on `stream`, or its gradients: the tensors that have strides, in their order, 4 or 8 of them.
    ///
    /// # Errors
    /// The stream does not exist, or the library refuses.
    ///
    /// # Safety
    /// The tensors are as the plan's attention says, `sums` has a dense `f32` for each batch, head and query, and the
    /// rest is as of [`convolve`](Self::convolve).
    #[track_caller]
    pub unsafe fn attend(
        &self,
        plan: &DnnPlan,
        tensors: &[Address],
        sums: Address,
        workspace: Address,
        stream: StreamId,
    ) -> Result<(), CallError> {
        let ids = attention::FIRST..;
        let data: Vec<(i64, Address)> = ids.zip(tensors.iter().copied()).chain([(attention::SUMS, sums)]).collect();
        // SAFETY: the caller's promise.
        unsafe { self.run_graph(plan, &data, workspace, stream) }
    }

    /// Computes a convolution in each of up to `candidates` ways, and takes the fastest from now on. It waits for the
    /// device, and must not be called while anything is captured. `workspace` gives as many bytes as it is asked for, or
    /// the library chooses.
    ///
    /// # Errors
    /// Those of [`convolve`](Self::convolve).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn tune_convolution(
        &self,
        convolution: &Convolution,
        operands: [Address; 3],
        stream: StreamId,
        candidates: usize,
        workspace: impl FnOnce(usize) -> Option<Address>,
    ) -> Result<DnnPlan, CallError> {
        let plans = self.in_context(Call::PlanGraph, || {
            let handle = self.dnn()?.handle.lock();
            convolution.plans(&Target::Device(handle.0), candidates)
        })?;
        let most = plans.iter().map(|plan| plan.workspace_bytes).max().unwrap_or(0);
        let tuned = |mut plan: Plan| {
            plan.is_tuned = true;
            DnnPlan(Arc::new(plan))
        };
        let candidates: Vec<DnnPlan> = plans.into_iter().map(tuned).collect();
        // There is one at least.
        let first = candidates[0].clone();
        let fastest = match workspace(most) {
            Some(room) => self.fastest(candidates, stream, |plan| {
                // SAFETY: the caller's promise.
                unsafe { self.convolve(plan, operands, room, stream) }
            })?,
            None => None,
        };
        let plan = fastest.unwrap_or(first);
        let dnn = self.in_context(Call::PlanGraph, || self.dnn())?;
        let before = dnn.plans.write().insert(Description::Convolution(*convolution), Ok(plan.clone()));
        // A graph may have captured it, and plans are for good.
        std::mem::forget(before);
        Ok(plan)
    }

    /// # Safety
    /// As of [`convolve`](Self::convolve).
    #[track_caller]
    unsafe fn run_graph(
        &self,
        plan: &DnnPlan,
        data: &[(i64, Address)],
        workspace: Address,
        stream: StreamId,
    ) -> Result<(), CallError> {
        let at = Location::caller();
        self.in_context(Call::RunGraph, || {
            let (dnn, raw) = (self.dnn()?, self.stream(stream)?);
            let handle = dnn.handle.lock();
            // SAFETY: the handle is alive, and the stream known.
            check(unsafe { sys::cudnnSetStream(handle.0, raw.cast()) })?;
            let number = self.launches.record("cudnnBackendExecute", stream, [1; 3], [1; 3], at);
            // SAFETY: the caller's promise.
            let launched = unsafe { plan.0.run(handle.0, data, workspace) };
            launched.inspect_err(|_| self.launches.withdraw(number))
        })
    }

    fn dnn(&self) -> Result<&Dnn, ErrorKind> {
        if let Some(dnn) = self.dnn.get() {
            return Ok(dnn);
        }
        if !is_there() {
            return Err(ErrorKind::NoLibrary { library: "libcudnn.so.9" });
        }
        let handle = Mutex::new(Handle::new()?);
        // Another thread's, if that was faster: this one's handle stays for nothing, once.
        Ok(self.dnn.get_or_init(|| Dnn { handle, plans: RwLock::default() }))
    }
}

/// Whether the library can be loaded.
fn is_there() -> bool {
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
        let is_there = unsafe { sys::is_culib_present() };
        if !is_there {
            tracing::warn!("cuDNN was not found (libcudnn.so.9): convolutions and attention take much longer");
        }
        is_there
    });
    *IS_THERE
}
