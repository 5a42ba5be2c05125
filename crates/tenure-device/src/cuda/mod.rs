//! NVIDIA devices, through the CUDA driver API.
//!
//! **Loading.** `libcuda` is opened when the first call needs it, NVRTC with the first [`compile`](CudaDriver::compile),
//! NVML with the first question that only it answers. A program that uses this module starts, and runs, where there is
//! none of them: calls of [`platform`] then fail with [`NoDriver`](crate::ErrorKind::NoDriver), and what NVML would
//! tell is `None`.
//!
//! **Contexts.** A device is used through its *primary* context, the one that the CUDA runtime uses too, so that
//! addresses, streams and events can be shared with PyTorch in the same process. It is retained with the first use of
//! the device and kept until the process ends; it is never reset. A call binds it to the calling thread for as long as
//! the call takes, and leaves the thread with the context that it had before, or none: that is where the runtime finds a
//! thread's current device.
//!
//! **Handles.** A [`StreamId`](tenure_core::StreamId), [`EventId`](crate::EventId) or
//! [`ChunkId`](tenure_alloc::ChunkId) is the driver's own handle. CUDA dereferences handles without looking, so each is
//! looked up here first: one that was destroyed, or never made, is an error and no crash, as long as it is not destroyed
//! by another thread during the call, and not given anew since. The null stream, the legacy stream (1) and the stream
//! of each thread (2) are always known; a stream of elsewhere must be [adopted](CudaDriver::adopt_stream). What is mapped
//! where is kept here too ([`Driver`](crate::Driver) promises more than CUDA checks).
//!
//! **Errors.** The first error that ends the context is given once as it is, with the kernels that were launched last;
//! every later call is a [`ContextLost`](crate::ErrorKind::ContextLost).

mod blas;
mod calls;
mod capture;
mod context;
mod dnn;
mod driver;
mod error;
mod handles;
mod kernel;
mod kernels;
mod nvml;
mod nvrtc;
mod peers;
mod platform;
mod space;
mod timing;
mod tune;

pub use self::blas::{Compute, Epilogue, Matrix, Operands, Product, ProductPlan, TUNING_WORKSPACE};
pub use self::dnn::{Attention, Convolution, ConvolutionPass, DnnPlan};
pub use self::driver::CudaDriver;
pub use self::kernel::{Function, LaunchConfig, Module};
pub use self::kernels::{KernelError, KernelName, check_cached, compile_cached};
pub use self::nvrtc::{CompileError, Image};
pub use self::platform::{CudaPlatform, platform};
pub use self::timing::Timing;
