//! Problems made of recorded allocator traces.

use std::collections::HashMap;

use tenure_core::Tag;

use super::{Problem, ProblemAccess, ProblemError, ProblemKernel, ProblemParts, ProblemTensor};
use crate::{Trace, TraceAction};

impl Problem {
    /// Makes a problem of the program that a trace recorded. An allocator sees allocations and frees, but no kernels:
    /// - each block is a tensor; its key is its bytes and the number of earlier blocks of the same size: `4096#2`;
    /// - each allocation begins a kernel, which writes that block, reads the blocks that are freed before the next
    ///   allocation, and takes the time until then;
    /// - a block that is never freed always exists, like a weight.
    ///
    /// # Errors
    /// Sums of bytes or times exceed 64 bits.
    pub fn of_trace(trace: &Trace) -> Result<Self, ProblemError> {
        let mut parts =
            ProblemParts { name: trace.source().to_owned(), source: "memory trace".into(), ..ProblemParts::default() };
        let mut live = HashMap::new();
        let mut seen = HashMap::new();
        let mut begun_us = 0;
        for event in trace.events() {
            match event.action {
                TraceAction::Alloc => {
                    end_kernel(&mut parts, event.time_us - begun_us);
                    begun_us = event.time_us;
                    let occurrence = seen.entry(event.bytes).and_modify(|count| *count += 1).or_insert(0_u64);
                    let tensor = parts.tensors.len();
                    let bytes = event.bytes;
                    let key = format!("{}#{occurrence}", event.bytes);
                    live.insert(event.address, tensor);
                    // A weight for now: a free changes the tag to unknown.
                    parts.tensors.push(ProblemTensor {
                        key,
                        bytes,
                        tag: Tag::Weight,
                        compression: None,
                        recompute: None,
                    });
                    let writes = vec![ProblemAccess { tensor, bytes }];
                    parts.kernels.push(ProblemKernel {
                        name: "allocation".into(),
                        time_ns: 0,
                        reads: Vec::new(),
                        writes,
                    });
                }
                TraceAction::FreeRequested => {
                    if let (Some(tensor), Some(kernel)) = (live.remove(&event.address), parts.kernels.last_mut()) {
                        parts.tensors[tensor].tag = Tag::Unknown;
                        kernel.reads.push(ProblemAccess { tensor, bytes: event.bytes });
                    }
                }
                _ => {}
            }
        }
        let last_us = trace.events().last().map_or(0, |event| event.time_us);
        end_kernel(&mut parts, last_us - begun_us);
        Self::new(parts)
    }
}

fn end_kernel(parts: &mut ProblemParts, elapsed_us: u64) {
    if let Some(kernel) = parts.kernels.last_mut() {
        kernel.time_ns = elapsed_us.saturating_mul(1000);
    }
}
