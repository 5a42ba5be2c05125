//! Kernel traces: kernels with their times, inputs and outputs.

use serde::Deserialize;
use tenure_core::Tag;

use super::{Problem, ProblemAccess, ProblemError, ProblemKernel, ProblemParts, ProblemTensor, tag_name};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelTraceFile {
    name: String,
    #[serde(default)]
    source: String,
    tensors: Vec<TracedBuffer>,
    kernels: Vec<TracedLaunch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TracedBuffer {
    id: u64,
    bytes: u64,
    #[serde(with = "tag_name")]
    role: Tag,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TracedLaunch {
    name: String,
    time_ns: u64,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
}

/// Reads a kernel trace. Each tensor is read or written whole as often as a kernel names it.
pub(super) fn from_json(text: &str) -> Result<Problem, ProblemError> {
    let file: KernelTraceFile = serde_json::from_str(text)?;
    let mut numbers = std::collections::HashMap::new();
    for (number, buffer) in file.tensors.iter().enumerate() {
        if numbers.insert(buffer.id, number).is_some() {
            return Err(ProblemError::part(format!("tensor {}", buffer.id), "another tensor has its id"));
        }
    }
    let access = |kernel: &str, id: &u64| match numbers.get(id) {
        Some(number) => Ok(ProblemAccess { tensor: *number, bytes: file.tensors[*number].bytes }),
        None => Err(ProblemError::part(format!("kernel {kernel:?}"), format!("no tensor has the id {id}"))),
    };
    let kernels = file
        .kernels
        .iter()
        .map(|launch| {
            let all = |ids: &[u64]| ids.iter().map(|id| access(&launch.name, id)).collect::<Result<_, _>>();
            let reads = all(&launch.inputs)?;
            let writes = all(&launch.outputs)?;
            Ok(ProblemKernel { name: launch.name.clone(), time_ns: launch.time_ns, reads, writes })
        })
        .collect::<Result<_, ProblemError>>()?;
    let backward = file.kernels.iter().position(|launch| launch.name.ends_with("_Backward"));
    let tensors = file.tensors.iter().map(|buffer| ProblemTensor {
        key: buffer.id.to_string(),
        bytes: buffer.bytes,
        tag: buffer.role,
        compression: None,
        recompute: None,
    });
    let tensors = tensors.collect();
    Problem::new(ProblemParts {
        name: file.name,
        source: file.source,
        tensors,
        kernels,
        backward,
        ..ProblemParts::default()
    })
}
