//! Kernels of other programs, such as extensions: launched by name, with the tensors that they read and write.

use std::collections::HashMap;
use std::env::var_os;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tenure_core::StreamId;
use tenure_device::cuda::{
    BoundContext, CompileError, CudaDriver, KernelError, KernelModule, LaunchConfig, ProgramImage, ProgramKernel,
    ProgramSource,
};
use tenure_device::{CallError, Driver};

use super::queue::{Queue, submit};
use crate::{Access, Device, Result, Tensor, TensorError};

/// The most threads that a block can have on any device.
const MOST_THREADS: u64 = 1024;

/// The kernels of some sources in CUDA C++. NVRTC compiles a source when one of its kernels is launched first; the
/// result is kept in the user's cache.
///
/// A simulated device runs no kernels: it calls functions on the CPU, which [`on_cpu`](Self::on_cpu) sets.
///
/// ```
/// use std::sync::LazyLock;
/// use tenure_tensor::cuda::{KernelArgument, LaunchConfig, Program, ProgramSource};
/// use tenure_tensor::{Device, Tensor};
///
/// static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
///     let text = r#"extern "C" __global__ void scale(float* out, const float* x, float factor, int n) {
///         int i = blockIdx.x * blockDim.x + threadIdx.x;
///         if (i < n) out[i] = factor * x[i];
///     }"#;
///     Program::new(vec![ProgramSource { name: "scale.cu".into(), text: text.into(), options: Vec::new() }])
/// });
///
/// # use std::sync::Arc;
/// # use tenure_device::{memory::{self, MemoryConfig}, sim::{SimConfig, SimDriver}};
/// # memory::install(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default())?;
/// PROGRAM.on_cpu("scale", |_, arguments| match arguments {
///     [KernelArgument::Write(out), KernelArgument::Read(x), KernelArgument::Bytes(factor), _] => {
///         let factor = f32::from_ne_bytes((*factor).try_into().map_err(|_| "the factor is no float")?);
///         x.mul(factor).and_then(|product| out.copy_(&product)).map_err(|error| error.to_string())
///     }
///     _ => Err("wrong arguments".into()),
/// });
/// let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2])?.to_device(Device::cuda(0))?;
/// let out = x.empty_like()?;
/// let (factor, count) = (3.0_f32.to_ne_bytes(), 2_i32.to_ne_bytes());
/// let [factor, count] = [&factor, &count].map(|bytes| KernelArgument::Bytes(bytes));
/// let arguments = [KernelArgument::Write(&out), KernelArgument::Read(&x), factor, count];
/// PROGRAM.launch("scale", LaunchConfig::linear(2), &arguments)?;
/// assert_eq!(out.to_vec::<f32>()?, [3.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Program {
    sources: Vec<ProgramSource>,
    /// The kernels that were launched, or have functions on the CPU.
    kernels: Mutex<HashMap<String, Arc<NamedKernel>>>,
    modules: Mutex<HashMap<ModuleKey, KernelModule>>,
}

