//! Shared memory of clients, the system's or their CUDA devices': the regions that they registered, over HTTP or gRPC,
//! and the tensors in them.

mod cuda;
mod error;
mod region;
mod regions;
mod shared_tensors;
mod system;

pub(crate) use cuda::{CudaRegion, CudaRegistration, CudaStatus};
pub use error::SharedMemoryError;
pub(crate) use region::{Region, RegionKind};
pub(crate) use regions::Regions;
pub(crate) use shared_tensors::SharedTensors;
pub(crate) use system::{SystemRegion, SystemRegistration, SystemStatus};
