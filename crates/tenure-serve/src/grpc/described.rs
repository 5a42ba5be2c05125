//! Conversions to the messages that describe the server and its models.

use super::messages::{
    DataType, DynamicBatching, InferBatchStatistics, InferStatistics, ModelConfig, ModelIndex, ModelInput,
    ModelMetadataResponse, ModelOutput, ModelStatistics, ServerMetadataResponse, SpecificVersions, StatisticDuration,
    TensorMetadata, VersionPolicy,
};
use crate::protocol;
use crate::protocol::{
    BatchStatistics, Datatype, IndexEntry, ModelMetadata, RequestStatistics, ServerMetadata, TensorConfig, Times,
};

impl From<ServerMetadata> for ServerMetadataResponse {
    fn from(ServerMetadata { name, version, extensions }: ServerMetadata) -> Self {
        let extensions = extensions.into_iter().map(String::from).collect();
        Self { name: name.into(), version: version.into(), extensions }
    }
}

impl From<&ModelMetadata> for ModelMetadataResponse {
    fn from(ModelMetadata { name, versions, platform, inputs, outputs, .. }: &ModelMetadata) -> Self {
        Self {
            name: name.clone(),
            versions: versions.clone(),
            platform: platform.clone(),
            inputs: inputs.iter().map(TensorMetadata::from).collect(),
            outputs: outputs.iter().map(TensorMetadata::from).collect(),
        }
    }
}

impl From<&protocol::TensorMetadata> for TensorMetadata {
    fn from(protocol::TensorMetadata { name, datatype, shape }: &protocol::TensorMetadata) -> Self {
        Self { name: name.clone(), datatype: datatype.name().into(), shape: shape.clone() }
    }
}

impl From<IndexEntry> for ModelIndex {
    fn from(IndexEntry { name, version, state, reason }: IndexEntry) -> Self {
        Self { name, version, state: state.name().into(), reason }
    }
}

impl From<protocol::ModelConfig> for ModelConfig {
    fn from(config: protocol::ModelConfig) -> Self {
        let versions = config.version_policy.specific.versions;
        Self {
            name: config.name,
            platform: config.platform,
            version_policy: Some(VersionPolicy { specific: Some(SpecificVersions { versions }) }),
            max_batch_size: rows(config.max_batch_size),
            inputs: config.input.into_iter().map(Into::into).collect(),
            outputs: config.output.into_iter().map(Into::into).collect(),
            dynamic_batching: config.dynamic_batching.map(Into::into),
            backend: config.backend.into(),
        }
    }
}

impl From<TensorConfig> for ModelInput {
    fn from(TensorConfig { name, data_type, dims }: TensorConfig) -> Self {
        Self { name, data_type: DataType::from(data_type).into(), dims }
    }
}

impl From<TensorConfig> for ModelOutput {
    fn from(TensorConfig { name, data_type, dims }: TensorConfig) -> Self {
        Self { name, data_type: DataType::from(data_type).into(), dims }
    }
}

impl From<protocol::DynamicBatching> for DynamicBatching {
    fn from(batching: protocol::DynamicBatching) -> Self {
        let protocol::DynamicBatching { preferred_batch_size, max_queue_delay_microseconds } = batching;
        let preferred_batch_size = preferred_batch_size.into_iter().map(rows).collect();
        Self { preferred_batch_size, max_queue_delay_microseconds }
    }
}

/// Converts the rows of a batch to the type of the message.
fn rows(rows: u32) -> i32 {
    rows.try_into().unwrap_or(i32::MAX)
}

impl From<Datatype> for DataType {
    fn from(datatype: Datatype) -> Self {
        match datatype {
            Datatype::Bool => Self::Bool,
            Datatype::Uint8 => Self::Uint8,
            Datatype::Uint16 => Self::Uint16,
            Datatype::Uint32 => Self::Uint32,
            Datatype::Uint64 => Self::Uint64,
            Datatype::Int8 => Self::Int8,
            Datatype::Int16 => Self::Int16,
            Datatype::Int32 => Self::Int32,
            Datatype::Int64 => Self::Int64,
            Datatype::Fp16 => Self::Fp16,
            Datatype::Bf16 => Self::Bf16,
            Datatype::Fp32 => Self::Fp32,
            Datatype::Fp64 => Self::Fp64,
            Datatype::Bytes => Self::String,
        }
    }
}

impl From<protocol::ModelStatistics> for ModelStatistics {
    fn from(statistics: protocol::ModelStatistics) -> Self {
        Self {
            name: statistics.name,
            version: statistics.version,
            last_inference: statistics.last_inference,
            inference_count: statistics.inference_count,
            execution_count: statistics.execution_count,
            inference_stats: Some(statistics.inference_stats.into()),
            batch_stats: statistics.batch_stats.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<RequestStatistics> for InferStatistics {
    fn from(statistics: RequestStatistics) -> Self {
        Self {
            success: Some(statistics.success.into()),
            fail: Some(statistics.fail.into()),
            queue: Some(statistics.queue.into()),
            compute_input: Some(statistics.compute_input.into()),
            compute_infer: Some(statistics.compute_infer.into()),
            compute_output: Some(statistics.compute_output.into()),
            cache_hit: Some(statistics.cache_hit.into()),
            cache_miss: Some(statistics.cache_miss.into()),
        }
    }
}

impl From<BatchStatistics> for InferBatchStatistics {
    fn from(statistics: BatchStatistics) -> Self {
        let BatchStatistics { batch_size, compute_input, compute_infer, compute_output } = statistics;
        Self {
            batch_size,
            compute_input: Some(compute_input.into()),
            compute_infer: Some(compute_infer.into()),
            compute_output: Some(compute_output.into()),
        }
    }
}

impl From<Times> for StatisticDuration {
    fn from(Times { count, ns }: Times) -> Self {
        Self { count, ns }
    }
}
