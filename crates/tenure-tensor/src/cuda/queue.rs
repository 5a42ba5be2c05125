//! Submission of kernels to a device's stream, real or simulated.

use std::ffi::{OsString, c_void};
use std::ops::Range;

use smallvec::SmallVec;
use tenure_core::{DType, Device, Layout, Purpose, StreamId, Tag};
use tenure_device::cuda::{CudaDriver, KernelName, LaunchConfig, ProgramKernel};
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::{KernelMemory, SimDriver, SimKernel};
use tenure_device::{Executor, memory};

use super::runs::runs;
use super::{async_errors, captured};
use crate::access::Held;
use crate::autograd::no_grad;
use crate::{Access, Elementwise, Result, Tensor, TensorError, tuning};

/// The launches of one operation on the thread's current stream of a device, with the workspaces that they use.
pub struct Queue {
    op: &'static str,
    memory: &'static DeviceMemory,
    stream: StreamId,
    workspaces: SmallVec<[Tensor; 2]>,
}

/// The tensors that an operation reads and writes: an [`Access`], or an [`Elementwise`].
#[expect(private_bounds, reason = "only this crate says what a kernel touches")]
pub trait Touched: Sealed {}

impl Touched for Access<'_> {}
impl Touched for Elementwise<'_> {}

pub(crate) trait Sealed {
    fn op(&self) -> &'static str;
    fn device(&self) -> Device;
    /// Calls `each` for all written tensors, then for all read ones: the first element, and the layout.
    fn for_each(&self, each: &mut dyn FnMut(TensorMemory<'_>));
    /// Returns all storages.
    fn storages(&self) -> impl Iterator<Item = Held<'_>>;
}

/// A tensor's elements in memory.
pub(crate) struct TensorMemory<'a> {
    pub(crate) is_written: bool,
    pub(crate) data: *mut u8,
    pub(crate) sizes: &'a [usize],
    /// The strides in bytes.
    pub(crate) strides: SmallVec<[usize; 5]>,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl Sealed for Access<'_> {
    fn op(&self) -> &'static str {
        Access::op(self)
    }

    fn device(&self) -> Device {
        self.all().next().map_or(Device::CPU, |(tensor, ..)| tensor.device())
    }

    fn for_each(&self, each: &mut dyn FnMut(TensorMemory<'_>)) {
        for (tensor, data, is_written) in self.all() {
            let strides = tensor.strides().iter().map(|stride| stride * tensor.dtype().size()).collect();
            let dtype = tensor.dtype();
            let device = tensor.device();
            each(TensorMemory { is_written, data, sizes: tensor.sizes(), strides, dtype, device });
        }
    }

    fn storages(&self) -> impl Iterator<Item = Held<'_>> {
        Access::storages(self)
    }
}

impl Sealed for Elementwise<'_> {
    fn op(&self) -> &'static str {
        Elementwise::op(self)
    }

    fn device(&self) -> Device {
        Elementwise::device(self)
    }

    fn for_each(&self, each: &mut dyn FnMut(TensorMemory<'_>)) {
        for (index, operand) in self.operands().iter().enumerate() {
            let strides = operand.strides.clone();
            let dtype = operand.dtype;
            let device = operand.device;
            let is_written = index < self.outputs().len();
            each(TensorMemory { is_written, data: operand.data, sizes: self.sizes(), strides, dtype, device });
        }
    }

    fn storages(&self) -> impl Iterator<Item = Held<'_>> {
        self.access().storages()
    }
}

/// Submits an operation to the thread's current stream of the device that it writes on. `device` is called
/// at once and launches kernels. On a simulated device, its launches compute nothing: it only allocates workspaces, and
/// compiles the kernels as a check if the environment has `TENURE_CHECK_KERNELS`. Instead `host` is queued, which gets
/// CPU copies of the written and of the read tensors, in their order. `submit` does not wait: the caller may drop the
/// tensors afterwards, since their memory is reused in the order of the stream.
///
/// # Errors
/// An error of an earlier operation on the device, or of `device`. An error of `host` is returned by a later operation
/// on the device.
pub fn submit(
    touched: &impl Touched,
    device: impl FnOnce(&mut Queue) -> Result<()>,
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    // This function is compiled for every combination of operation and dtype, so it does little.
    let mut device = Some(device);
    let mut host = Some(host);
    submit_erased(touched, &mut |queue| device.take().map_or(Ok(()), |device| device(queue)), &mut || {
        Some(Box::new(host.take()?))
    })
}

