//! Errors of tensor operations.

use tenure_device::CallError;
use tenure_device::collective::CollectiveError;
use tenure_device::cuda::KernelError;
use tenure_device::memory::MemoryError;

use tenure_core::{
    AllocatorError, DType, DTypeError, Device, DeviceError, DeviceKind, Error, LayoutError, StorageError,
};

/// The result of an operation of this crate.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// The reason why an operation failed. A failed operation has changed nothing, except where a variant says otherwise.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// An error of `tenure-core`: devices, dtypes, layouts, memory.
    #[error(transparent)]
    Core(#[from] tenure_core::Error),
    /// Sizes that do not match.
    #[error("{op}: {reason}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which sizes were given, and which were expected.
        reason: String,
    },
    /// Sizes that do not broadcast together.
    #[error(
        "{op}: sizes {left:?} and {right:?} do not broadcast: at dimension {dim} from the end, {} and {} differ and \
         neither is 1",
        left[left.len() - dim], right[right.len() - dim]
    )]
    Broadcast {
        /// The operation.
        op: &'static str,
        /// The sizes of the first operand.
        left: Vec<usize>,
        /// The sizes of the second operand.
        right: Vec<usize>,
        /// The dimension where they differ, counted from the end: 1 is the last.
        dim: usize,
    },
    /// A dimension that does not exist. Negative dimensions count from the end.
    #[error("{op}: dimension {dim} is out of range for a tensor of {rank} dimensions: expected {} to {}",
        -(*(.rank.max(&1)) as isize), .rank.max(&1) - 1)]
    Dim {
        /// The operation.
        op: &'static str,
        /// The dimension that was given.
        dim: isize,
        /// The tensor's number of dimensions.
        rank: usize,
    },
    /// A dtype that the operation does not accept.
    #[error("{op}: got {found}, but {expected}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The dtype that was given.
        found: DType,
        /// The dtype that is expected, and how to get it.
        expected: String,
    },
    /// Tensors on different devices.
    #[error("{op}: tensors are on {left} and on {right}: move one of them with to_device() first")]
    Device {
        /// The operation.
        op: &'static str,
        /// The device of one tensor.
        left: Device,
        /// The device of another tensor.
        right: Device,
    },
    /// No kernel is registered for this dtype on this kind of device.
    #[error("{op} is not implemented for {dtype} on {device}: convert first, or register a kernel")]
    NoKernel {
        /// The operation.
        op: &'static str,
        /// The kind of device.
        device: DeviceKind,
        /// The dtype.
        dtype: DType,
    },
    /// A factorization or a solver in a build without the feature `linalg`.
    #[error("{op} is not in this build: build it with the feature `linalg`")]
    NoLinalg {
        /// The operation.
        op: &'static str,
    },
    /// An index out of range.
    #[error("{op}: index {index} is out of range for dimension {dim} of size {size}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The index that was given.
        index: i64,
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// A mask whose sizes are not those of the dimensions that it indexes.
    #[error(
        "{op}: the shape of the mask {mask:?} at index {dim} does not match the shape of the indexed tensor {sizes:?} at \
         index {}", first + dim
    )]
    Mask {
        /// The operation.
        op: &'static str,
        /// The sizes of the mask.
        mask: Vec<usize>,
        /// The mask's dimension where they differ.
        dim: usize,
        /// The sizes of the tensor.
        sizes: Vec<usize>,
        /// The tensor's dimension that the mask's first one indexes.
        first: usize,
    },
    /// Indices for more dimensions than the tensor has.
    #[error("{op}: too many indices for tensor of dimension {rank}: they are for {count} dimensions")]
    TooManyIndices {
        /// The operation.
        op: &'static str,
        /// The number of dimensions that the indices are for.
        count: usize,
        /// The tensor's number of dimensions.
        rank: usize,
    },
    /// An argument that the operation does not accept.
    #[error("{op}: {reason}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// Which argument, and what is expected.
        reason: String,
    },
    /// A matrix for which an operation of linear algebra has no result: it is singular, not positive definite, or not
    /// finite.
    #[error("{op}: {reason}")]
    Matrix {
        /// The operation.
        op: &'static str,
        /// Which matrix of a batch, and the reason.
        reason: String,
    },
    /// A write to memory that the operation also reads, or writes twice.
    #[error(
        "{op}: {reason}; write to a copy (contiguous() of an expanded tensor, or copy() of one that overlaps) instead"
    )]
    Overlap {
        /// The operation.
        op: &'static str,
        /// Which tensors overlap.
        reason: String,
    },
    /// A write to memory that must not be written to.
    #[error(
        "{op}: the memory of {dtype} {sizes:?} is read-only, since it belongs to an array of another library that must \
         not change: write to a copy of the tensor instead"
    )]
    ReadOnly {
        /// The operation.
        op: &'static str,
        /// The dtype of the tensor.
        dtype: DType,
        /// The sizes of the tensor.
        sizes: Vec<usize>,
    },
    /// Differentiation was refused.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A device failed or cannot be used.
    #[error("{op}: {error}")]
    Memory {
        /// The operation.
        op: &'static str,
        /// The device's error.
        error: Box<MemoryError>,
    },
    /// A device kernel could not be compiled or loaded.
    #[error("{op}: {error}")]
    Kernel {
        /// The operation.
        op: &'static str,
        /// The error of the compiler or the driver.
        error: Box<KernelError>,
    },
    /// A collective operation between devices failed.
    #[error("{op}: {error}")]
    Collective {
        /// The operation.
        op: &'static str,
        /// The reason.
        error: Box<CollectiveError>,
    },
    /// An error of an earlier operation, found by the device while it computed. The output of that operation has
    /// unspecified values; all other tensors are as they should be.
    #[error("{0} (found by the device, after the operation had returned)")]
    Late(Box<TensorError>),
}

