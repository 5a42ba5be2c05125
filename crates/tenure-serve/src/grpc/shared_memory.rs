//! Calls about regions of shared memory.

use bytes::Bytes;

use super::calls::Call;
use super::convert::said;
use super::messages::{RegionRequest, RegionResponse, SystemRegion, SystemSharedMemoryStatusResponse};
use super::wire::frame;
use crate::http::ServeError;
use crate::shared_memory::{Registration, Status};

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
}

impl From<Status> for SystemRegion {
    fn from(Status { name, key, offset, byte_size }: Status) -> Self {
        Self { name, key, offset, byte_size }
    }
}
