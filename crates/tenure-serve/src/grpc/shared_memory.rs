//! Calls about regions of shared memory.

use bytes::Bytes;

use super::calls::Call;
use super::convert::said;
use super::messages::{
    CudaSharedMemoryStatusResponse, RegionRequest, RegionResponse, SystemRegion, SystemSharedMemoryStatusResponse,
};
use super::wire::frame;
use crate::http::ServeError;
use crate::shared_memory::{Registration, SharedMemoryError, Status};

impl Call<'_> {
    /// Answers a call about the system's shared memory: `what` is the rest of its name.
    pub(super) async fn system_shared_memory(&mut self, what: &str) -> Result<Bytes, ServeError> {
        self.shared.neighbour(Some(self.peer))?;
        let regions = &self.shared.regions;
        match what {
            "Status" => {
                let RegionRequest { name } = self.message().await?;
                let found = match said(name) {
                    Some(name) => vec![regions.status(&name)?],
                    None => regions.all(),
                };
                let regions = found.into_iter().map(|status| (status.name.clone(), status.into())).collect();
                frame(&SystemSharedMemoryStatusResponse { regions })
            }
            "Register" => {
                let SystemRegion { name, key, offset, byte_size } = self.message().await?;
                regions.register(name, Registration { key, offset, byte_size })?;
                frame(&RegionResponse {})
            }
            "Unregister" => {
                let RegionRequest { name } = self.message().await?;
                match said(name) {
                    Some(name) => regions.unregister(&name),
                    None => regions.clear(),
                }
                frame(&RegionResponse {})
            }
            _ => Err(self.unknown()),
        }
    }

    /// Answers a call about memory of CUDA devices. There is no region of it, and none can be registered.
    pub(super) async fn cuda_shared_memory(&mut self, what: &str) -> Result<Bytes, ServeError> {
        match what {
            "Status" => {
                let RegionRequest { name } = self.message().await?;
                match said(name) {
                    Some(name) => Err(SharedMemoryError::Unknown(name).into()),
                    None => frame(&CudaSharedMemoryStatusResponse::default()),
                }
            }
            "Register" => Err(SharedMemoryError::Cuda.into()),
            "Unregister" => {
                let RegionRequest { .. } = self.message().await?;
                frame(&RegionResponse {})
            }
            _ => Err(self.unknown()),
        }
    }
}

impl From<Status> for SystemRegion {
    fn from(Status { name, key, offset, byte_size }: Status) -> Self {
        Self { name, key, offset, byte_size }
    }
}
