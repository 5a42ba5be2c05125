//! CUDA kernels, and their substitutes on simulated devices.
//!
//! The function that implements a [`Kernel`](crate::Kernel) on CUDA devices locks its tensors and [`submit`]s its
//! launches to the device's stream.
//!
//! ```
//! use tenure_tensor::cuda::{self, KernelName, LaunchConfig, Queue};
//! use tenure_tensor::{Access, DType, Device, Result, Tensor};
//!
//! const SOURCE: &str = r#"
//!     struct Params { u64 out, x, n; };
//!     extern "C" __global__ void kernel(const __grid_constant__ Params p) {
//!         const u64 i = blockIdx.x * 256ull + threadIdx.x;
//!         if (i < p.n) ((float*)p.out)[i] = 2 * ((const float*)p.x)[i];
//!     }"#;
//!
//! fn twice(out: &Tensor, x: &Tensor) -> Result<()> {
//!     let mut access = Access::new("twice", &[out], &[x])?;
//!     let mut words = [access.write_ptr(0).addr(), access.read_ptr(0).addr(), x.numel()].map(|word| word as u64);
//!     let name = KernelName { op: "twice", variant: 0 };
//!     let launch = |queue: &mut Queue| {
//!         queue.launch(name, || SOURCE.to_owned(), LaunchConfig::linear(x.numel() as u32), &mut words)
//!     };
//!     cuda::submit(&access, launch, |out, x| out[0].copy_(&x[0].mul(2.0)?))
//! }
//!
//! # use std::sync::Arc;
//! # use tenure_device::{memory::{self, MemoryConfig}, sim::{SimConfig, SimDriver}};
//! # memory::install(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default())?;
//! let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2])?.to_device(Device::cuda(0))?;
//! let out = Tensor::empty(&[2], DType::F32, Device::cuda(0))?;
//! twice(&out, &x)?;
//! assert_eq!(out.to_vec::<f32>()?, [2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod async_errors;
mod elementwise;
mod indexed_write;
mod iteration_space;
mod lines;
mod program;
mod queue;
mod runs;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod batch_norm;
mod call;
pub(crate) mod captured;
pub(crate) mod compare;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod gather;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod softmax;
pub(crate) mod sort;

pub use call::CapturedCall;
pub(crate) use captured::note_write;
pub use captured::{Capture, Captured, is_capturing, varying};
pub(crate) use loss::probabilities;
pub use program::{CpuKernel, KernelArgument, Program, StreamUse};
pub use queue::{Queue, Touched, submit};
pub(crate) use queue::{check_earlier_errors, record_use};
pub use tenure_device::OpenedMemory;
pub use tenure_device::cuda::{KernelName, LaunchConfig, ProgramSource};
use tenure_device::{MemoryHandle, memory};

use crate::kernel::{self, Entry};
use crate::{DType, Device, DeviceKind, Result, TensorError, element};

/// The beginning of every kernel's source.
const PRELUDE: &str = include_str!("source/prelude.cu");

/// Returns the CPU function of an operation, which a simulated device runs instead of the CUDA kernel.
fn on_cpu<F: Copy>(op: &'static str, lists: &[&[Entry<F>]], dtype: DType) -> Result<F> {
    kernel::find(op, lists, DeviceKind::Cpu, dtype)
}

/// Returns the CUDA C++ type in which a dtype's elements are stored.
pub fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
    }
}

/// Returns the CUDA C++ type in which kernels compute with elements of a dtype, for example `float` for `f16`.
pub fn computed(dtype: DType) -> &'static str {
    match element::computed(dtype) {
        // C++ multiplies `u16` as signed integers, which must not overflow.
        DType::U16 => "u32",
        other => stored(other),
    }
}

/// Returns the CUDA C++ type in which kernels sum many elements of a dtype.
fn summed(dtype: DType) -> &'static str {
    if dtype.is_floating() { computed(dtype) } else { "i64" }
}

/// Opens another process's memory on a CUDA device, from the bytes of its `cudaIpcMemHandle_t`.
///
/// # Errors
/// The device is the CPU or does not exist; the handle names no memory of another process; a driver call failed.
pub fn open_memory(device: Device, handle: [u8; 64]) -> Result<OpenedMemory> {
    const OP: &str = "open_memory";
    if device.is_cpu() {
        return Err(TensorError::argument(OP, "memory is opened on a CUDA device, got the CPU"));
    }
    let memory = memory::device(device.index()).map_err(|error| TensorError::memory(OP, error))?;
    let opened = OpenedMemory::open(memory.driver().clone(), &MemoryHandle(handle));
    opened.map_err(|error| TensorError::memory(OP, error.into()))
}
