//! What can go wrong with tensors.

use tenure_device::CallError;
use tenure_device::collective::CollectiveError;
use tenure_device::cuda::KernelError;
use tenure_device::memory::MemoryError;

use tenure_core::{AllocatorError, DType, DTypeError, Device, DeviceError, DeviceKind, LayoutError, StorageError};

/// What the operations of this crate return.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// Why an operation was refused. A failed operation has changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Devices, dtypes, layouts, memory.
    #[error(transparent)]
    Core(#[from] tenure_core::Error),
    /// Sizes that do not go together.
    #[error("{op}: {reason}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which sizes, and which were needed.
        reason: String,
    },
    /// Sizes that do not broadcast.
    #[error(
        "{op}: sizes {left:?} and {right:?} do not broadcast: at dimension {dim} from the end, {} and {} differ and \
         neither is 1",
        left[left.len() - dim], right[right.len() - dim]
    )]
    Broadcast {
        /// The operation.
        op: &'static str,
        /// Sizes of the first.
        left: Vec<usize>,
        /// Sizes of the second.
        right: Vec<usize>,
        /// Where they differ: 1 is the last dimension.
        dim: usize,
    },
    /// A dimension that is not there. Negative ones count from the end.
    #[error("{op}: dimension {dim} is out of range for a tensor of {rank} dimensions: expected {} to {}",
        -(*(.rank.max(&1)) as isize), .rank.max(&1) - 1)]
    Dim {
        /// The operation.
        op: &'static str,
        /// As given.
        dim: isize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// A dtype that the operation does not take there.
    #[error("{op}: got {found}, but {expected}")]
    DType {
        /// The operation.
        op: &'static str,
        /// What was given.
        found: DType,
        /// What is needed, and how to get it.
        expected: String,
    },
    /// Tensors on different devices.
    #[error("{op}: tensors are on {left} and on {right}: move one of them with to_device() first")]
    Device {
        /// The operation.
        op: &'static str,
        /// Where one is.
        left: Device,
        /// Where another is.
        right: Device,
    },
    /// Nobody computes this there.
    #[error("{op} is not implemented for {dtype} on {device}: convert first, or register a kernel")]
    NoKernel {
        /// The operation.
        op: &'static str,
        /// The kind of device.
        device: DeviceKind,
        /// The dtype.
        dtype: DType,
    },
    /// An index that is not there.
    #[error("{op}: index {index} is out of range for dimension {dim} of size {size}")]
    Index {
        /// The operation.
        op: &'static str,
        /// As given.
        index: i64,
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// A value that the operation does not take.
    #[error("{op}: {reason}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// Which value, and what is expected.
        reason: String,
    },
    /// A write to memory that is read or written twice.
    #[error(
        "{op}: {reason}; write to a copy (contiguous() of an expanded tensor, or copy() of one that overlaps) instead"
    )]
    Overlap {
        /// The operation.
        op: &'static str,
        /// Which tensors overlap.
        reason: String,
    },
    /// Differentiation was refused.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A device cannot be used, or failed.
    #[error("{op}: {error}")]
    Memory {
        /// The operation.
        op: &'static str,
        /// What the device says.
        error: Box<MemoryError>,
    },
    /// A kernel of a device could not be had.
    #[error("{op}: {error}")]
    Kernel {
        /// The operation.
        op: &'static str,
        /// What the compiler or the driver says.
        error: Box<KernelError>,
    },
    /// Devices do not work together.
    #[error("{op}: {error}")]
    Collective {
        /// The operation.
        op: &'static str,
        /// Why.
        error: Box<CollectiveError>,
    },
    /// What an earlier operation met while the device computed it. What it was to write there is any value; all else is as
    /// it should be.
    #[error("{0} (found by the device, after the operation had returned)")]
    Late(Box<TensorError>),
}

