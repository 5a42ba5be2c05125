//! Calls about regions of shared memory.

use bytes::Bytes;

use super::call::Call;
use super::convert::said;
use super::messages::{
    CudaRegion, CudaRegisterRequest, CudaSharedMemoryStatusResponse, RegionRequest, RegionResponse, SystemRegion,
    SystemSharedMemoryStatusResponse,
};
use super::wire::frame;
use crate::service::ServeError;
use crate::shared_memory::{self, CudaRegistration, CudaStatus, Region, RegionKind, SystemRegistration, SystemStatus};

impl Call<'_> {
    /// Answers a call about the system's shared memory: `what` is the rest of its name.
    pub(super) async fn system_shared_memory(&mut self, what: &str) -> Result<Bytes, ServeError> {
        self.shared.check_operator(Some(self.peer))?;
        match what {
            "Status" => {
                let found = self.regions(Region::system).await?;
                let regions = found.into_iter().map(|status| (status.name.clone(), status.into())).collect();
                frame(&SystemSharedMemoryStatusResponse { regions })
            }
            "Register" => {
                let SystemRegion { name, key, offset, byte_size } = self.message().await?;
                let region = shared_memory::SystemRegion::open(name, SystemRegistration { key, offset, byte_size })?;
                self.shared.regions.register(Region::System(region))?;
                frame(&RegionResponse {})
            }
            "Unregister" => self.unregister(Region::system).await,
            _ => Err(self.unknown()),
        }
    }

    /// Answers a call about the memory of CUDA devices: `what` is the rest of its name.
    pub(super) async fn cuda_shared_memory(&mut self, what: &str) -> Result<Bytes, ServeError> {
        self.shared.check_operator(Some(self.peer))?;
        match what {
            "Status" => {
                let found = self.regions(Region::cuda).await?;
                let regions = found.into_iter().map(|status| (status.name.clone(), status.into())).collect();
                frame(&CudaSharedMemoryStatusResponse { regions })
            }
            "Register" => {
                let CudaRegisterRequest { name, raw_handle, device_id, byte_size } = self.message().await?;
                let registration = CudaRegistration { raw_handle: raw_handle.into(), device_id, byte_size };
                self.shared.register_cuda(name, registration).await?;
                frame(&RegionResponse {})
            }
            "Unregister" => self.unregister(Region::cuda).await,
            _ => Err(self.unknown()),
        }
    }

    /// Returns the requested region, or all regions of a kind.
    async fn regions<T: Clone>(&mut self, kind: RegionKind<T>) -> Result<Vec<T>, ServeError> {
        let RegionRequest { name } = self.message().await?;
        let regions = &self.shared.regions;
        Ok(match said(name) {
            Some(name) => vec![regions.status(kind, &name)?],
            None => regions.all(kind),
        })
    }

    async fn unregister<T>(&mut self, kind: RegionKind<T>) -> Result<Bytes, ServeError> {
        let RegionRequest { name } = self.message().await?;
        let regions = &self.shared.regions;
        match said(name) {
            Some(name) => regions.unregister(kind, &name).await?,
            None => regions.clear(kind).await?,
        }
        frame(&RegionResponse {})
    }
}

impl From<SystemStatus> for SystemRegion {
    fn from(SystemStatus { name, key, offset, byte_size }: SystemStatus) -> Self {
        Self { name, key, offset, byte_size }
    }
}

impl From<CudaStatus> for CudaRegion {
    fn from(CudaStatus { name, device_id, byte_size }: CudaStatus) -> Self {
        Self { name, device_id: device_id.into(), byte_size }
    }
}
