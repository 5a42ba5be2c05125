use std::ffi::{CString, c_void};
use std::panic::Location;
use std::ptr;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use tenure_core::StreamId;

use super::CudaDriver;
use super::error::check;
use super::nvrtc::{self, CompileError, Image};
use crate::{Call, CallError, ErrorKind, Launch};

/// Kernels that a device has loaded. They stay until the process ends, so that no running kernel can lose its code.
#[derive(Clone, Copy, Debug)]
pub struct Module(CUmodule);

// SAFETY: a module is a name, valid until the process ends; the driver guards what is behind it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a [`Module`].
#[derive(Clone, Copy, Debug)]
pub struct Function {
    raw: CUfunction,
    name: &'static str,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How many threads a kernel runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Shared memory of a block beside what the kernel declares, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// At least `threads` threads side by side, in blocks of 256.
    pub fn linear(threads: u32) -> Self {
        Self { grid: [threads.div_ceil(256).max(1), 1, 1], block: [256, 1, 1], shared_bytes: 0 }
    }
}

impl CudaDriver {
    /// Compiles CUDA C++ for this device. `options` are NVRTC's; the architecture is chosen here.
    ///
    /// # Errors
    /// There is no NVRTC, or the source is wrong: the error shows the compiler's log.
    pub fn compile(&self, source: &str, options: &[&str]) -> Result<Image, CompileError> {
        nvrtc::compile(source, self.properties().compute_capability, options)
    }

    /// Loads an image onto the device.
    ///
    /// # Errors
    /// The driver's: the image is for another kind of device, or there is no memory for it.
    pub fn load_module(&self, image: &Image) -> Result<Module, CallError> {
        self.in_context(Call::LoadModule, || {
            let mut module = ptr::null_mut();
            // SAFETY: `module` is writable, and the image is one that the compiler made, whole.
            check(unsafe { sys::cuModuleLoadData(&mut module, image.as_bytes().as_ptr().cast()) })?;
            Ok(Module(module))
        })
    }

    /// The kernel called `name`: the name as it is written for an `extern "C"` kernel, the mangled one for others.
    ///
    /// # Errors
    /// The module has no kernel of that name.
    pub fn function(&self, module: Module, name: &'static str) -> Result<Function, CallError> {
        self.function_called(module, name, name)
    }

    /// The kernel of that symbol, under another name in errors.
    pub(super) fn function_called(
        &self,
        module: Module,
        symbol: &str,
        name: &'static str,
    ) -> Result<Function, CallError> {
        self.in_context(Call::Function, || {
            let unknown = ErrorKind::UnknownHandle { what: "kernel", handle: 0 };
            let text = CString::new(symbol).map_err(|_| unknown)?;
            let mut raw = ptr::null_mut();
            // SAFETY: `raw` is writable, the module is loaded for good, and `text` ends with a zero.
            check(unsafe { sys::cuModuleGetFunction(&mut raw, module.0, text.as_ptr()) })?;
            Ok(Function { raw, name })
        })
    }

    /// Puts a kernel on `stream`, and notes it as launched from the caller's place, for the errors that may come later:
    /// [`check_launch`](crate::check_launch) takes what it returns.
    ///
    /// # Errors
    /// The stream does not exist, or the driver refuses the size of the launch, which is then not noted. What the
    /// kernel does wrong comes up in a later call, or here if `CUDA_LAUNCH_BLOCKING=1` is in the environment: so a
    /// launch that fails with the loss of the context stays noted.
    ///
    /// # Safety
    /// `arguments` are pointers to as many values as the kernel has parameters, of their types. What the kernel reads and
    /// writes stays there until the stream has passed it, and nothing else touches it unordered.
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
            // Before the launch: the kernel may fail before this thread goes on.
            let number = self.launches.record(function.name, stream, grid, block, at);
            // SAFETY: the function is loaded for good, the stream is known, and the caller answers for the arguments.
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
            let (grid, block) = (Some(grid), Some(block));
            Ok(Launch { name: function.name, stream, number, grid, block, at: Some(at) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_launch_covers_its_threads_with_whole_blocks() {
        let blocks = |threads| LaunchConfig::linear(threads).grid[0];
        assert_eq!([0, 1, 256, 257, 1 << 20].map(blocks), [1, 1, 1, 2, 4096]);
    }
}
