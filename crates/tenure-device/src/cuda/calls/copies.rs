//! The driver calls of a CUDA device for copies and fills, and for pinned host memory.

use cudarc::driver::sys::{self, CUresult, CUstream};
use tenure_alloc::Address;
use tenure_core::StreamId;

use crate::cuda::CudaDriver;
use crate::cuda::capture::RelaxedCapture;
use crate::cuda::error::check;
use crate::driver::CopyCalls;
use crate::{AccessMode, Call, CallError, ErrorKind};

impl CudaDriver {
    /// Puts a copy or fill of `bytes` bytes on `stream`.
    fn put(
        &self,
        call: Call,
        stream: StreamId,
        bytes: u64,
        copy: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<(), CallError> {
        self.in_context(call, || self.submit(call, stream, bytes, copy).map(drop))
    }

    /// Puts a copy of `bytes` bytes on `stream`, and blocks the host until it is done.
    fn put_and_wait(
        &self,
        call: Call,
        stream: StreamId,
        bytes: u64,
        copy: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<(), CallError> {
        self.in_context(call, || {
            let stream = self.submit(call, stream, bytes, copy)?;
            // SAFETY: the stream is known.
            self.timings.time(call, 1, bytes, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }
}

impl CopyCalls for CudaDriver {
    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.in_context(Call::RegisterHost, || {
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            let flags = match access {
                AccessMode::Read => flags | sys::CU_MEMHOSTREGISTER_READ_ONLY,
                AccessMode::ReadWrite => flags,
            };
            let _relaxed = RelaxedCapture::enter()?;
            // SAFETY: the caller keeps the range mapped.
            check(unsafe { sys::cuMemHostRegister_v2(address.cast(), bytes as usize, flags) })
        })
    }

    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError> {
        self.in_context(Call::HostOnDevice, || {
            let mut found = 0;
            // SAFETY: the driver looks the address up, and writes only to `found`.
            check(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut found, address.cast_mut().cast(), 0) })?;
            Ok(found)
        })
    }

    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError> {
        self.in_context(Call::UnregisterHost, || {
            let _relaxed = RelaxedCapture::enter()?;
            // SAFETY: the driver looks the address up, and refuses one that was not registered.
            let code = unsafe { sys::cuMemHostUnregister(address.cast()) };
            if code == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED {
                return Err(ErrorKind::HostNotRegistered(address as u64));
            }
            check(code)
        })
    }

    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError> {
        self.put_and_wait(Call::CopyToDevice, stream, source.len() as u64, |stream| {
            // SAFETY: `source` outlives the copy, because this function waits for it; the driver checks the
            // address.
            unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), source.len(), stream) }
        })
    }

    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError> {
        self.put_and_wait(Call::CopyFromDevice, stream, target.len() as u64, |stream| {
            // SAFETY: `target` outlives the copy, because this function waits for it; the driver checks the
            // address.
            unsafe { sys::cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), source, target.len(), stream) }
        })
    }

    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.put(Call::CopyToDeviceAsync, stream, bytes, |stream| {
            // SAFETY: the caller keeps the source until the stream has completed the copy.
            unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes as usize, stream) }
        })
    }

    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.put(Call::CopyFromDeviceAsync, stream, bytes, |stream| {
            // SAFETY: the caller does not touch the target until the stream has completed the copy.
            unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes as usize, stream) }
        })
    }

    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.put(Call::CopyOnDevice, stream, bytes, |stream| {
            // SAFETY: both are device addresses, which the driver checks.
            unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, stream) }
        })
    }

    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.put(Call::Memset, stream, bytes, |stream| {
            // SAFETY: the target is a device address, which the driver checks.
            unsafe { sys::cuMemsetD8Async(target, value, bytes as usize, stream) }
        })
    }
}
