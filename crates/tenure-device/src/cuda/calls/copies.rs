//! The driver calls of a CUDA device for copies and fills, and for pinned host memory.

use cudarc::driver::sys::{self, CUresult};
use tenure_alloc::Address;
use tenure_core::StreamId;

use crate::cuda::CudaDriver;
use crate::cuda::capture::RelaxedCapture;
use crate::cuda::error::check;
use crate::driver::CopyCalls;
use crate::{AccessMode, Call, CallError, ErrorKind};

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
            // SAFETY: the driver looks the address up, and refuses one that was not registered.
            let code = unsafe { sys::cuMemHostUnregister(address.cast()) };
            if code == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED {
                return Err(ErrorKind::HostNotRegistered(address as u64));
            }
            check(code)
        })
    }

    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyToDevice, || {
            let stream = self.submit(Call::CopyToDevice, stream, source.len() as u64, |stream| {
                // SAFETY: `source` outlives the copy, because this function waits for it below; the driver checks the
                // address.
                unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), source.len(), stream) }
            })?;
            // SAFETY: the stream is known.
            self.timings
                .time(Call::CopyToDevice, 1, source.len() as u64, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyFromDevice, || {
            let stream = self.submit(Call::CopyFromDevice, stream, target.len() as u64, |stream| {
                // SAFETY: `target` outlives the copy, because this function waits for it below; the driver checks the
                // address.
                unsafe { sys::cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), source, target.len(), stream) }
            })?;
            // SAFETY: the stream is known.
            self.timings
                .time(Call::CopyFromDevice, 1, target.len() as u64, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.in_context(Call::CopyToDeviceAsync, || {
            self.submit(Call::CopyToDeviceAsync, stream, bytes, |stream| {
                // SAFETY: the caller keeps the source until the stream has completed the copy.
                unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.in_context(Call::CopyFromDeviceAsync, || {
            self.submit(Call::CopyFromDeviceAsync, stream, bytes, |stream| {
                // SAFETY: the caller does not touch the target until the stream has completed the copy.
                unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyOnDevice, || {
            self.submit(Call::CopyOnDevice, stream, bytes, |stream| {
                // SAFETY: both are device addresses, which the driver checks.
                unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::Memset, || {
            self.submit(Call::Memset, stream, bytes, |stream| {
                // SAFETY: the target is a device address, which the driver checks.
                unsafe { sys::cuMemsetD8Async(target, value, bytes as usize, stream) }
            })
            .map(drop)
        })
    }
}