/// A device, a source, and the expression that the source was compiled with, if any.
type ModuleKey = (u8, usize, Option<String>);

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum KernelArgument<'a> {
    /// A tensor that the kernel writes, and may read. The kernel gets the address of the first element.
    Write(&'a Tensor),
    /// A tensor that the kernel only reads. The kernel gets the address of the first element.
    Read(&'a Tensor),
    /// A number or a structure: its bytes.
    Bytes(&'a [u8]),
}

/// A function that computes on the CPU what a kernel computes. It gets the same arguments, with copies of the tensors
/// on the CPU. An error is returned by a later operation on the device.
pub type CpuKernel = dyn Fn(LaunchConfig, &[KernelArgument<'_>]) -> Result<(), String> + Send + Sync;

/// A kernel by its name.
struct NamedKernel {
    /// It lives as long as the process, since records of launches refer to it.
    name: &'static str,
    on_cpu: Mutex<Option<Arc<CpuKernel>>>,
    /// Whether the kernel was compiled as a check.
    is_checked: AtomicBool,
    /// The kernel on each device that has loaded it.
    loaded: Mutex<HashMap<u8, Arc<ProgramKernel>>>,
}

impl Program {
    /// Makes a program of sources, each of which is compiled by itself.
    pub fn new(sources: Vec<ProgramSource>) -> Self {
        Self { sources, kernels: Mutex::default(), modules: Mutex::default() }
    }

    /// Sets the function that simulated devices call instead of the kernel `name`.
    pub fn on_cpu(
        &self,
        name: &str,
        function: impl Fn(LaunchConfig, &[KernelArgument<'_>]) -> Result<(), String> + Send + Sync + 'static,
    ) {
        *self.kernel(name).on_cpu.lock() = Some(Arc::new(function));
    }

    /// Launches a kernel on the thread's current stream of the tensors' device, and does not wait for it. `name` is that
    /// of an `extern "C"` kernel, or a C++ expression that names a kernel, such as `scale<float>`. A launch without
    /// blocks does nothing.
    ///
    /// The kernel can reach all memory of the device: that it stays within its tensors is the caller's duty, as is that
    /// the arguments have the types of the kernel's parameters. Their number and sizes are checked.
    ///
    /// # Errors
    /// No argument is a tensor, or one is on the CPU or on another device; a source is wrong, or none has the kernel; the
    /// arguments are not those of the kernel's parameters; a block has too many threads; the driver refuses. On a
    /// simulated device: the kernel has no function on the CPU.
    pub fn launch(&self, name: &str, config: LaunchConfig, arguments: &[KernelArgument<'_>]) -> Result<()> {
        let kernel = self.kernel(name);
        let op = kernel.name;
        let (writes, reads) = tensors_of(op, arguments)?;
        check_threads(op, config, MOST_THREADS)?;
        if config.grid.contains(&0) {
            return Ok(());
        }
        let mut access = Access::new(op, &writes, &reads)?;
        let mut values = values(&mut access, arguments);
        let on_cpu = kernel.on_cpu.lock().clone();
        let is_on_cpu = on_cpu.is_some();
        let operands: Vec<Operand> = arguments.iter().map(Operand::of).collect();
        submit(
            &access,
            |queue: &mut Queue| {
                let Some(driver) = queue.cuda() else { return self.check_simulated(&kernel, is_on_cpu) };
                let loaded = self.loaded(&kernel, driver)?;
                check_threads(op, config, loaded.most_threads.into())?;
                check_parameters(op, loaded.parameters.as_deref(), arguments)?;
                let mut pointers: SmallVec<[*mut c_void; 8]> =
                    values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
                // SAFETY: the arguments are as many as the kernel's parameters and have their sizes, which was checked, or
                // is the caller's duty if the driver is too old to say. `access` keeps the tensors locked, and `submit` has
                // recorded their use.
                unsafe { queue.launch_program(driver, &loaded, config, &mut pointers) }
            },
            move |writes, reads| {
                let Some(on_cpu) = &on_cpu else { return Ok(()) };
                let (mut writes, mut reads) = (writes.iter(), reads.iter());
                let arguments = operands.iter().map(|operand| match operand {
                    Operand::Write => writes.next().map(KernelArgument::Write),
                    Operand::Read => reads.next().map(KernelArgument::Read),
                    Operand::Bytes(bytes) => Some(KernelArgument::Bytes(bytes)),
                });
                let arguments: Vec<KernelArgument<'_>> = arguments.flatten().collect();
                on_cpu(config, &arguments).map_err(|reason| TensorError::argument(op, reason))
            },
        )?;
        // A capture that notes the write locks the storage.
        drop(access);
        writes.iter().for_each(|tensor| tensor.bump_version(op));
        Ok(())
    }

    fn kernel(&self, name: &str) -> Arc<NamedKernel> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return kernel.clone();
        }
        let leaked: &'static str = Box::leak(name.into());
        let kernel = Arc::new(NamedKernel {
            name: leaked,
            on_cpu: Mutex::default(),
            is_checked: AtomicBool::new(false),
            loaded: Mutex::default(),
        });
        kernels.insert(name.to_owned(), kernel.clone());
        kernel
    }

    /// Returns a kernel that is loaded on the driver's device.
    fn loaded(&self, kernel: &NamedKernel, driver: &CudaDriver) -> Result<Arc<ProgramKernel>> {
        let device = driver.device().index();
        // Held while the kernel is compiled, so that other threads wait for it.
        let mut loaded = kernel.loaded.lock();
        if let Some(loaded) = loaded.get(&device) {
            return Ok(loaded.clone());
        }
        let name = kernel.name;
        let found = self.find(name, driver.properties().compute_capability)?;
        let failed = |error: CallError| TensorError::kernel(name, KernelError::from(error));
        let key = (device, found.source, found.expression.map(str::to_owned));
        let mut modules = self.modules.lock();
        let module = match modules.get(&key) {
            Some(module) => *module,
            None => {
                let module = driver.load_program(&found.image).map_err(failed)?;
                modules.insert(key, module);
                module
            }
        };
        let function = Arc::new(driver.program_kernel(module, &found.symbol, name).map_err(failed)?);
        Ok(loaded.entry(device).or_insert(function).clone())
    }

    /// Compiles the source that has a kernel.
    fn find(&self, name: &'static str, compute_capability: (u32, u32)) -> Result<FoundKernel> {
        let refused = |error: CompileError| match error {
            CompileError::Failed { .. } => {
                TensorError::argument(name, format!("NVRTC refused: {}", error.first_line()))
            }
            other => TensorError::kernel(name, other.into()),
        };
        let mut known: Vec<String> = Vec::new();
        for (source, text) in self.sources.iter().enumerate() {
            let image = text.compile(None, compute_capability).map_err(refused)?;
            let kernels = image.kernels();
            if kernels.iter().any(|kernel| kernel == name) {
                return Ok(FoundKernel { source, expression: None, symbol: name.to_owned(), image });
            }
            known.extend(kernels);
        }
        for (source, text) in self.sources.iter().enumerate() {
            match text.compile(Some(name), compute_capability) {
                Ok(image) => {
                    let symbol = image.symbol().to_owned();
                    return Ok(FoundKernel { source, expression: Some(name), symbol, image });
                }
                Err(error) if error.is_unknown_name() => {}
                Err(error) => return Err(refused(error)),
            }
        }
        let files: Vec<&str> = self.sources.iter().map(|source| source.name.as_str()).collect();
        let (files, known) = (files.join(", "), if known.is_empty() { "none".to_owned() } else { known.join(", ") });
        let reason = format!("there is no kernel of this name in {files}; extern \"C\" kernels there: {known}");
        Err(TensorError::argument(name, reason))
    }

    /// Checks that a simulated device can stand in for a real one. With `TENURE_CHECK_KERNELS` in the environment, the
    /// kernel is compiled too.
    fn check_simulated(&self, kernel: &NamedKernel, is_on_cpu: bool) -> Result<()> {
        if var_os("TENURE_CHECK_KERNELS").is_some() && !kernel.is_checked.load(Ordering::Relaxed) {
            const DEVICE: (u32, u32) = (9, 0);
            self.find(kernel.name, DEVICE)?;
            kernel.is_checked.store(true, Ordering::Relaxed);
        }
        if is_on_cpu {
            return Ok(());
        }
        let reason = "a simulated device runs no kernels: give this one a function on the CPU (on_cpu), or use a GPU";
        Err(TensorError::argument(kernel.name, reason))
    }
}

/// A kernel in the image of its source.
struct FoundKernel {
    source: usize,
    /// The expression that the source was compiled with.
    expression: Option<&'static str>,
    symbol: String,
    image: ProgramImage,
}

/// An argument without its tensor.
enum Operand {
    Write,
    Read,
    Bytes(Vec<u8>),
}

impl Operand {
    fn of(argument: &KernelArgument<'_>) -> Self {
        match argument {
            KernelArgument::Write(_) => Self::Write,
            KernelArgument::Read(_) => Self::Read,
            KernelArgument::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

type Tensors<'a> = SmallVec<[&'a Tensor; 4]>;

/// Returns the written and the read tensors of a kernel.
fn tensors_of<'a>(op: &'static str, arguments: &[KernelArgument<'a>]) -> Result<(Tensors<'a>, Tensors<'a>)> {
    let [mut writes, mut reads] = [Tensors::new(), Tensors::new()];
    for (index, argument) in arguments.iter().enumerate() {
        let (tensor, list) = match argument {
            KernelArgument::Write(tensor) => (tensor, &mut writes),
            KernelArgument::Read(tensor) => (tensor, &mut reads),
            KernelArgument::Bytes(_) => continue,
        };
        if tensor.device().is_cpu() {
            let place = index + 1;
            let reason = format!("argument {place} is a tensor on the CPU: a kernel needs tensors on a CUDA device");
            return Err(TensorError::argument(op, reason));
        }
        list.push(tensor);
    }
    if writes.is_empty() && reads.is_empty() {
        return Err(TensorError::argument(op, "a kernel needs a tensor among its arguments, which tells the device"));
    }
    Ok((writes, reads))
}

/// Returns the bytes of each argument: a tensor's address, or the value itself.
fn values(access: &mut Access<'_>, arguments: &[KernelArgument<'_>]) -> Vec<SmallVec<[u8; 16]>> {
    let mut writes = 0_usize..;
    let mut reads = 0_usize..;
    arguments
        .iter()
        .map(|argument: &KernelArgument<'_>| match argument {
            KernelArgument::Write(_) => bytes_of(access.write_word(writes.next().unwrap_or_default())),
            KernelArgument::Read(_) => bytes_of(access.read_word(reads.next().unwrap_or_default())),
            KernelArgument::Bytes(bytes) => SmallVec::from_slice(bytes),
        })
        .collect()
}

fn bytes_of(word: u64) -> SmallVec<[u8; 16]> {
    SmallVec::from_slice(&word.to_ne_bytes())
}

fn check_threads(op: &'static str, config: LaunchConfig, most: u64) -> Result<()> {
    let [x, y, z] = config.block;
    let threads = config.block.iter().map(|threads| u64::from(*threads)).fold(1, u64::saturating_mul);
    if (1..=most).contains(&threads) {
        return Ok(());
    }
    let reason = format!("a block of {x} x {y} x {z} threads has {threads}, and this kernel's blocks have 1 to {most}");
    Err(TensorError::argument(op, reason))
}

/// Checks the number and the sizes of a kernel's arguments, if the driver tells those of the parameters.
fn check_parameters(op: &'static str, parameters: Option<&[usize]>, arguments: &[KernelArgument<'_>]) -> Result<()> {
    let Some(parameters) = parameters else { return Ok(()) };
    if parameters.len() != arguments.len() {
        let (wanted, given) = (parameters.len(), arguments.len());
        return Err(TensorError::argument(op, format!("the kernel has {wanted} parameters, got {given} arguments")));
    }
    for (index, (wanted, argument)) in parameters.iter().zip(arguments).enumerate() {
        let given = match argument {
            KernelArgument::Bytes(bytes) => bytes.len(),
            KernelArgument::Write(_) | KernelArgument::Read(_) => size_of::<u64>(),
        };
        if given != *wanted {
            let place = index + 1;
            let reason = format!("argument {place} has {given} bytes, and the kernel's parameter has {wanted}");
            return Err(TensorError::argument(op, reason));
        }
    }
    Ok(())
}

/// The use of an access's tensors by code that launches kernels itself, on the thread's current stream.
pub struct StreamUse {
    stream: StreamId,
    /// Libraries of CUDA use this device meanwhile.
    _context: BoundContext,
}

impl StreamUse {
    /// Records that the thread's current stream uses the tensors. It lives as long as the access, on the same thread.
    ///
    /// # Errors
    /// The tensors are on the CPU or on a simulated device; an error of an earlier operation on the device.
    pub fn begin(access: &Access<'_>) -> Result<Self> {
        let op = access.op();
        let device = access.all().next().map_or(Device::CPU, |(tensor, ..)| tensor.device());
        if device.is_cpu() {
            return Err(TensorError::argument(op, "tensors on the CPU have no stream"));
        }
        let queue = Queue::new(op, device)?;
        let Some(driver) = queue.cuda() else {
            let reason = "a simulated device has no stream of CUDA: launch kernels by name there";
            return Err(TensorError::argument(op, reason));
        };
        queue.record_use(access.storages())?;
        let context = queue.driver_result(driver.bind_context())?;
        Ok(Self { stream: queue.stream(), _context: context })
    }

    /// Returns the stream, whose number is the `CUstream`.
    pub fn stream(&self) -> StreamId {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_do_not_fit_the_parameters_are_named() {
        let tensor = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
        let arguments = [KernelArgument::Write(&tensor), KernelArgument::Bytes(&[0; 4])];
        let check = |parameters: &[usize]| check_parameters("scale", Some(parameters), &arguments);
        check(&[8, 4]).unwrap();
        check_parameters("scale", None, &arguments).unwrap();
        let reason = check(&[8, 4, 4]).unwrap_err().to_string();
        assert_eq!(reason, "scale: the kernel has 3 parameters, got 2 arguments");
        let reason = check(&[8, 8]).unwrap_err().to_string();
        assert_eq!(reason, "scale: argument 2 has 4 bytes, and the kernel's parameter has 8");
    }
}
