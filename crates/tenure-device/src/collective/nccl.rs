//! Collectives of NVIDIA devices, through NCCL.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use parking_lot::{RwLock, RwLockReadGuard};
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};

use super::{CollectiveError, Reduction};
use crate::cuda::CudaDriver;
use crate::{Call, Driver, Executor};

/// NCCL's name for a device's part in a group; none when that was ended. Whoever calls NCCL reads it meanwhile.
pub(super) struct Handle(RwLock<Option<Name>>);

#[derive(Clone, Copy)]
struct Name(ncclComm_t);

// SAFETY: a communicator may be used from any thread, from one at a time: `Communicator` is used by one rank's thread,
// and NCCL locks what is shared.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Handle {
    /// Of CUDA devices.
    pub(super) fn group(drivers: &[Arc<dyn Driver>]) -> Result<Vec<Self>, CollectiveError> {
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
        let mut handles = vec![ptr::null_mut(); numbers.len()];
        // It goes from device to device; the thread has afterwards what it had before.
        let first = cuda.first().ok_or(CollectiveError::NoGroup { devices: Vec::new() })?;
        let made = first.library_call(Call::Collective, || {
            // SAFETY: as many communicators as devices, whose list outlives the call.
            unsafe { sys::ncclCommInitAll(handles.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) }
        })?;
        check("ncclCommInitAll", made)?;
        Ok(handles.into_iter().map(|handle| Self(RwLock::new(Some(Name(handle))))).collect())
    }

    /// Keeps the communicator alive.
    fn name(&self) -> Result<(RwLockReadGuard<'_, Option<Name>>, ncclComm_t), CollectiveError> {
        // Within `together` the thread reads it already.
        let guard = self.0.read_recursive();
        let Name(name) = guard.ok_or(CollectiveError::Alone)?;
        Ok((guard, name))
    }

    pub(super) fn together(
        &self,
        driver: &CudaDriver,
        calls: impl FnOnce() -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let (_alive, _) = self.name()?;
        // SAFETY: it has no conditions; the group that it begins is the thread's, and ends below.
        let begun = driver.library_call(Call::Collective, || unsafe { sys::ncclGroupStart() })?;
        check("ncclGroupStart", begun)?;
        let made = calls();
        // SAFETY: the thread has begun a group. What was put into it are communicators that are alive.
        let ended = driver.library_call(Call::Collective, || unsafe { sys::ncclGroupEnd() })?;
        made.and(check("ncclGroupEnd", ended))
    }

    /// Nobody uses the communicator after this. What it is in the midst of is given up.
    pub(super) fn abort(&self) {
        if let Some(Name(name)) = self.0.write().take() {
            // SAFETY: the communicator is alive, and in no call.
            let _ = unsafe { sys::ncclCommAbort(name) };
        }
    }

    pub(super) fn all_reduce(
        &self,
        driver: &CudaDriver,
        address: Address,
        count: usize,
        dtype: DType,
        reduction: Reduction,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        let (_alive, name) = self.name()?;
        let (data, number) = (address as *mut _, number(dtype)?);
        let operation = match reduction {
            Reduction::Sum => ncclRedOp_t::ncclSum,
            Reduction::Average => ncclRedOp_t::ncclAvg,
            Reduction::Max => ncclRedOp_t::ncclMax,
        };
        let put = driver.library_call_on(Call::Collective, stream, |stream| {
            // SAFETY: the communicator is alive, and the stream known; the device checks the addresses.
            unsafe { sys::ncclAllReduce(data, data, count, number, operation, name, stream.cast()) }
        })?;
        check("ncclAllReduce", put)
    }

    pub(super) fn broadcast(
        &self,
        driver: &CudaDriver,
        address: Address,
        bytes: usize,
        root: usize,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        let (_alive, name) = self.name()?;
        let data = address as *mut _;
        let put = driver.library_call_on(Call::Collective, stream, |stream| {
            // SAFETY: as for `all_reduce`.
            unsafe {
                sys::ncclBroadcast(data, data, bytes, ncclDataType_t::ncclUint8, root as c_int, name, stream.cast())
            }
        })?;
        check("ncclBroadcast", put)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.abort();
    }
}

fn number(dtype: DType) -> Result<ncclDataType_t, CollectiveError> {
    Ok(match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::Bool | DType::I16 => return Err(CollectiveError::DType(dtype)),
    })
}

fn check(call: &'static str, result: ncclResult_t) -> Result<(), CollectiveError> {
    if result == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    let words = |text: *const std::ffi::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: NCCL's texts end with a zero, and stay.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    // SAFETY: any result may be asked for, and the communicator left out.
    let (what, detail) =
        unsafe { (words(sys::ncclGetErrorString(result)), words(sys::ncclGetLastError(ptr::null_mut()))) };
    let reason = if detail.is_empty() { what } else { format!("{what} ({detail})") };
    Err(CollectiveError::Failed { call, reason })
}
