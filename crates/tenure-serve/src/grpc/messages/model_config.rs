//! A model's configuration, with the field numbers of Triton's `model_config.proto`; only the fields that our models
//! have.

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelConfigRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub platform: String,
    #[prost(message, optional, tag = "3")]
    pub version_policy: Option<VersionPolicy>,
    #[prost(int32, tag = "4")]
    pub max_batch_size: i32,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<ModelInput>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<ModelOutput>,
    #[prost(message, optional, tag = "11")]
    pub dynamic_batching: Option<DynamicBatching>,
    #[prost(string, tag = "17")]
    pub backend: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VersionPolicy {
    #[prost(message, optional, tag = "3")]
    pub specific: Option<SpecificVersions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SpecificVersions {
    #[prost(int64, repeated, tag = "1")]
    pub versions: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelInput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    #[prost(int64, repeated, tag = "4")]
    pub dims: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelOutput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DynamicBatching {
    #[prost(int32, repeated, tag = "1")]
    pub preferred_batch_size: Vec<i32>,
    #[prost(uint64, tag = "2")]
    pub max_queue_delay_microseconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DataType {
    Invalid = 0,
    Bool = 1,
    Uint8 = 2,
    Uint16 = 3,
    Uint32 = 4,
    Uint64 = 5,
    Int8 = 6,
    Int16 = 7,
    Int32 = 8,
    Int64 = 9,
    Fp16 = 10,
    Fp32 = 11,
    Fp64 = 12,
    String = 13,
    Bf16 = 14,
}