/// Does the work of [`submit`]. It calls both functions at most once.
pub(super) fn submit_erased(
    touched: &impl Touched,
    device: &mut dyn FnMut(&mut Queue) -> Result<()>,
    host: &mut dyn FnMut() -> Option<Host>,
) -> Result<()> {
    let mut queue = Queue::new(touched.op(), touched.device())?;
    record_use(queue.op, queue.memory, touched.storages(), queue.stream)?;
    device(&mut queue)?;
    match queue.memory.driver().executor() {
        Executor::Sim(sim) => host().map_or(Ok(()), |host| queue.simulate(sim, touched, host)),
        Executor::Cuda(_) => Ok(()),
    }
}

/// A function that computes on the CPU what a kernel computes, given the written and the read tensors.
pub(super) type Host = Box<dyn Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync>;

/// Records that `stream` uses storages, and makes it wait for copies out of those that are written. The memory of a storage that was allocated for another stream is not reused
/// before `stream` has done its work so far. In a capture, storages are kept alive as long as the graph may be
/// replayed.
pub(crate) fn record_use<'a>(
    op: &'static str,
    memory: &DeviceMemory,
    storages: impl Iterator<Item = Held<'a>>,
    stream: StreamId,
) -> Result<()> {
    let is_single = memory.streams().is_single();
    if is_single && !memory.streams().has_copies() {
        return Ok(());
    }
    for held in storages.filter(|held| held.address != 0) {
        if !is_single {
            captured::keep(&held);
            // This does nothing for memory on the CPU or memory that this process did not allocate: its owner must
            // ensure that it is not freed too early.
            memory.record_use(held.address, stream).map_err(|error| TensorError::memory(op, error))?;
        }
        if held.is_written {
            let waited = memory.streams().wait_for_copies(held.address, stream);
            waited.map_err(|error| TensorError::memory(op, error.into()))?;
        }
    }
    Ok(())
}

/// Returns an error of earlier operations on the device, if there is one.
pub(crate) fn check_earlier_errors(op: &'static str, device: Device) -> Result<()> {
    Queue::new(op, device).map(drop)
}

impl Queue {
    pub(crate) fn new(op: &'static str, device: Device) -> Result<Self> {
        let memory = memory::device(device.index()).map_err(|error| TensorError::memory(op, error))?;
        async_errors::check(memory)?;
        Ok(Self { op, memory, stream: memory.streams().current_id(), workspaces: SmallVec::new() })
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Records that the stream uses storages.
    pub(super) fn record_use<'a>(&self, storages: impl Iterator<Item = Held<'a>>) -> Result<()> {
        record_use(self.op, self.memory, storages, self.stream)
    }

