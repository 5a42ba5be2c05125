//! Convolutions and attention, through cuDNN's graphs.
//!
//! What is to be computed is described once; of the ways that cuDNN knows, those are left out whose results differ from
//! time to time, or are rougher than asked for, and the best of the others, as cuDNN thinks, is kept by the description.
//! A plan belongs to a kind of device and is for all threads. A handle is one thread's at a time, with its stream.

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

pub use self::convolution::{Convolution, ConvolutionPass};
use self::descriptor::check;
use self::graph::{Plan, Properties};
use super::CudaDriver;
use crate::{Call, CallError, Driver, ErrorKind, EventKind};

/// How something is computed on a device. It is for good.
#[derive(Clone)]
pub struct DnnPlan(Arc<Plan>);

impl DnnPlan {
    /// Bytes that its workspace must have.
    pub fn workspace_bytes(&self) -> usize {
        self.0.workspace_bytes
    }
}

/// The library on a device, and the plans that were asked for.
pub(super) struct Dnn {
    properties: Properties,
    /// Those that no thread uses.
    handles: Mutex<Vec<Handle>>,
    plans: RwLock<FxHashMap<Convolution, DnnPlan>>,
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
        if let Some(plan) = self.dnn.get().and_then(|dnn| dnn.plans.read().get(convolution).cloned()) {
            return Ok(plan);
        }
        self.in_context(Call::PlanGraph, || {
            let dnn = self.dnn()?;
            let mut plans = graph::plans(&dnn.properties, &convolution.operations()?, convolution.precision(), 1)?;
            let plan = DnnPlan(Arc::new(plans.swap_remove(0)));
            Ok(dnn.plans.write().entry(*convolution).or_insert(plan).clone())
        })
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

    /// Computes a convolution in each of up to `candidates` ways, and takes the fastest from now on. It waits for the
    /// device, and must not be called while anything is captured. `workspace` gives as many bytes as it is asked for.
    ///
    /// # Errors
    /// Those of [`convolve`](Self::convolve), and of `workspace`.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn tune_convolution<E: From<CallError>>(
        &self,
        convolution: &Convolution,
        operands: [Address; 3],
        stream: StreamId,
        candidates: usize,
        mut workspace: impl FnMut(usize) -> Result<Address, E>,
    ) -> Result<DnnPlan, E> {
        const ROUNDS: usize = 5;
        let plans = self.in_context(Call::PlanGraph, || {
            graph::plans(&self.dnn()?.properties, &convolution.operations()?, convolution.precision(), candidates)
        })?;
        let events = [self.create_event(EventKind::Timing)?, self.create_event(EventKind::Timing)?];
        let mut best: Option<(f64, DnnPlan)> = None;
        for plan in plans.into_iter().map(|plan| DnnPlan(Arc::new(plan))) {
            let room = workspace(plan.workspace_bytes())?;
            // SAFETY: the caller's promise.
            let run = || unsafe { self.convolve(&plan, operands, room, stream) };
            // One that does not run is none.
            if run().is_err() {
                continue;
            }
            self.record_event(events[0], stream)?;
            (0..ROUNDS).try_for_each(|_| run())?;
            self.record_event(events[1], stream)?;
            self.synchronize_stream(stream)?;
            let elapsed_us = self.elapsed_us(events[0], events[1])?;
            if best.as_ref().is_none_or(|(fastest_us, _)| elapsed_us < *fastest_us) {
                best = Some((elapsed_us, plan));
            }
        }
        events.into_iter().try_for_each(|event| self.destroy_event(event))?;
        let Some((_, plan)) = best else { return Ok(self.convolution_plan(convolution)?) };
        let dnn = self.in_context(Call::PlanGraph, || self.dnn())?;
        dnn.plans.write().insert(*convolution, plan.clone());
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
            let free = dnn.handles.lock().pop();
            let handle = free.map_or_else(Handle::new, Ok)?;
            // SAFETY: the handle is alive, and the stream known.
            check(unsafe { sys::cudnnSetStream(handle.0, raw.cast()) })?;
            let number = self.launches.record("cudnnBackendExecute", stream, [1; 3], [1; 3], at);
            // SAFETY: the caller's promise.
            let launched = unsafe { plan.0.run(handle.0, data, workspace) };
            dnn.handles.lock().push(handle);
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
        let handle = Handle::new()?;
        let properties = Properties::of(handle.0)?;
        // Another thread's, if that was faster: this one's handle stays for nothing, once.
        Ok(self.dnn.get_or_init(|| Dnn { properties, handles: Mutex::new(vec![handle]), plans: RwLock::default() }))
    }
}

/// Whether the library can be loaded.
fn is_there() -> bool {
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
        unsafe { sys::is_culib_present() }
    });
    *IS_THERE
}
