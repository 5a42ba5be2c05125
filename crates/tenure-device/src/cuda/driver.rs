//! The driver of one NVIDIA device: its state, and the checks that every call makes.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, LazyLock, OnceLock};

use cudarc::driver::sys::{
    self, CUdevice, CUevent, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUresult, CUstream,
};
use parking_lot::Mutex;
use tenure_alloc::{Address, MemoryInfo};
use tenure_core::{Device, StreamId};

use super::blas::Blas;
use super::context::{BoundContext, PrimaryContext};
use super::dnn::Dnn;
use super::error::check;
use super::handles::Handles;
use super::kernels::Kernels;
use super::space::AddressSpace;
use super::timing::{Timing, Timings};
use crate::activity_log::{self, ActivityKind};
use crate::deferred::in_host_function;
use crate::{Call, CallError, ErrorKind, EventId, EventKind, GraphId, LaunchRegistry, Priority, Properties};

/// The number of recent launches that an error lists, if any of them may have caused it.
const SUSPECTS: usize = 8;

/// The driver of one NVIDIA device.
///
/// A panic in a [`HostFunction`](crate::HostFunction) ends the process. A host function that would run after the
/// context was lost is never called. Calls that release, map and unmap run one at a time, whichever threads they come
/// from; they do not wait for work on the device.
pub struct CudaDriver {
    pub(super) device: Device,
    pub(super) ordinal: CUdevice,
    pub(super) properties: Properties,
    context: PrimaryContext,
    pub(super) granularity: u64,
    /// The driver's stream priorities for [`Priority::ALL`].
    pub(super) priorities: [c_int; Priority::ALL.len()],
    pub(super) space: Mutex<AddressSpace>,
    /// The sizes in bytes of segments, which are allocations with an address of their own.
    pub(super) segments: Handles<u64>,
    /// The number of times that memory of another process is open, by its address.
    pub(super) opened: Mutex<BTreeMap<Address, usize>>,
    pub(super) streams: Handles<StreamOwner>,
    /// The number of kernels that each graph launches.
    pub(super) graphs: Handles<usize>,
    pub(super) timings: Timings,
    pub(super) launches: LaunchRegistry,
    pub(super) kernels: Kernels,
    pub(super) blas: OnceLock<Blas>,
    pub(super) dnn: OnceLock<Dnn>,
    /// The error by which the context was lost.
    lost: OnceLock<Arc<CallError>>,
}

/// The events of all devices, because a stream of one device may wait for an event of another.
pub(super) static EVENTS: LazyLock<Handles<EventKind>> = LazyLock::new(Handles::new);

/// The code that destroys a stream: this driver or other code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamOwner {
    This,
    Other,
}

