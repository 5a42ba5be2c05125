//! Kernels of other programs: sources with any number of kernels, compiled for a device and launched by name.

use std::ffi::{c_int, c_void};
use std::str;

use cudarc::driver::sys::{self, CUfunction_attribute};
use tenure_core::StreamId;

use super::CudaDriver;
use super::error::check;
use super::kernel::{Function, KernelModule, LaunchConfig};
use super::kernels::{read_whole, write_whole};
use super::nvrtc::{self, CompileError, KernelImage, ProgramSource};
use crate::{Call, CallError, Launch, cache};

/// The subfolder of the cache that holds compiled sources.
const KIND: &str = "programs";

/// Shared memory in bytes that every kernel may ask for. More must be allowed for each kernel.
const SHARED_BYTES: u32 = 48 << 10;

/// A compiled source.
#[derive(Clone)]
pub struct ProgramImage {
    image: KernelImage,
    /// The symbol of the kernel that the expression names, if the source was compiled with one.
    symbol: String,
}

/// A kernel that a device has loaded, with its limits.
#[derive(Clone, Debug)]
pub struct ProgramKernel {
    function: Function,
    /// The largest number of threads in a block.
    pub most_threads: u32,
    /// The sizes in bytes of the parameters; `None` if the driver is too old to say.
    pub parameters: Option<Vec<usize>>,
}

impl ProgramSource {
    /// Compiles the source for devices of a compute capability, or finds it in the cache. The image also has the kernel
    /// that the C++ expression `expression` names, such as `scale<float>`.
    ///
    /// # Errors
    /// There is no NVRTC, or the source or the expression is wrong.
    pub fn compile(
        &self,
        expression: Option<&str>,
        compute_capability: (u32, u32),
    ) -> Result<ProgramImage, CompileError> {
        let (major, minor) = compute_capability;
        let cached = cache::folder(KIND).map(|folder| {
            let version = nvrtc::version();
            let architecture = format!("sm_{major}{minor}");
            let fixed = [&self.name, &self.text, expression.unwrap_or_default(), &architecture, &version];
            folder.join(cache::digest(fixed.into_iter().chain(self.options.iter().map(String::as_str))) + ".cubin")
        });
        if let Some(image) = cached.as_ref().and_then(|path| ProgramImage::from_bytes(read_whole(path)?)) {
            return Ok(image);
        }
        let (image, symbol) = nvrtc::compile_named(self, expression, compute_capability)?;
        let image = ProgramImage { image, symbol };
        // An image that could not be written is compiled again the next time.
        let _ = cached.map(|path| write_whole(&path, &image.to_bytes()));
        Ok(image)
    }

    /// Checks the source with the compiler's front end, for devices of any kind.
    ///
    /// # Errors
    /// There is no NVRTC, or the source is wrong.
    pub fn check(&self) -> Result<(), CompileError> {
        nvrtc::check_named(self)
    }
}

impl ProgramImage {
    /// Returns the symbol of the kernel that the expression names; empty if there was none.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns the symbols of all kernels: the names of `extern "C"` kernels, and mangled names of others.
    pub fn kernels(&self) -> Vec<String> {
        // Each kernel has a section with its parameters, and no other function has.
        let sections = section_names(self.image.as_bytes()).unwrap_or_default();
        sections.iter().filter_map(|name| name.strip_prefix(".nv.constant0.")).map(str::to_owned).collect()
    }

    fn to_bytes(&self) -> Vec<u8> {
        let length = self.symbol.len() as u32;
        [&length.to_le_bytes(), self.symbol.as_bytes(), self.image.as_bytes()].concat()
    }

    fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (symbol, image) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let symbol = str::from_utf8(symbol).ok()?.to_owned();
        Some(Self { image: KernelImage::from_bytes(image.to_vec()), symbol })
    }
}

/// Returns the names of the sections of a 64-bit ELF file; `None` if it is none.
fn section_names(elf: &[u8]) -> Option<Vec<&str>> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let bytes = elf.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (table, width) = (number(0x28, 8)?, number(0x3a, 2)?);
    let (count, names) = (number(0x3c, 2)?, number(0x3e, 2)?);
    let text = number(table + names * width + 0x18, 8)?;
    let name = |section: usize| {
        let from = elf.get(text + number(table + section * width, 4)?..)?;
        str::from_utf8(from.split(|byte| *byte == 0).next()?).ok()
    };
    (0..count).map(name).collect()
}

impl CudaDriver {
    /// Loads a program's image onto the device.
    ///
    /// # Errors
    /// The driver's error: the image is for another kind of device, or there is no memory for it.
    pub fn load_program(&self, image: &ProgramImage) -> Result<KernelModule, CallError> {
        self.load_module(&image.image)
    }