/// The reason why gradients cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AutogradError {
    /// `backward` was called on a tensor that depends on nothing that requires a gradient.
    #[error(
        "backward: output {index} does not require a gradient and has no grad_fn: nothing it was computed from requires \
         one, or it was computed inside no_grad()"
    )]
    NoGraph {
        /// The output's number.
        index: usize,
    },
    /// `backward` was called on more than one element without a gradient.
    #[error(
        "backward: a gradient can be left out for a tensor of one element only, got sizes {sizes:?}: \
             reduce it with sum_all() or mean_all(), or pass one to autograd::backward()"
    )]
    NotScalar {
        /// The tensor's sizes.
        sizes: Vec<usize>,
    },
    /// Saved tensors were already freed.
    #[error(
        "{node}: backward goes through this graph a second time, but its saved tensors were freed after the first: pass \
         retain_graph=True to that one"
    )]
    Freed {
        /// The operation's node.
        node: String,
    },
    /// A saved tensor was modified in place.
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
        /// The operation that made the tensor, if known.
        origin: String,
        /// The operation that wrote to it last.
        writer: &'static str,
        /// The tensor's current version.
        found: u64,
        /// The tensor's version when it was saved.
        saved: u64,
    },
    /// A leaf that requires a gradient was modified in place.
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
    /// `requires_grad` was set on a tensor that was computed.
    #[error("requires_grad can be changed on leaves only: detach() first")]
    NotLeaf,
    /// A gradient's sizes differ from its tensor's.
    #[error("{node}: gradient {index} has sizes {found:?}, expected {expected:?}")]
    GradientSizes {
        /// The operation's node.
        node: String,
        /// The gradient's number.
        index: usize,
        /// The gradient's sizes.
        found: Vec<usize>,
        /// The tensor's sizes.
        expected: Vec<usize>,
    },
    /// A node gave another number of gradients than it has inputs.
    #[error("{node}: backward gave {found} gradients for {expected} inputs")]
    GradientCount {
        /// The operation's node.
        node: String,
        /// The number of gradients.
        found: usize,
        /// The number of inputs.
        expected: usize,
    },
    /// `grad` was asked for an input that the outputs do not depend on.
    #[error("grad: input {index} is not used by the outputs: allow_unused gives none for it")]
    Unused {
        /// The input's number.
        index: usize,
    },
    /// Anomaly mode found a NaN in a gradient.
    #[error("{node}: gradient {index} has a value that is not a number{forward}")]
    NotANumber {
        /// The operation's node.
        node: String,
        /// The gradient's number.
        index: usize,
        /// Where the operation was called.
        forward: String,
    },
    /// A gradient formula or a hook failed.
    #[error("{node}: {reason}")]
    Other {
        /// The operation's node.
        node: String,
        /// The reason.
        reason: String,
    },
}

/// Converts errors of code around operations, such as a capture, which has no operation's name.
impl From<MemoryError> for TensorError {
    fn from(error: MemoryError) -> Self {
        Self::memory("device", error)
    }
}

impl TensorError {
    /// Returns whether there was too little memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Core(Error::Allocator(error) | Error::Storage(StorageError::Allocator(error))) => {
                matches!(error, AllocatorError::OutOfMemory { .. } | AllocatorError::DeviceOutOfMemory { .. })
            }
            Self::Memory { error, .. } => error.is_out_of_memory(),
            _ => false,
        }
    }

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

    /// Returns a [`Shape`](Self::Shape) error of the operation `op`.
    pub fn shape(op: &'static str, reason: impl Into<String>) -> Self {
        Self::Shape { op, reason: reason.into() }
    }

    /// Returns an [`Argument`](Self::Argument) error of the operation `op`.
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
