//! The concrete driver of a `dyn Driver`, for callers that run kernels.

use std::any::Any;

use crate::Driver;
use crate::cuda::CudaDriver;
use crate::sim::SimDriver;

/// A concrete driver, which can run kernels. A simulated device's kernels are functions of the host, so the two drivers
/// share no call.
#[derive(Clone, Copy)]
pub enum Executor<'a> {
    /// An NVIDIA device: [`CudaDriver::kernel`], [`CudaDriver::launch`].
    Cuda(&'a CudaDriver),
    /// A simulated one: [`SimDriver::launch`].
    Sim(&'a SimDriver),
}

impl dyn Driver {
    /// Returns the concrete driver, which can run kernels.
    ///
    /// # Panics
    /// If another crate implements the driver.
    pub fn executor(&self) -> Executor<'_> {
        let driver: &dyn Any = self;
        let cuda = driver.downcast_ref().map(Executor::Cuda);
        cuda.or_else(|| driver.downcast_ref().map(Executor::Sim)).expect("a driver of this crate runs the kernels")
    }
}
