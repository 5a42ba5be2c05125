//! Kernels of the program's own: the functions that `include/tenure_cuda.h` declares and documents.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

use tenure_tensor::Tensor;
use tenure_tensor::cuda::{KernelArgument, LaunchConfig, Program, ProgramSource, StreamUse};

use super::access::OpenAccess;
use super::autograd::PushedModes;
use super::handle::given;
use super::refuse_while_open;
use super::value::{elements, text};
use crate::failure::{Failure, Status, guarded, last_error};

/// `tenure_cuda_source` of `tenure_cuda.h`.
#[repr(C)]
pub struct SourceEntry {
    name: *const c_char,
    text: *const c_char,
}

/// `tenure_cuda_program` of `tenure_cuda.h`.
#[repr(C)]
pub struct ProgramEntry {
    source_count: usize,
    sources: *const SourceEntry,
    option_count: usize,
    options: *const *const c_char,
}

/// `tenure_cuda_argument` of `tenure_cuda.h`.
#[repr(C)]
pub struct ArgumentEntry {
    kind: i32,
    bytes: usize,
    data: *const c_void,
}

const WRITE: i32 = 0;
const READ: i32 = 1;
const BYTES: i32 = 2;

/// `tenure_cuda_size` of `tenure_cuda.h`.
#[repr(C)]
pub struct SizeEntry {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

/// `tenure_cuda_cpu_kernel` of `tenure_cuda.h`.
type CpuKernel = unsafe extern "C" fn(*mut c_void, *const SizeEntry, *const ArgumentEntry, usize) -> c_int;

/// A function on the CPU with its context.
struct BoundKernel {
    function: CpuKernel,
    context: *mut c_void,
}

// SAFETY: by the header, the function may be called by any thread.
unsafe impl Send for BoundKernel {}
// SAFETY: by the header, several threads may call the function at the same time.
unsafe impl Sync for BoundKernel {}

impl BoundKernel {
    fn call(&self, config: LaunchConfig, arguments: &[KernelArgument<'_>]) -> Result<(), String> {
        let LaunchConfig { grid, block, shared_bytes } = config;
        let arguments: Vec<ArgumentEntry> = arguments
            .iter()
            .map(|argument| match argument {
                KernelArgument::Write(tensor) => (WRITE, 0, ptr::from_ref(*tensor).cast()),
                KernelArgument::Read(tensor) => (READ, 0, ptr::from_ref(*tensor).cast()),
                KernelArgument::Bytes(bytes) => (BYTES, bytes.len(), bytes.as_ptr().cast()),
            })
            .map(|(kind, bytes, data)| ArgumentEntry { kind, bytes, data })
            .collect();
        let size = SizeEntry { grid, block, shared_bytes };
        let _pushed = PushedModes::begin();
        // SAFETY: by the header: it reads the arguments, which live during the call.
        let status = unsafe { (self.function)(self.context, &raw const size, arguments.as_ptr(), arguments.len()) };
        if Status::of(status) == Status::Ok {
            return Ok(());
        }
        // SAFETY: a C string of this thread.
        Err(unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned())
    }
}

/// Returns the program that an entry describes, which is made when it is used first.
///
/// # Safety
/// `entry` is null or a program as the header says.
unsafe fn program_of(entry: *const ProgramEntry) -> Result<&'static Program, Failure> {
    /// The programs by the addresses of their entries. They live as long as the process.
    static PROGRAMS: LazyLock<Mutex<HashMap<usize, &'static Program>>> = LazyLock::new(Mutex::default);

