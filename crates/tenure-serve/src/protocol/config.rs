//! The configuration of a model, in the form of Triton's extension `model_configuration`.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Datatype, ModelMetadata, TensorMetadata};

/// The batching of a model's requests, along the first dimension of all its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// The most rows of a batch, and of one request.
    pub max_rows: u32,
    /// The longest time that a request waits for others.
    pub max_delay: Duration,
}

/// A model's configuration: facts beside its [`ModelMetadata`] that load generators and other clients need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelConfig {
    pub(crate) name: String,
    pub(crate) platform: String,
    pub(crate) backend: &'static str,
    pub(crate) version_policy: VersionPolicy,
    /// The most rows of a batch; 0 if shapes have no batch dimension.
    pub(crate) max_batch_size: u32,
    pub(crate) input: Vec<TensorConfig>,
    pub(crate) output: Vec<TensorConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dynamic_batching: Option<DynamicBatching>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct VersionPolicy {
    pub(crate) specific: Versions,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Versions {
    /// Triton's versions are numbers.
    pub(crate) versions: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TensorConfig {
    pub(crate) name: String,
    #[serde(serialize_with = "data_type")]
    pub(crate) data_type: Datatype,
    /// The shape without the batch dimension.
    pub(crate) dims: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DynamicBatching {
    pub(crate) preferred_batch_size: Vec<u32>,
    pub(crate) max_queue_delay_microseconds: u64,
}

impl ModelConfig {
    /// Builds the configuration of a model.
    pub fn new(model: &ModelMetadata) -> Self {
        let ModelMetadata { name, versions, platform, inputs, outputs, batching } = model;
        let tensors = |tensors: &[TensorMetadata]| {
            tensors.iter().map(|tensor| TensorConfig::new(tensor, batching.is_some())).collect()
        };
        let dynamic_batching = batching.filter(|batching| batching.max_rows > 1).map(|batching| DynamicBatching {
            preferred_batch_size: vec![batching.max_rows],
            max_queue_delay_microseconds: batching.max_delay.as_micros().try_into().unwrap_or(u64::MAX),
        });
        Self {
            name: name.clone(),
            platform: platform.clone(),
            backend: "tenure",
            version_policy: VersionPolicy {
                specific: Versions { versions: versions.iter().filter_map(|version| version.parse().ok()).collect() },
            },
            max_batch_size: batching.map_or(0, |batching| batching.max_rows),
            input: tensors(inputs),
            output: tensors(outputs),
            dynamic_batching,
        }
    }
}

impl TensorConfig {
    fn new(tensor: &TensorMetadata, is_batched: bool) -> Self {
        let dims = tensor.shape.iter().skip(usize::from(is_batched)).copied().collect();
        Self { name: tensor.name.clone(), data_type: tensor.datatype, dims }
    }
}

/// Writes Triton's name of a datatype in a configuration.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn data_type<S: Serializer>(datatype: &Datatype, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match datatype {
        Datatype::Bool => "TYPE_BOOL",
        Datatype::Uint8 => "TYPE_UINT8",
        Datatype::Uint16 => "TYPE_UINT16",
        Datatype::Uint32 => "TYPE_UINT32",
        Datatype::Uint64 => "TYPE_UINT64",
        Datatype::Int8 => "TYPE_INT8",
        Datatype::Int16 => "TYPE_INT16",
        Datatype::Int32 => "TYPE_INT32",
        Datatype::Int64 => "TYPE_INT64",
        Datatype::Fp16 => "TYPE_FP16",
        Datatype::Bf16 => "TYPE_BF16",
        Datatype::Fp32 => "TYPE_FP32",
        Datatype::Fp64 => "TYPE_FP64",
        Datatype::Bytes => "TYPE_STRING",
    })
}
