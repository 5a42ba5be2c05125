//! NVIDIA devices, through the CUDA driver API.
//!
//! **Loading.** The first call that needs `libcuda` opens it. NVRTC is opened by the first
//! [`compile`](CudaDriver::compile), and NVML by the first question that only NVML answers. A program that uses this
//! module also starts and runs on a machine without these libraries: calls of [`platform`] then fail with
//! [`NoDriver`](crate::ErrorKind::NoDriver), and answers from NVML are `None`.
//!
//! **Contexts.** A device is used through its *primary* context, which the CUDA runtime uses too, so that addresses,
//! streams and events can be shared with PyTorch in the same process. The context is retained at the first use of the
//! device and kept until the process ends; it is never reset. A call binds it to the calling thread for the length of
//! the call, and then restores the thread's previous context, or none: the runtime takes a thread's current device from
//! there.
//!
//! **Handles.** A [`StreamId`](tenure_core::StreamId), [`EventId`](crate::EventId) or
//! [`ChunkId`](tenure_alloc::ChunkId) is the driver's own handle. CUDA dereferences handles without checking them, so
//! this module looks up each handle first: a handle that was destroyed or never made gives an error, not a crash,
//! unless another thread destroys it during the call or the driver has reused its number. The null stream, the legacy
//! stream (1) and the per-thread stream (2) are always known; a stream made by other code must be
//! [adopted](CudaDriver::adopt_stream). This module also records all mappings, because [`Driver`](crate::Driver)
//! promises more checks than CUDA makes.
//!
//! **Errors.** The first error that ends the context is returned as it is, with the kernels that were launched last;
//! every later call returns [`ContextLost`](crate::ErrorKind::ContextLost).

mod blas;
mod calls;
mod capture;
mod context;
pub(crate) mod cupti;
mod dnn;
mod driver;
mod error;
mod handles;
pub mod interposition;
mod interrupts;
mod kernel;
mod kernels;
mod nvml;
mod nvrtc;
mod peers;
mod platform;
mod program;
mod space;
mod timing;
mod tune;

pub use self::blas::{Compute, Epilogue, Matrix, Operands, Product, ProductPlan, TUNING_WORKSPACE};
pub use self::context::BoundContext;
pub use self::dnn::{ConvolutionPass, DnnAttention, DnnConvolution, DnnPlan};
pub use self::driver::CudaDriver;
pub use self::kernel::{Function, KernelModule, LaunchConfig};
pub use self::kernels::{KernelError, KernelName, check_cached, compile_cached};
pub use self::nvrtc::{CompileError, KernelImage, ProgramSource};
pub(crate) use self::platform::is_driver_present;
pub use self::platform::{CudaPlatform, platform};
pub use self::program::{ProgramImage, ProgramKernel};
pub use self::timing::Timing;
