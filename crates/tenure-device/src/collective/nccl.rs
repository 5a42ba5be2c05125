//! Collectives of NVIDIA devices, through NCCL.
//!
//! # Note [Ending a group]
//!
//! A call of NCCL's may itself wait for the other devices, in particular while they first find their ways to one
//! another. If one device does not come, the call returns only when another thread calls `ncclCommAbort`. For the
//! communicators of one process, each abort but the last only tells running work to stop; the last one frees them all.
//! So the thread that ends a group first aborts the others' communicators, whatever calls they are in. Then it waits
//! until these calls have returned; no new ones begin. Last it aborts its own.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};

use super::{CollectiveError, ReduceOp};
use crate::cuda::CudaDriver;
use crate::{Call, Driver, Executor};

/// A group of devices.
pub(super) struct NcclGroup {
    /// The members, by rank.
    members: Vec<Member>,
    is_over: AtomicBool,
    /// Held by the thread that ends the group.
    ending: Mutex<()>,
}

/// A device's membership in a group.
struct Member {
    /// NCCL's communicator, which stays alive while a call runs that began before the group was over.
    communicator: ncclComm_t,
    /// A lock that each call holds for reading, so that the thread that ends the group can wait for the calls.
    calls: RwLock<()>,
}

// SAFETY: any thread may use a communicator, one at a time: one rank's thread uses its `Communicator`, and NCCL locks
// what is shared. Any other thread may abort it: see Note [Ending a group].
unsafe impl Send for Member {}
// SAFETY: see `Send`.
unsafe impl Sync for Member {}

