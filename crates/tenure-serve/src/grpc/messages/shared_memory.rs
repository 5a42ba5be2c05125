//! The messages about regions of shared memory.

use std::collections::BTreeMap;

use bytes::Bytes;

/// A request for a region's status, or to unregister it: both have the same form. Without a name it applies to all
/// regions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegionRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SystemSharedMemoryStatusResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub regions: BTreeMap<String, SystemRegion>,
}

/// A region, in a registration or in a status: both have the same form.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SystemRegion {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    pub byte_size: u64,
}

/// A request to register memory of a CUDA device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CudaRegisterRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    /// A `cudaIpcMemHandle_t`.
    #[prost(bytes = "bytes", tag = "2")]
    pub raw_handle: Bytes,
    #[prost(int64, tag = "3")]
    pub device_id: i64,
    #[prost(uint64, tag = "4")]
    pub byte_size: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CudaSharedMemoryStatusResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub regions: BTreeMap<String, CudaRegion>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CudaRegion {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub device_id: u64,
    #[prost(uint64, tag = "3")]
    pub byte_size: u64,
}

/// The answer to requests that register and unregister regions.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct RegionResponse {}
