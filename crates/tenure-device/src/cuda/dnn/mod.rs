//! Convolutions and attention, through cuDNN's graphs.
//!
//! A computation is described once. From the engines that cuDNN offers for it, this module leaves out those whose
//! results differ from run to run or are less precise than asked for. It keeps the best of the others, in cuDNN's
//! ranking, under the description. The library promises little to threads that use it at once, so only one thread at a
//! time uses it on each device.

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

pub use self::attention::DnnAttention;
pub use self::convolution::{ConvolutionPass, DnnConvolution};
use self::descriptor::check;
use self::graph::{EnginePlan, PlanTarget};
use super::CudaDriver;
use crate::{Call, CallError, ErrorKind};

/// A plan by which cuDNN computes something on a device. It never becomes invalid.
#[derive(Clone)]
pub struct DnnPlan(Arc<EnginePlan>);

impl DnnPlan {
    /// Returns how many bytes the workspace must have.
    pub fn workspace_bytes(&self) -> usize {
        self.0.workspace_bytes
    }

    /// Returns whether the plan was chosen by [measurement](CudaDriver::tune_convolution).
    pub fn is_tuned(&self) -> bool {
        self.0.is_tuned
    }
}

/// cuDNN on a device, and the plans that were made so far.
pub(super) struct Dnn {
    handle: Mutex<Handle>,
    /// Plans, and errors too: a computation that the library cannot do once, it never can.
    plans: RwLock<FxHashMap<Description, Result<DnnPlan, CallError>>>,
}

/// A computation for which there may be a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Description {
    Convolution(DnnConvolution),
    Attention(DnnAttention),
}

struct Handle(cudnnHandle_t);

// SAFETY: a handle may move between threads, as long as one thread at a time uses it.
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
    /// Returns the plan for a convolution: the way that the library ranks first, and the same one every time.
    ///
    /// # Errors
    /// There is no cuDNN, or it cannot compute this convolution.
    pub fn convolution_plan(&self, convolution: &DnnConvolution) -> Result<DnnPlan, CallError> {
        self.plan(Description::Convolution(*convolution), |target| Ok(convolution.plans(target, 1)?.swap_remove(0)))
    }

    /// Returns the plan for attention or its gradients: the same one every time. Gradients that are not [in any
    /// order](DnnAttention::is_in_any_order) need a workspace of two bytes for each pair of a query and a key, so that
    /// their bits are the same every time. Computing batches or heads in several calls needs less.
    ///
    /// # Errors
    /// There is no cuDNN, or it cannot compute this attention.
    pub fn attention_plan(&self, attention: &DnnAttention) -> Result<DnnPlan, CallError> {
        self.plan(Description::Attention(*attention), |target| attention.plan(target))
    }

    fn plan(
        &self,
        description: Description,
        make: impl FnOnce(&PlanTarget) -> Result<EnginePlan, ErrorKind>,
    ) -> Result<DnnPlan, CallError> {
        if let Some(plan) = self.dnn.get().and_then(|dnn| dnn.plans.read().get(&description).cloned()) {
            return plan;
        }
        let dnn = self.in_context(Call::PlanGraph, || self.dnn())?;
        let plan = self.in_context(Call::PlanGraph, || {
            let handle = dnn.handle.lock();
            Ok(DnnPlan(Arc::new(make(&PlanTarget::Device(handle.0))?)))
        });
        dnn.plans.write().entry(description).or_insert(plan).clone()
    }

    /// Submits a convolution to `stream`: its images, weight and result, or their gradients, one of which is written.
    ///
    /// # Errors
    /// The stream does not exist, or the library refuses.
    ///
    /// # Safety
    /// The three tensors match the plan's convolution, the workspace has as many bytes as the plan needs, and all stay
    /// valid until the stream has completed the convolution. Other work does not access written memory, or write read
    /// memory, without ordering.
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

    /// Submits attention, or its gradients, to `stream`. `tensors` are the 4 or 8 tensors that have strides, in their
    /// order.
    ///
    /// # Errors
    /// The stream does not exist, or the library refuses.
    ///
    /// # Safety
    /// The tensors match the plan's attention, `sums` has one dense `f32` for each batch, head and query, and the other
    /// conditions are those of [`convolve`](Self::convolve).
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

    /// Measures up to `candidates` ways to compute a convolution, and uses the fastest from now on. Waits for the
    /// device, and must not be called while a stream is captured. `workspace` returns the address of as many bytes as
    /// it is asked for; if it returns `None`, the library's first choice is used.
    ///
    /// # Errors
    /// The same as [`convolve`](Self::convolve).
    ///
    /// # Safety
    /// The same as for [`convolve`](Self::convolve).
    pub unsafe fn tune_convolution(
        &self,
        convolution: &DnnConvolution,
        operands: [Address; 3],
        stream: StreamId,
        candidates: usize,
        workspace: impl FnOnce(usize) -> Option<Address>,
    ) -> Result<DnnPlan, CallError> {
        let plans = self.in_context(Call::PlanGraph, || {
            let handle = self.dnn()?.handle.lock();
            convolution.plans(&PlanTarget::Device(handle.0), candidates)
        })?;
        let most = plans.iter().map(|plan| plan.workspace_bytes).max().unwrap_or(0);
        let candidates: Vec<DnnPlan> = plans
            .into_iter()
            .map(|mut plan| {
                plan.is_tuned = true;
                DnnPlan(Arc::new(plan))
            })
            .collect();
        // There is at least one candidate.
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
        // A graph may have captured the old plan, so plans are never freed.
        std::mem::forget(before);
        Ok(plan)
    }

    /// # Safety
    /// The same as for [`convolve`](Self::convolve).
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
            let dnn = self.dnn()?;
            let raw = self.stream(stream)?;
            let handle = dnn.handle.lock();
            // SAFETY: the handle is alive, and the stream is known.
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
        // If another thread was faster, its handle is used, and this one stays unused.
        Ok(self.dnn.get_or_init(|| Dnn { handle, plans: RwLock::default() }))
    }
}

/// Returns whether the library can be loaded.
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