/// Why gradients cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AutogradError {
    /// `backward` of a tensor that depends on nothing that requires a gradient.
    #[error(
        "backward: output {index} does not require a gradient and has no grad_fn: nothing it was computed from requires \
         one, or it was computed inside no_grad()"
    )]
    NoGraph {
        /// Which of the outputs.
        index: usize,
    },
    /// `backward` of more than one element with no gradient given.
    #[error(
        "backward: a gradient can be left out for a tensor of one element only, got sizes {sizes:?}: \
             reduce it with sum_all() or mean_all(), or pass one to autograd::backward()"
    )]
    NotScalar {
        /// The tensor's sizes.
        sizes: Vec<usize>,
    },
    /// Saved tensors are gone.
    #[error(
        "{node}: backward goes through this graph a second time, but what it saved was freed after the first: say \
         retain_graph the first time"
    )]
    Freed {
        /// The operation's node.
        node: String,
    },
    /// A saved tensor was written to.
    #[error(
        "{node}: a tensor that its gradient needs was modified in place by {writer}: {dtype} {sizes:?}{origin} is at \
         version {found}, expected {saved}. Use an operation that is not in place, or copy() the tensor before it is \
         changed"
    )]
    Modified {
        /// The operation's node.
        node: String,
        /// The tensor's dtype.
        dtype: DType,
        /// The tensor's sizes.
        sizes: Vec<usize>,
        /// What made it, if that is known.
        origin: String,
        /// The operation that wrote to it last.
        writer: &'static str,
        /// The version it has.
        found: u64,
        /// The version it had.
        saved: u64,
    },
    /// A leaf that requires a gradient was written to.
    #[error(
        "{op}: {}a leaf that requires a gradient, {dtype} {sizes:?}, cannot be modified in place: do it inside \
         no_grad(), or to a copy",
        if *.is_view { "a view of " } else { "" }
    )]
    LeafModified {
        /// The operation.
        op: &'static str,
        /// Whether it was written to through a view.
        is_view: bool,
        /// The leaf's dtype.
        dtype: DType,
        /// The leaf's sizes.
        sizes: Vec<usize>,
    },
    /// Integers have no gradient.
    #[error("only tensors of floating dtypes can require a gradient, got {dtype}")]
    NotFloating {
        /// The tensor's dtype.
        dtype: DType,
    },
    /// `requires_grad` of a tensor that was computed.
    #[error("requires_grad can be changed on leaves only: detach() first")]
    NotLeaf,
    /// A gradient of other sizes than its tensor.
    #[error("{node}: gradient {index} has sizes {found:?}, expected {expected:?}")]
    GradientSizes {
        /// The operation's node.
        node: String,
        /// Which of the gradients.
        index: usize,
        /// Its sizes.
        found: Vec<usize>,
        /// The tensor's.
        expected: Vec<usize>,
    },
    /// Not as many gradients as inputs.
    #[error("{node}: backward gave {found} gradients for {expected} inputs")]
    GradientCount {
        /// The operation's node.
        node: String,
        /// Gradients.
        found: usize,
        /// Inputs.
        expected: usize,
    },
    /// Asked for the gradient of something the result does not depend on.
    #[error("grad: input {index} is not used by the outputs: allow_unused gives none for it")]
    Unused {
        /// Which of the inputs.
        index: usize,
    },
    /// Found by anomaly mode.
    #[error("{node}: gradient {index} has a value that is no number{forward}")]
    NotANumber {
        /// The operation's node.
        node: String,
        /// Which of the gradients.
        index: usize,
        /// Where the operation was called.
        forward: String,
    },
    /// Said by the formula, or a hook.
    #[error("{node}: {reason}")]
    Other {
        /// The operation's node.
        node: String,
        /// The reason.
        reason: String,
    },
}

/// For what surrounds operations, such as a capture.
impl From<MemoryError> for TensorError {
    fn from(error: MemoryError) -> Self {
        Self::memory("device", error)
    }
}

impl TensorError {
    #[track_caller]
    pub(crate) fn device(op: &'static str, error: CallError) -> Self {
        Self::Memory { op, error: Box::new(error.into()) }
    }

    pub(crate) fn collective(op: &'static str, error: CollectiveError) -> Self {
        Self::Collective { op, error: Box::new(error) }
    }

    pub(crate) fn memory(op: &'static str, error: MemoryError) -> Self {
        Self::Memory { op, error: Box::new(error) }
    }

    pub(crate) fn kernel(op: &'static str, error: KernelError) -> Self {
        Self::Kernel { op, error: Box::new(error) }
    }

    /// Sizes do not go together.
    pub fn shape(op: &'static str, reason: impl Into<String>) -> Self {
        Self::Shape { op, reason: reason.into() }
    }

    /// A value is not taken.
    pub fn argument(op: &'static str, reason: impl Into<String>) -> Self {
        Self::Argument { op, reason: reason.into() }
    }
}

macro_rules! from_core {
    ($($error:ty),*) => {$(
        impl From<$error> for TensorError {
            fn from(error: $error) -> Self {
                Self::Core(error.into())
            }
        }
    )*};
}
from_core!(DeviceError, DTypeError, LayoutError, AllocatorError, StorageError);
