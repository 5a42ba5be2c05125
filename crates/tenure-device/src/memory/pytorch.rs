//! Out-of-memory errors in PyTorch's words (`DeviceCachingAllocator::malloc`, c10/cuda/CUDACachingAllocator.cpp of
//! 2.11), which people know and programs search for.

use std::fmt;

use super::OutOfMemoryReport;
use super::report::Gib;
use crate::DeviceProcess;

/// PyTorch's advice.
const ADVICE: &str = "If reserved but unallocated memory is large try setting \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  \
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";

/// A report with PyTorch's text; see [`OutOfMemoryReport::in_pytorch`].
struct InPytorch<'a>(&'a OutOfMemoryReport);

impl OutOfMemoryReport {
    /// Returns the report, with PyTorch's whole text before it.
    pub fn in_pytorch(&self) -> impl fmt::Display {
        InPytorch(self)
    }

    fn write_processes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.overhead_bytes.is_some() {
            write!(f, "Including non-PyTorch memory, this process has {} memory in use. ", Gib(self.in_use_bytes()))?;
        }
        self.others.iter().try_for_each(|process| match *process {
            DeviceProcess { pid, bytes: Some(bytes) } => write!(f, "Process {pid} has {} memory in use. ", Gib(bytes)),
            DeviceProcess { bytes: None, .. } => Ok(()),
        })
    }
}

impl fmt::Display for InPytorch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = *self;
        report.write_request(f)?;
        report.write_processes(f)?;
        if report.allowed_bytes < report.total_bytes {
            write!(f, "{} allowed; ", Gib(report.allowed_bytes))?;
        }
        // PyTorch counts memory that private pools keep as allocated.
        let allocated = report.allocated_bytes + report.pooled_bytes;
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", Gib(allocated))?;
        if report.pooled_bytes > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", Gib(report.pooled_bytes))?;
        }
        let unallocated = Gib(report.reserved_bytes.saturating_sub(allocated));
        write!(f, "and {unallocated} is reserved by PyTorch but unallocated. {ADVICE}\nTenure: ")?;
        report.write_use(f)?;
        report.write_holders(f)
    }
}