    /// Returns the driver of a real device, which calls cuBLASLt and cuDNN; `None` on a simulated device.
    pub(crate) fn cuda(&self) -> Option<&'static CudaDriver> {
        match self.memory.driver().executor() {
            Executor::Cuda(driver) => Some(driver),
            Executor::Sim(_) => None,
        }
    }

    /// Returns how many algorithms of a library to time before the first use of a problem size; `None` if the setting
    /// is off, or in a capture.
    pub(crate) fn candidates(&self) -> Option<usize> {
        const CANDIDATES: usize = 8;
        if !tuning::measures_algorithms() {
            return None;
        }
        let is_captured = self.memory.driver().is_capturing(self.stream).unwrap_or(true);
        (!is_captured).then_some(CANDIDATES)
    }

    /// Returns the two words that a kernel needs to report the error `code`.
    pub(crate) fn fault(&self, code: u64) -> Result<[u64; 2]> {
        async_errors::fault(self.memory, self.op, code)
    }

    /// Allocates temporary device memory for this operation's kernels and returns its address, a multiple of 256. The
    /// memory is valid until the kernels are done.
    ///
    /// # Errors
    /// Out of memory.
    pub fn workspace(&mut self, bytes: usize) -> Result<u64> {
        let (_, key) = Purpose::current();
        let _purpose = Purpose::enter(Tag::Workspace, key);
        let tensor = Tensor::empty(&[bytes], DType::U8, self.memory.device())?;
        let address = tensor.storage().lock().as_ptr().addr() as u64;
        self.workspaces.push(tensor);
        Ok(address)
    }

    /// Launches the kernel that `source` returns in CUDA C++. It is compiled when the process first meets its name, so
    /// the name must cover all that the source depends on. A prelude comes before the source. It has the types of
    /// [`stored`](super::stored), `cast<To>(x)` between them, `number<T>(bits)`, `Pack<T, N>` (neighbours that are read
    /// and written at once) and `DEVICE` for functions. The source must define `extern "C" __global__ void kernel(const
    /// __grid_constant__ Params p)`. `Params` is a struct of 64-bit words, and `words` are its values: addresses,
    /// sizes, bits of doubles.
    ///
    /// # Errors
    /// There is no compiler, the source is wrong, or the driver refuses.
    pub fn launch(
        &self,
        name: KernelName,
        source: impl FnOnce() -> String,
        config: LaunchConfig,
        words: &mut [u64],
    ) -> Result<()> {
        let mut source = Some(source);
        self.launch_erased(
            name,
            &mut || source.take().map_or_else(String::new, |source| [super::PRELUDE, &source()].concat()),
            config,
            words,
        )
    }

    /// Launches like [`launch`](Self::launch); asks for the source at most once.
    fn launch_erased(
        &self,
        name: KernelName,
        source: &mut dyn FnMut() -> String,
        config: LaunchConfig,
        words: &mut [u64],
    ) -> Result<()> {
        let Some(driver) = self.cuda() else { return self.check(name, source) };
        let function = driver.kernel(name, source).map_err(|error| TensorError::kernel(self.op, error))?;
        // SAFETY: the kernel's parameter is a struct of this many words. The caller keeps the memory that they point to
        // locked until this returns. The stream's use of it is recorded, so the memory stays until the stream has
        // passed the launch.
        let launched = unsafe { driver.launch(function, config, self.stream, &mut [words.as_mut_ptr().cast()]) };
        self.driver_result(launched).map(drop)
    }

    pub(crate) fn driver_result<T>(&self, result: Result<T, tenure_device::CallError>) -> Result<T> {
        result.map_err(|error| TensorError::device(self.op, error))
    }

    /// Launches a kernel of a program on a real device.
    ///
    /// # Safety
    /// `arguments` are pointers to values of the kernel's parameters. The caller keeps the memory that they point to
    /// locked, and its use recorded.
    pub(super) unsafe fn launch_program(
        &self,
        driver: &CudaDriver,
        kernel: &ProgramKernel,
        config: LaunchConfig,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: by the function's contract.
        let launched = unsafe { driver.launch_program(kernel, config, self.stream, arguments) };
        self.driver_result(launched).map(drop)
    }

    /// Checks a kernel on a simulated device, if the environment asks for it: compiles an operation's first kernel in a
    /// process, and checks only the source of its others. With `TENURE_CHECK_KERNELS=full`, it compiles all.
    fn check(&self, name: KernelName, source: &mut dyn FnMut() -> String) -> Result<()> {
        use std::collections::{HashMap, HashSet};
        use std::env::var_os;
        use std::sync::LazyLock;

        use parking_lot::Mutex;

        static WANTED: LazyLock<Option<OsString>> = LazyLock::new(|| var_os("TENURE_CHECK_KERNELS"));
        /// The variants that were checked, by operation.
        static CHECKED: Mutex<Option<HashMap<&str, HashSet<u64>>>> = Mutex::new(None);

        let Some(wanted) = &*WANTED else { return Ok(()) };
        let is_first = {
            let mut checked = CHECKED.lock();
            let variants = checked.get_or_insert_default().entry(name.op).or_default();
            let is_first = variants.is_empty();
            if !variants.insert(name.variant) {
                return Ok(());
            }
            is_first
        };
        const DEVICE: (u32, u32) = (9, 0);
        let checked = match is_first || wanted == "full" {
            true => tenure_device::cuda::compile_cached(name, &source(), DEVICE).map(drop),
            false => tenure_device::cuda::check_cached(name, &source(), DEVICE),
        };
        checked.map_err(|error| TensorError::kernel(self.op, error.into()))
    }

    /// Queues `host` on a simulated device.
    fn simulate(&self, sim: &SimDriver, touched: &impl Touched, host: Host) -> Result<()> {
        let mut operands = Vec::new();
        touched.for_each(&mut |memory| operands.push(SimulatedOperand::new(&memory)));
        let operands = operands.into_iter().collect::<Result<Vec<_>>>()?;
        let mut kernel = SimKernel::new(self.op, self.stream);
        for workspace in &self.workspaces {
            let guard = workspace.storage().lock();
            kernel = kernel.writes(guard.as_ptr().addr() as u64, guard.bytes() as u64);
        }
        for operand in operands.iter().filter(|operand| operand.cpu_copy.is_none()) {
            for run in &operand.runs {
                let first = operand.address + run.start;
                let bytes = run.end - run.start;
                kernel = if operand.is_written { kernel.writes(first, bytes) } else { kernel.reads(first, bytes) };
            }
        }
        let memory = self.memory;
        let kernel = kernel.body(move |device| {
            // This runs on a thread that waits for the device or queries it. The computation must not count as an
            // operation of that thread: a hook that recorded it might call the driver.
            let result = no_grad(|| {
                let tensors = operands.iter().map(|operand| operand.load(device)).collect::<Result<Vec<_>>>()?;
                let writes = operands.iter().filter(|operand| operand.is_written).count();
                host(&tensors[..writes], &tensors[writes..])?;
                operands[..writes].iter().zip(&tensors).try_for_each(|(operand, tensor)| operand.store(tensor, device))
            });
            if let Err(error) = result {
                async_errors::report(memory, error);
            }
        });
        self.driver_result(sim.launch(kernel)).map(drop)
    }
}

