//! Kernels compiled from source, through NVRTC.

use std::ffi::{CStr, CString, NulError, c_char};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys::{self, nvrtcProgram};

use super::interrupts::KeptInterrupts;

/// A source file in CUDA C++.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSource {
    /// The file's name, which the compiler's messages show.
    pub name: String,
    /// The text.
    pub text: String,
    /// NVRTC's options, such as `-DROWS=4`, without the architecture.
    pub options: Vec<String>,
}

/// The machine code of one or several kernels, for one kind of device.
#[derive(Clone)]
pub struct KernelImage(Vec<u8>);

/// The reason why a kernel was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC could not be loaded.
    #[error(
        "NVRTC was not found (libnvrtc.so, or libnvrtc.so.12 or 13): put its folder into LD_LIBRARY_PATH; the Python \
         package `nvidia-cuda-nvrtc` and the CUDA toolkit have it"
    )]
    NoCompiler,
    /// The source or an option is wrong.
    #[error("{name}:\n{log}")]
    Failed {
        /// NVRTC's name for the failure.
        name: String,
        /// NVRTC's log, line by line.
        log: String,
    },
    /// The source or an option contains a zero byte.
    #[error("the source or an option contains a zero byte: {0}")]
    ZeroByte(#[from] NulError),
}

impl CompileError {
    /// Returns the first error in one line, with the file and the line that the compiler names.
    pub fn first_line(&self) -> String {
        match self {
            Self::Failed { name, log } => {
                let error = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().next());
                error.unwrap_or(name).to_owned()
            }
            other => other.to_string(),
        }
    }

    /// Returns whether the source has nothing that the expression names.
    pub fn is_unknown_name(&self) -> bool {
        self.first_line().starts_with("__nv_name_map(")
    }
}

/// Compiles CUDA C++ for devices of `compute_capability`.
pub(super) fn compile(
    source: &str,
    compute_capability: (u32, u32),
    options: &[&str],
) -> Result<KernelImage, CompileError> {
    let program = compile_program(source, None, "sm", compute_capability, options)?;
    program.image().map(KernelImage).map_err(without_log)
}

/// Checks CUDA C++ with the compiler's front end.
pub(super) fn check(source: &str, compute_capability: (u32, u32), options: &[&str]) -> Result<(), CompileError> {
    let options = [options, &["-fdevice-syntax-only"]].concat();
    compile_program(source, None, "compute", compute_capability, &options).map(drop)
}

/// Compiles a program's source for devices of `compute_capability`. Returns the symbol of the kernel that `expression`
/// names too; empty without an expression.
pub(super) fn compile_named(
    source: &ProgramSource,
    expression: Option<&str>,
    compute_capability: (u32, u32),
) -> Result<(KernelImage, String), CompileError> {
    let ProgramSource { name, text, options } = source;
    let expression = expression.map(CString::new).transpose()?;
    let names = Names { file: CString::new(name.as_str())?, expression };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let program = compile_program(text, Some(&names), "sm", compute_capability, &options)?;
    let symbol =
        names.expression.map_or(Ok(String::new()), |expression| program.symbol(&expression)).map_err(without_log)?;
    Ok((KernelImage(program.image().map_err(without_log)?), symbol))
}

/// Checks a program's source with the compiler's front end.
pub(super) fn check_named(source: &ProgramSource) -> Result<(), CompileError> {
    // One that has the functions of most devices.
    const DEVICE: (u32, u32) = (9, 0);
    let names = Names { file: CString::new(source.name.as_str())?, expression: None };
    let options: Vec<&str> = source.options.iter().map(String::as_str).chain(["-fdevice-syntax-only"]).collect();
    compile_program(&source.text, Some(&names), "compute", DEVICE, &options).map(drop)
}

/// Names in a program.
struct Names {
    file: CString,
    /// An expression that names a kernel.
    expression: Option<CString>,
}

/// Compiles CUDA C++ for an architecture, real (`sm`) or virtual (`compute`).
fn compile_program(
    source: &str,
    names: Option<&Names>,
    architecture: &str,
    (major, minor): (u32, u32),
    options: &[&str],
) -> Result<Program, CompileError> {
    let source = CString::new(source)?;
    let mut texts = vec![CString::new(format!("--gpu-architecture={architecture}_{major}{minor}"))?];
    for &option in options {
        texts.push(CString::new(option)?);
    }
    // SAFETY: loading a library runs its initialisers; this one is NVIDIA's compiler.
    if !unsafe { sys::is_culib_present() } {
        return Err(CompileError::NoCompiler);
    }
    let program = Program::new(&source, names)?;
    program.compile(&texts)?;
    Ok(program)
}

