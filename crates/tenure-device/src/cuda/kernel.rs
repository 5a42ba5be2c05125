//! Kernels of a CUDA device: compiling, loading and launching them.

use std::ffi::{CString, c_void};
use std::panic::Location;
use std::ptr;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use tenure_core::StreamId;

use super::CudaDriver;
use super::error::check;
use super::nvrtc::{self, CompileError, KernelImage};
use crate::activity_log::{self, ActivityKind};
use crate::{Call, CallError, ErrorKind, Launch};

/// Kernels that a device has loaded. They stay loaded until the process ends, so that no running kernel can lose its
/// code.
#[derive(Clone, Copy, Debug)]
pub struct KernelModule(CUmodule);

// SAFETY: a module is a handle, valid until the process ends; the driver synchronises access to what it refers to.
unsafe impl Send for KernelModule {}
// SAFETY: see `Send`.
unsafe impl Sync for KernelModule {}

/// A kernel of a [`KernelModule`].
#[derive(Clone, Copy, Debug)]
pub struct Function {
    raw: CUfunction,
    name: &'static str,
}

// SAFETY: see `KernelModule`.
unsafe impl Send for Function {}
// SAFETY: see `KernelModule`.
unsafe impl Sync for Function {}

impl Function {
    pub(super) fn raw(self) -> CUfunction {
        self.raw
    }
}

/// The number of blocks and threads that run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The number of blocks in each direction.
    pub grid: [u32; 3],
    /// The number of threads of a block in each direction.
    pub block: [u32; 3],
    /// Shared memory of a block, in bytes, in addition to what the kernel declares.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Returns a launch of at least `threads` threads in one dimension, in blocks of 256.
    pub fn linear(threads: u32) -> Self {
        Self { grid: [threads.div_ceil(256).max(1), 1, 1], block: [256, 1, 1], shared_bytes: 0 }
    }
}

impl CudaDriver {
    /// Compiles CUDA C++ for this device. `options` are NVRTC's options; this function adds the architecture.
    ///
    /// # Errors
    /// There is no NVRTC, or the source is wrong: the error shows the compiler's log.
    pub fn compile(&self, source: &str, options: &[&str]) -> Result<KernelImage, CompileError> {
        nvrtc::compile(source, self.properties().compute_capability, options)
    }

    /// Loads an image onto the device.
    ///
    /// # Errors
    /// The driver's error: the image is for another kind of device, or there is no memory for it.
    pub fn load_module(&self, image: &KernelImage) -> Result<KernelModule, CallError> {
        self.in_context(Call::LoadModule, || {
            let mut module = ptr::null_mut();
            // SAFETY: `module` is writable, and the image is a complete one that the compiler made.
            check(unsafe { sys::cuModuleLoadData(&mut module, image.as_bytes().as_ptr().cast()) })?;
            Ok(KernelModule(module))
        })
    }

    /// Returns the kernel called `name`: the name in the source for an `extern "C"` kernel, the mangled name otherwise.
    ///
    /// # Errors
    /// The module has no kernel of that name.
    pub fn function(&self, module: KernelModule, name: &'static str) -> Result<Function, CallError> {
        self.function_called(module, name, name)
    }

    /// Returns the kernel with that symbol. Errors call it `name`.
    pub(super) fn function_called(
        &self,
        module: KernelModule,
        symbol: &str,
        name: &'static str,
    ) -> Result<Function, CallError> {
        self.in_context(Call::Function, || {
            let unknown = ErrorKind::UnknownHandle { what: "kernel", handle: 0 };
            let text = CString::new(symbol).map_err(|_| unknown)?;
            let mut raw = ptr::null_mut();
            // SAFETY: `raw` is writable, the module is never unloaded, and `text` ends with a zero.
            check(unsafe { sys::cuModuleGetFunction(&mut raw, module.0, text.as_ptr()) })?;
            Ok(Function { raw, name })
        })
    }

    /// Launches a kernel on `stream`. Records the launch with the caller's source location, for errors that may come
    /// later. [`check_launch`](crate::check_launch) takes the returned value.
    ///
    /// # Errors
    /// The stream does not exist, or the driver refuses the size of the launch, which is then not recorded. A fault
    /// inside the kernel is reported by a later call, or by this one if `CUDA_LAUNCH_BLOCKING=1` is in the environment.
    /// A launch that fails with the loss of the context therefore stays recorded.
    ///
    /// # Safety
    /// `arguments` are pointers to as many values as the kernel has parameters, of the parameters' types. Memory that
    /// the kernel reads and writes stays valid until the stream has completed the kernel, and is not accessed without
    /// ordering by other work.
    #[track_caller]
    pub unsafe fn launch(
        &self,
        function: Function,
        config: LaunchConfig,
        stream: StreamId,
        arguments: &mut [*mut c_void],
    ) -> Result<Launch, CallError> {
        let at = Location::caller();
        self.in_context(Call::Launch, || {
            let raw = self.stream(stream)?;
            let LaunchConfig { grid, block, shared_bytes } = config;
            // Record before the launch: the kernel may fail before this thread continues.
            let number = self.launches.record(function.name, stream, grid, block, at);
            // SAFETY: the function is never unloaded, the stream is known, and the caller guarantees the arguments.
            let launched = check(unsafe {
                sys::cuLaunchKernel(
                    function.raw,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shared_bytes,
                    raw,
                    arguments.as_mut_ptr(),
                    ptr::null_mut(),
                )
            });
            launched.inspect_err(|kind| {
                if !kind.loses_context() {
                    self.launches.withdraw(number);
                }
            })?;
            if activity_log::is_on() {
                activity_log::launched(self.device, stream, ActivityKind::Kernel, function.name, 0);
            }
            let grid = Some(grid);
            let block = Some(block);
            Ok(Launch { name: function.name, stream, number, grid, block, at: Some(at) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_launch_covers_its_threads_with_whole_blocks() {
        assert_eq!([0, 1, 256, 257, 1 << 20].map(|threads| LaunchConfig::linear(threads).grid[0]), [1, 1, 1, 2, 4096]);
    }
}