impl NcclGroup {
    /// Creates a group of CUDA devices.
    pub(super) fn new(drivers: &[Arc<dyn Driver>]) -> Result<Self, CollectiveError> {
        // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(CollectiveError::NoLibrary);
        }
        let cuda = drivers.iter().filter_map(|driver| match driver.executor() {
            Executor::Cuda(driver) => Some(driver),
            Executor::Sim(_) => None,
        });
        let cuda: Vec<&CudaDriver> = cuda.collect();
        let numbers: Vec<c_int> = cuda.iter().map(|driver| driver.ordinal()).collect();
        let mut communicators = vec![ptr::null_mut(); numbers.len()];
        // The call switches from device to device; afterwards the thread has its previous current device.
        let first = cuda.first().ok_or(CollectiveError::NoGroup { devices: Vec::new() })?;
        let made = first.library_call(Call::Collective, || {
            // SAFETY: as many communicators as devices, whose list outlives the call.
            unsafe { sys::ncclCommInitAll(communicators.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) }
        })?;
        check("ncclCommInitAll", made)?;
        let members =
            communicators.into_iter().map(|communicator| Member { communicator, calls: RwLock::new(()) }).collect();
        Ok(Self { members, is_over: AtomicBool::new(false), ending: Mutex::new(()) })
    }

    /// Begins a call. The communicator stays alive until the returned guard is dropped.
    fn call(&self, rank: usize) -> Result<(RwLockReadGuard<'_, ()>, ncclComm_t), CollectiveError> {
        let member = &self.members[rank];
        // Within `together` the thread has the read lock already.
        let alive = member.calls.read_recursive();
        // The thread that ends the group sets this flag before it waits for the lock.
        if self.is_over.load(Ordering::Acquire) {
            Err(CollectiveError::Alone)
        } else {
            Ok((alive, member.communicator))
        }
    }

    /// Turns the result of a call into an error; one of an ended group is [`CollectiveError::Alone`].
    fn check(&self, call: &'static str, result: ncclResult_t) -> Result<(), CollectiveError> {
        check(call, result).map_err(|error| match self.is_over.load(Ordering::Acquire) {
            true => CollectiveError::Alone,
            false => error,
        })
    }

    /// Combines the collective calls that `calls` makes.
    pub(super) fn together(
        &self,
        rank: usize,
        driver: &CudaDriver,
        calls: impl FnOnce() -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let (_alive, _) = self.call(rank)?;
        // SAFETY: it has no conditions; the group that it begins is this thread's, and ends below.
        let begun = driver.library_call(Call::Collective, || unsafe { sys::ncclGroupStart() })?;
        self.check("ncclGroupStart", begun)?;
        let made = calls();
        // SAFETY: the thread has begun a group, and the communicators in it are alive.
        let ended = driver.library_call(Call::Collective, || unsafe { sys::ncclGroupEnd() })?;
        made.and(self.check("ncclGroupEnd", ended))
    }

    /// Ends the group. Aborts the running calls of the other ranks, and waits for a call of `rank`, which the caller
    /// should not have running.
    pub(super) fn end(&self, rank: usize) {
        let _ending = self.ending.lock();
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let (before, [own, after @ ..]) = self.members.split_at(rank) else { return };
        for other in before.iter().chain(after) {
            // SAFETY: the communicator is alive, aborted this once, and freed with the last.
            let _ = unsafe { sys::ncclCommAbort(other.communicator) };
        }
        for member in &self.members {
            drop(member.calls.write());
        }
        // SAFETY: as above; no communicator is in a call, nor ever will be.
        let _ = unsafe { sys::ncclCommAbort(own.communicator) };
    }

    #[expect(clippy::too_many_arguments, reason = "what is called, and who calls")]
    pub(super) fn all_reduce(
        &self,
        rank: usize,
        driver: &CudaDriver,
        address: Address,
        count: usize,
        dtype: DType,
        reduction: ReduceOp,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        let (_alive, communicator) = self.call(rank)?;
        let data = address as *mut _;
        let data_type = nccl_type(dtype)?;
        let operation = match reduction {
            ReduceOp::Sum => ncclRedOp_t::ncclSum,
            ReduceOp::Average => ncclRedOp_t::ncclAvg,
            ReduceOp::Max => ncclRedOp_t::ncclMax,
        };
        let launched = driver.library_call_on(Call::Collective, stream, |stream| {
            // SAFETY: the communicator is alive, and the stream known; the device checks the addresses.
            unsafe { sys::ncclAllReduce(data, data, count, data_type, operation, communicator, stream.cast()) }
        })?;
        self.check("ncclAllReduce", launched)
    }

    pub(super) fn broadcast(
        &self,
        rank: usize,
        driver: &CudaDriver,
        address: Address,
        bytes: usize,
        root: usize,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        let (_alive, communicator) = self.call(rank)?;
        let data = address as *mut _;
        let launched = driver.library_call_on(Call::Collective, stream, |stream| {
            // SAFETY: as for `all_reduce`.
            unsafe {
                sys::ncclBroadcast(
                    data,
                    data,
                    bytes,
                    ncclDataType_t::ncclUint8,
                    root as c_int,
                    communicator,
                    stream.cast(),
                )
            }
        })?;
        self.check("ncclBroadcast", launched)
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        self.end(0);
    }
}

/// Returns NCCL's number of an element type.
fn nccl_type(dtype: DType) -> Result<ncclDataType_t, CollectiveError> {
    Ok(match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::U64 => ncclDataType_t::ncclUint64,
        DType::Bool | DType::I16 | DType::U16 => return Err(CollectiveError::DType(dtype)),
    })
}

/// Converts the result of a call of NCCL's.
fn check(call: &'static str, result: ncclResult_t) -> Result<(), CollectiveError> {
    if result == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    let words = |text: *const std::ffi::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: NCCL's texts end with a zero, and live for ever.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    // SAFETY: the call takes any result, and may leave out the communicator.
    let (what, detail) =
        unsafe { (words(sys::ncclGetErrorString(result)), words(sys::ncclGetLastError(ptr::null_mut()))) };
    let reason = if detail.is_empty() { what } else { format!("{what} ({detail})") };
    Err(CollectiveError::Failed { call, reason })
}