/// Returns the compiler's version; empty if there is no compiler.
pub(super) fn version() -> String {
    // SAFETY: loading a library runs its initialisers; this one is NVIDIA's compiler.
    if !unsafe { sys::is_culib_present() } {
        return String::new();
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are writable.
    let found = unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result();
    found.map_or_else(|_| String::new(), |()| format!("{major}.{minor}"))
}

impl KernelImage {
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A program of NVRTC.
struct Program(nvrtcProgram);

impl Program {
    fn new(source: &CStr, names: Option<&Names>) -> Result<Self, CompileError> {
        let program = result::create_program(source, names.map(|names| &*names.file)).map(Self).map_err(without_log)?;
        if let Some(expression) = names.and_then(|names| names.expression.as_ref()) {
            // SAFETY: the program is alive and not compiled yet, and the expression ends with a zero.
            unsafe { sys::nvrtcAddNameExpression(program.0, expression.as_ptr()) }.result().map_err(without_log)?;
        }
        Ok(program)
    }

    fn compile(&self, options: &[CString]) -> Result<(), CompileError> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let _interrupts = KeptInterrupts::new();
        // SAFETY: the program is alive, and `options` points to that many texts, which outlive the call.
        let compiled = unsafe { sys::nvrtcCompileProgram(self.0, options.len() as i32, options.as_ptr()) };
        compiled.result().map_err(|error| failed(error, self.log()))
    }

    fn image(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is alive and compiled for a real device, `bytes` is writable.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) }.result()?;
        let mut image = vec![0; bytes];
        // SAFETY: `image` has as many bytes as the compiler asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()) }.result()?;
        Ok(image)
    }

    /// Returns the symbol of the kernel that an expression names, which the program was compiled with.
    fn symbol(&self, expression: &CStr) -> Result<String, NvrtcError> {
        let mut symbol = std::ptr::null();
        // SAFETY: the program is alive and compiled, and `symbol` is writable.
        unsafe { sys::nvrtcGetLoweredName(self.0, expression.as_ptr(), &mut symbol) }.result()?;
        // SAFETY: a C string of the program.
        Ok(unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned())
    }

    /// Returns the compiler's log; empty if there is none.
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive, and is not used after this.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Returns the error of a call other than the compilation itself.
fn without_log(error: NvrtcError) -> CompileError {
    failed(error, String::new())
}

fn failed(error: NvrtcError, log: String) -> CompileError {
    CompileError::Failed { name: format!("{:?}", error.0), log }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILL: &str = r#"extern "C" __global__ void fill(float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 1.0f;
    }"#;

    /// Compiles for an H200. Returns `None` on a machine without the compiler.
    fn compile_here(source: &str) -> Option<Result<KernelImage, CompileError>> {
        match compile(source, (9, 0), &["--std=c++17"]) {
            Err(CompileError::NoCompiler) => {
                eprintln!("skipped: NVRTC was not found");
                None
            }
            result => Some(result),
        }
    }

    #[test]
    fn a_kernel_becomes_an_elf_image() {
        let Some(image) = compile_here(FILL) else { return };
        assert!(image.unwrap().as_bytes().starts_with(b"\x7fELF"));
    }

    #[test]
    fn a_mistake_is_shown_with_its_line() {
        let Some(result) = compile_here(&FILL.replace("1.0f", "x")) else { return };
        let error = result.err().unwrap().to_string();
        assert!(error.starts_with("NVRTC_ERROR_COMPILATION:\n"), "{error}");
        assert!(error.contains("(3): error: identifier \"x\" is undefined"), "{error}");
    }

    #[test]
    fn the_front_end_finds_mistakes() {
        let check = |source: &str| check(source, (9, 0), &["--std=c++17"]);
        match check(FILL) {
            Err(CompileError::NoCompiler) => return eprintln!("skipped: NVRTC was not found"),
            checked => checked.unwrap(),
        }
        let error = check(&FILL.replace("1.0f", "x")).unwrap_err().to_string();
        assert!(error.contains("(3): error: identifier \"x\" is undefined"), "{error}");
        let template = "template <typename T> __device__ int size(T x) { return x.size; }\n";
        let error = check(&format!("{template}{}", FILL.replace("1.0f", "size(1)"))).unwrap_err().to_string();
        assert!(error.contains("must have class"), "{error}");
    }

    #[test]
    fn a_zero_byte_is_refused() {
        assert!(matches!(compile("a\0b", (9, 0), &[]), Err(CompileError::ZeroByte(_))));
        assert!(matches!(compile("", (9, 0), &["a\0b"]), Err(CompileError::ZeroByte(_))));
    }
}