    // SAFETY: by the function's contract.
    let known = unsafe { entry.as_ref() }.ok_or_else(|| Failure::null("the program"))?;
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = programs.get(&entry.addr()) {
        return Ok(program);
    }
    // SAFETY: by the header, the entry has so many C strings.
    let (sources, options) =
        unsafe { (elements(known.sources, known.source_count), elements(known.options, known.option_count)) };
    // SAFETY: likewise.
    let words = options.iter().map(|option| unsafe { text(*option) }.map(str::to_owned));
    let options: Vec<String> = words.collect::<Result<_, _>>()?;
    let sources = sources.iter().map(|source| {
        // SAFETY: likewise.
        let (name, content) = unsafe { (text(source.name)?, text(source.text)?) };
        Ok(ProgramSource { name: name.to_owned(), text: content.to_owned(), options: options.clone() })
    });
    let program = Program::new(sources.collect::<Result<_, Failure>>()?);
    Ok(programs.entry(entry.addr()).or_insert(Box::leak(Box::new(program))))
}

/// See `tenure_cuda.h`.
///
/// # Safety
/// `program` is null or a program as the header says; `kernel` is null or a C string; `size` is null or a size;
/// `arguments` has `count` arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cuda_launch(
    program: *const ProgramEntry,
    kernel: *const c_char,
    size: *const SizeEntry,
    arguments: *const ArgumentEntry,
    count: usize,
) -> Status {
    guarded(|| {
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        let (program, kernel, size) = unsafe { (program_of(program)?, text(kernel)?, size.as_ref()) };
        let SizeEntry { grid, block, shared_bytes } = *size.ok_or_else(|| Failure::null("the size"))?;
        // SAFETY: by the function's contract.
        let arguments = unsafe { elements(arguments, count) }.iter().map(|argument| unsafe { argument_of(argument) });
        let arguments: Vec<KernelArgument<'_>> = arguments.collect::<Result<_, _>>()?;
        Ok(program.launch(kernel, LaunchConfig { grid, block, shared_bytes }, &arguments)?)
    })
}

/// Returns an argument.
///
/// # Safety
/// The argument refers to what its kind says.
unsafe fn argument_of(argument: &ArgumentEntry) -> Result<KernelArgument<'_>, Failure> {
    let tensor = argument.data.cast::<Tensor>();
    match argument.kind {
        // SAFETY: by the function's contract, a handle or null.
        WRITE => unsafe { given(tensor) }.map(KernelArgument::Write),
        // SAFETY: likewise.
        READ => unsafe { given(tensor) }.map(KernelArgument::Read),
        BYTES if argument.data.is_null() => Err(Failure::null("the bytes of an argument")),
        // SAFETY: by the function's contract, that many bytes.
        BYTES => Ok(KernelArgument::Bytes(unsafe { elements(argument.data.cast(), argument.bytes) })),
        kind => Err(Failure::Invalid(format!("{kind} is not a tenure_cuda_kind"))),
    }
}

/// See `tenure_cuda.h`.
///
/// # Safety
/// `program` is null or a program as the header says; `kernel` is null or a C string. `function` does what the header
/// says, with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cuda_on_cpu(
    program: *const ProgramEntry,
    kernel: *const c_char,
    function: Option<CpuKernel>,
    context: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let (program, kernel) = unsafe { (program_of(program)?, text(kernel)?) };
        let bound = BoundKernel { function: function.ok_or_else(|| Failure::null("the function"))?, context };
        program.on_cpu(kernel, move |config, arguments| bound.call(config, arguments));
        Ok(())
    })
}

/// See `tenure_cuda.h`.
///
/// # Safety
/// `access` is null or a live access of this thread; `stream` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_access_stream(access: *mut OpenAccess, stream: *mut *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let opened = unsafe { access.as_mut() }.ok_or_else(|| Failure::null("an access"))?;
        if stream.is_null() {
            return Err(Failure::null("the stream's place"));
        }
        let used = match opened.stream.take() {
            Some(used) => used,
            None => StreamUse::begin(&opened.access)?,
        };
        let number = opened.stream.insert(used).stream();
        // SAFETY: not null, so a place to write to.
        unsafe { stream.write(ptr::without_provenance_mut(number.0 as usize)) };
        Ok(())
    })
}