/// A tensor of a simulated kernel, which is copied to the CPU before the kernel runs, and back if it is written.
struct SimulatedOperand {
    is_written: bool,
    address: u64,
    layout: Layout,
    dtype: DType,
    /// The ranges of its elements in memory, in bytes from the first.
    runs: Vec<Range<u64>>,
    /// A copy of the tensor, made at submission, if the tensor is on the CPU.
    cpu_copy: Option<Tensor>,
}

impl SimulatedOperand {
    fn new(memory: &TensorMemory<'_>) -> Result<Self> {
        let width = memory.dtype.size();
        let strides: SmallVec<[usize; 5]> = memory.strides.iter().map(|stride| stride / width).collect();
        let layout = Layout::strided(memory.sizes, &strides, 0)?;
        let runs = runs(memory.sizes, &memory.strides, width);
        let mut operand = Self {
            is_written: memory.is_written,
            address: memory.data.addr() as u64,
            layout,
            dtype: memory.dtype,
            runs,
            cpu_copy: None,
        };
        if memory.device.is_cpu() {
            let tensor = Tensor::unset(operand.layout.clone(), operand.dtype, Device::CPU)?;
            for run in &operand.runs {
                let from = memory.data.wrapping_add(run.start as usize);
                let bytes = (run.end - run.start) as usize;
                // SAFETY: these are elements of the tensor, which its guard keeps; the tensor has as many in the same
                // layout.
                unsafe {
                    Access::new("copy", &[&tensor], &[])?.write_ptr(0).add(run.start as usize).copy_from(from, bytes)
                };
            }
            operand.cpu_copy = Some(tensor);
        }
        Ok(operand)
    }

    /// Returns the tensor's copy on the CPU, read from the device.
    fn load(&self, device: &mut KernelMemory<'_>) -> Result<Tensor> {
        if let Some(tensor) = &self.cpu_copy {
            return Ok(tensor.clone());
        }
        let tensor = Tensor::unset(self.layout.clone(), self.dtype, Device::CPU)?;
        let mut access = Access::new("copy", &[&tensor], &[])?;
        for run in &self.runs {
            let bytes = (run.end - run.start) as usize;
            // SAFETY: the run lies within the tensor, to which only this function has access.
            let to = unsafe { std::slice::from_raw_parts_mut(access.write_ptr(0).add(run.start as usize), bytes) };
            device.read(self.address + run.start, to);
            if self.dtype == DType::Bool {
                // Memory that was never written holds any bytes.
                to.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        drop(access);
        Ok(tensor)
    }

    /// Copies `tensor` back to the device.
    fn store(&self, tensor: &Tensor, device: &mut KernelMemory<'_>) -> Result<()> {
        let access = Access::new("copy", &[], &[tensor])?;
        for run in &self.runs {
            let bytes = (run.end - run.start) as usize;
            // SAFETY: the run lies within the tensor, all of whose elements were loaded.
            let from = unsafe { std::slice::from_raw_parts(access.read_ptr(0).add(run.start as usize), bytes) };
            device.write(self.address + run.start, from);
        }
        Ok(())
    }
}