    /// Returns the kernel with that symbol. Errors that turn up later call it `name`.
    ///
    /// # Errors
    /// The module has no kernel of that symbol.
    pub fn program_kernel(
        &self,
        module: KernelModule,
        symbol: &str,
        name: &'static str,
    ) -> Result<ProgramKernel, CallError> {
        let function = self.function_called(module, symbol, name)?;
        self.in_context(Call::Function, || {
            let mut threads: c_int = 0;
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
            // SAFETY: `threads` is writable, and the function is never unloaded.
            check(unsafe { sys::cuFuncGetAttribute(&mut threads, attribute, function.raw()) })?;
            let parameters = parameters(function);
            Ok(ProgramKernel { function, most_threads: threads as u32, parameters })
        })
    }

    /// Launches a kernel of a program on `stream`, as [`launch`](Self::launch) does, with any size of shared memory that
    /// the device has.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    #[track_caller]
    pub unsafe fn launch_program(
        &self,
        kernel: &ProgramKernel,
        config: LaunchConfig,
        stream: StreamId,
        arguments: &mut [*mut c_void],
    ) -> Result<Launch, CallError> {
        if config.shared_bytes > SHARED_BYTES {
            self.in_context(Call::Launch, || {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is never unloaded.
                check(unsafe {
                    sys::cuFuncSetAttribute(kernel.function.raw(), attribute, config.shared_bytes as c_int)
                })
            })?;
        }
        // SAFETY: by the function's contract.
        unsafe { self.launch(kernel.function, config, stream, arguments) }
    }
}

/// Returns the sizes of a kernel's parameters; `None` if the driver is too old to say. Needs the context.
fn parameters(function: Function) -> Option<Vec<usize>> {
    /// The first driver with `cuFuncGetParamInfo`.
    const NEEDED: c_int = 12_040;
    let mut version = 0;
    // SAFETY: `version` is writable.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }).ok().filter(|()| version >= NEEDED)?;
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: both are writable, and the function is never unloaded. An index after the last is an error.
        let found = unsafe { sys::cuFuncGetParamInfo(function.raw(), sizes.len(), &mut offset, &mut bytes) };
        if check(found).is_err() {
            return Some(sizes);
        }
        sizes.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SOURCE: &str = r#"#include "values.h"
        extern "C" __global__ void fill(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = VALUE; }
        extern "C" __global__ void nothing() {}
        __device__ __noinline__ float helper(float x) { return x * 2; }
        template <typename T> __global__ void twice(T* out) { out[0] = helper(out[0]); }
    "#;

    /// Compiles for an H200. Returns `None` on a machine without the compiler.
    fn compile_here(text: &str, expression: Option<&str>) -> Option<Result<ProgramImage, CompileError>> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("values.h"), "#define VALUE 1.0f\n").unwrap();
        let options = vec![format!("-I{}", folder.path().display())];
        let source = ProgramSource { name: "program.cu".into(), text: text.into(), options };
        let (image, symbol) = match nvrtc::compile_named(&source, expression, (9, 0)) {
            Err(CompileError::NoCompiler) => {
                eprintln!("skipped: NVRTC was not found");
                return None;
            }
            Err(error) => return Some(Err(error)),
            Ok(compiled) => compiled,
        };
        Some(Ok(ProgramImage { image, symbol }))
    }

    #[test]
    fn an_image_names_its_kernels() {
        let Some(image) = compile_here(SOURCE, None) else { return };
        let image = image.unwrap();
        let mut kernels = image.kernels();
        kernels.sort();
        assert_eq!((kernels.as_slice(), image.symbol()), (&["fill".to_owned(), "nothing".to_owned()][..], ""));
    }

    #[test]
    fn an_expression_names_a_kernel_of_a_template() {
        let Some(image) = compile_here(SOURCE, Some("twice<float>")) else { return };
        let image = image.unwrap();
        assert_eq!(image.symbol(), "_Z5twiceIfEvPT_");
        assert!(image.kernels().iter().any(|kernel| kernel == image.symbol()), "{:?}", image.kernels());
        let same = ProgramImage::from_bytes(image.to_bytes()).unwrap();
        assert_eq!((same.symbol(), same.kernels()), (image.symbol(), image.kernels()));
    }

    #[test]
    fn a_mistake_is_one_line_and_an_unknown_name_is_told_apart() {
        let Some(result) = compile_here(&SOURCE.replace("VALUE", "WRONG"), None) else { return };
        let error = result.err().unwrap();
        assert_eq!(error.first_line(), r#"program.cu(2): error: identifier "WRONG" is undefined"#);
        assert!(!error.is_unknown_name());
        for name in ["missing", "twice<missing>", "missing<float>"] {
            assert!(compile_here(SOURCE, Some(name)).unwrap().err().unwrap().is_unknown_name(), "{name}");
        }
    }

    #[test]
    fn an_invalid_image_has_no_kernels() {
        for bytes in [&[][..], &[0; 10], b"\x7fELF"] {
            assert_eq!(section_names(bytes), None);
        }
        assert!(ProgramImage::from_bytes(vec![9, 0, 0, 0, 1]).is_none());
    }
}