impl CudaDriver {
    /// Retains the primary context of a device, and creates it if it does not exist yet.
    pub(super) fn start(index: u8, ordinal: CUdevice, properties: Properties) -> Result<Self, ErrorKind> {
        let context = PrimaryContext::retain(ordinal)?;
        let bound = context.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are writable, and the thread has a context.
        check(unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) })?;
        let chunks = chunk_properties(ordinal, properties.shares_descriptors);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granularity = 0;
        // SAFETY: `granularity` is writable, `chunks` is fully initialised.
        check(unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &chunks, minimum) })?;
        let granularity = granularity as u64;
        drop(bound);
        Ok(Self {
            device: Device::cuda(index),
            ordinal,
            properties,
            context,
            granularity,
            priorities: priorities(least, greatest),
            space: Mutex::new(AddressSpace::new(granularity)),
            segments: Handles::new(),
            opened: Mutex::default(),
            streams: Handles::new(),
            graphs: Handles::new(),
            timings: Timings::default(),
            launches: LaunchRegistry::new(),
            kernels: Kernels::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            lost: OnceLock::new(),
        })
    }

    /// Returns the properties of the device.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Adopts a stream that other code created, such as PyTorch: from now on, calls accept its handle.
    /// [`destroy_stream`](crate::StreamCalls::destroy_stream) only forgets it. Nothing happens if calls accept the handle
    /// already.
    ///
    /// # Safety
    /// The stream belongs to the primary context of this device, or to a part of it (a green context), and is not
    /// destroyed before it is forgotten here.
    pub unsafe fn adopt_stream(&self, stream: StreamId) {
        self.streams.adopt(stream.0, StreamOwner::Other);
    }

    /// Returns the registry of the kernels launched last through this driver.
    pub fn launches(&self) -> &LaunchRegistry {
        &self.launches
    }

    /// Returns how many kernels a graph launches, including those of the device's libraries. `None` for an unknown
    /// graph.
    pub fn kernels_of(&self, graph: GraphId) -> Option<usize> {
        self.graphs.get(graph.0)
    }

    /// Returns the time that the driver has spent in memory calls and waits so far.
    pub fn timings(&self) -> Vec<Timing> {
        self.timings.all()
    }

    /// Makes a driver call that needs a context.
    pub(super) fn in_context<T>(
        &self,
        call: Call,
        action: impl FnOnce() -> Result<T, ErrorKind>,
    ) -> Result<T, CallError> {
        self.call(call, || {
            let _bound = self.context.bind()?;
            action()
        })
    }

    /// Makes the device's context the calling thread's while the guard lives, so that libraries of CUDA use this device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn bind_context(&self) -> Result<BoundContext, CallError> {
        self.call(Call::RetainContext, || self.context.bind())
    }

    /// Returns the driver's number of the device.
    pub(crate) fn ordinal(&self) -> CUdevice {
        self.ordinal
    }

    /// Calls a library of the device, in the device's context.
    pub(crate) fn library_call<T>(&self, call: Call, action: impl FnOnce() -> T) -> Result<T, CallError> {
        self.in_context(call, || Ok(action()))
    }

    /// Calls a library of the device with a known stream, in the device's context.
    pub(crate) fn library_call_on<T>(
        &self,
        call: Call,
        stream: StreamId,
        action: impl FnOnce(CUstream) -> T,
    ) -> Result<T, CallError> {
        self.in_context(call, || self.stream(stream).map(action))
    }

    /// Makes a driver call. Refuses it if the context is lost, or inside a host function, where it could wait for
    /// itself.
    pub(super) fn call<T>(&self, call: Call, action: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T, CallError> {
        if in_host_function() {
            return Err(CallError { call, kind: ErrorKind::CalledFromWork });
        }
        if let Some(first) = self.lost.get() {
            return Err(CallError { call, kind: ErrorKind::ContextLost(Arc::clone(first)) });
        }
        action().map_err(|kind| self.failure(call, kind))
    }

    /// Returns the error of a failed call. If it loses the context, any recent launch may have caused it, so it lists
    /// them.
    fn failure(&self, call: Call, mut kind: ErrorKind) -> CallError {
        if !kind.loses_context() {
            return CallError { call, kind };
        }
        if let ErrorKind::Device { in_flight, .. } = &mut kind {
            *in_flight = self.launches.recent(SUSPECTS);
        }
        let error = CallError { call, kind };
        self.lost.get_or_init(|| Arc::new(error.clone()));
        error
    }

    pub(super) fn context(&self) -> &PrimaryContext {
        &self.context
    }

    /// Returns the driver's handle of a known stream.
    pub(super) fn stream(&self, stream: StreamId) -> Result<CUstream, ErrorKind> {
        const PER_THREAD: u64 = 2;
        if stream.0 > PER_THREAD && self.streams.get(stream.0).is_none() {
            return Err(ErrorKind::UnknownHandle { what: "stream", handle: stream.0 });
        }
        Ok(stream.0 as CUstream)
    }

    /// Returns the driver's handle of a known event, and the event's kind.
    pub(super) fn event(&self, event: EventId) -> Result<(CUevent, EventKind), ErrorKind> {
        let kind = EVENTS.get(event.0).ok_or(ErrorKind::UnknownHandle { what: "event", handle: event.0 })?;
        Ok((event.0 as CUevent, kind))
    }

    /// Returns the driver's handle of a known event, which must be of the kind that the call needs.
    pub(super) fn event_of_kind(&self, event: EventId, needed: EventKind) -> Result<CUevent, ErrorKind> {
        let (raw, actual) = self.event(event)?;
        if actual != needed {
            return Err(ErrorKind::WrongEventKind { event: event.0, actual, needed });
        }
        Ok(raw)
    }

    /// Submits a copy or fill of `bytes` bytes to a stream, unless it is empty.
    pub(super) fn submit(
        &self,
        call: Call,
        stream: StreamId,
        bytes: u64,
        submit: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<CUstream, ErrorKind> {
        let raw = self.stream(stream)?;
        if bytes > 0 {
            check(submit(raw))?;
            if activity_log::is_on()
                && let Some(kind) = ActivityKind::of_call(call.name())
            {
                activity_log::launched(self.device, stream, kind, call.name(), bytes);
            }
        }
        Ok(raw)
    }

    /// Returns the free and total memory. Needs the context.
    pub(super) fn info(&self) -> Result<MemoryInfo, ErrorKind> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable, and the thread has the context.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Returns the error of a call that asked for `requested` bytes. If memory ran out, the error says how much was
    /// free.
    pub(super) fn refusal(&self, kind: ErrorKind, requested: u64) -> ErrorKind {
        if kind.code() != CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 {
            return kind;
        }
        let free = self.context.bind().and_then(|_bound| self.info()).map_or(0, |info| info.free);
        ErrorKind::OutOfMemory { requested, free }
    }
}

/// Returns CUDA's numbers for [`Priority::ALL`], given the device's range: the greatest priority has the lowest number.
/// A stream made without a priority has number 0, so the default is 0 here too: a lower number would put it before
/// streams of other code, a higher one after them.
fn priorities(least: c_int, greatest: c_int) -> [c_int; Priority::ALL.len()] {
    [least, 0.min(least).max(greatest), greatest]
}

/// Returns the properties of a chunk: device memory, which can be shared with other processes if the device supports
/// it.
pub(super) fn chunk_properties(ordinal: CUdevice, shares_descriptors: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if shares_descriptors {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: location(ordinal),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: AllocationFlags { compressionType: 0, gpuDirectRDMACapable: 0, usage: 0, reserved: [0; 4] },
    }
}

/// Returns the location of a device's memory.
pub(super) fn location(ordinal: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_priority_is_that_of_a_stream_made_without_one() {
        assert_eq!(priorities(0, -5), [0, 0, -5]);
        assert_eq!(priorities(2, -2), [2, 0, -2]);
        assert_eq!(priorities(0, 0), [0, 0, 0], "a device without priorities");
        assert_eq!(priorities(-1, -3), [-1, -1, -3]);
    }
}
