//! The errors of this crate, by subsystem.

use crate::{DType, Device, DeviceKind, MemoryFormat};

/// An error of this crate, with one variant for each subsystem.
///
/// Every subsystem's error converts into it with `?`. Crates above this one wrap it in an enum of their own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text names no device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A text names no dtype, or two dtypes have none in common.
    #[error(transparent)]
    DType(#[from] DTypeError),
    /// A layout does not exist, or does not fit its storage.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An allocator refused memory.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// A storage refused to change.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The error for a text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no such kind of device.
    #[error("unknown device {text:?}: expected \"cpu\", \"cuda\" or \"cuda:INDEX\"")]
    UnknownKind {
        /// The whole text.
        text: String,
    },
    /// The text after the colon is no index.
    #[error("bad device index in {text:?}: expected a number from 0 to 255 without sign or leading zeros")]
    BadIndex {
        /// The whole text.
        text: String,
    },
    /// The CPU does not have this index.
    #[error("no device {text:?}: there is one CPU device, \"cpu\"")]
    OneCpu {
        /// The whole text.
        text: String,
    },
}

/// The error for a dtype that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DTypeError {
    /// There is no such dtype.
    #[error("unknown dtype {text:?}: expected {}", known_dtypes())]
    Unknown {
        /// The whole text.
        text: String,
    },
    /// No integer dtype holds the values of both.
    #[error("no integer dtype holds the values of both {left} and {right}: convert one of them first")]
    NoCommon {
        /// The dtype of one operand.
        left: DType,
        /// The dtype of the other operand.
        right: DType,
    },
}

/// The error for a layout, or a view of one, that does not exist. Sizes, strides and offsets are in elements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A number of elements, an element's place, or a number of bytes is past `isize::MAX`.
    #[error("a layout of sizes {sizes:?} is larger than any memory: check how the shape was computed")]
    TooLarge {
        /// The sizes that were asked for.
        sizes: Vec<usize>,
    },
    /// The number of values differs from the number of dimensions.
    #[error("{what}: got {actual}, need {expected}, one for each dimension")]
    RankMismatch {
        /// The name of the values: `strides` or `indices`.
        what: &'static str,
        /// The number of values.
        actual: usize,
        /// The number of dimensions.
        expected: usize,
    },
    /// The layout does not have this dimension.
    #[error("dimension {dim} is out of range for a layout of {rank} dimensions")]
    DimOutOfRange {
        /// The dimension that was asked for.
        dim: usize,
        /// The number of dimensions.
        rank: usize,
    },
    /// The index is past the end of its dimension.
    #[error("index {index} is out of range for dimension {dim} of size {size}")]
    IndexOutOfRange {
        /// The index that was asked for.
        index: usize,
        /// The dimension.
        dim: usize,
        /// The dimension's size.
        size: usize,
    },
    /// The range ends past the end of its dimension.
    #[error("start {start} and length {length} exceed dimension {dim} of size {size}")]
    RangeOutOfRange {
        /// The range's first index.
        start: usize,
        /// The range's length.
        length: usize,
        /// The dimension.
        dim: usize,
        /// The dimension's size.
        size: usize,
    },
    /// A slice's step is 0, with which it would never end.
    #[error("a slice's step must be at least 1, got 0")]
    ZeroStep,
    /// An order of dimensions does not have every dimension exactly once.
    #[error("{dims:?} is not a permutation of 0..{rank}")]
    NotAPermutation {
        /// The order that was asked for.
        dims: Vec<usize>,
        /// The number of dimensions.
        rank: usize,
    },
    /// A dimension that is to expand has a size other than 1.
    #[error(
        "sizes {sizes:?} do not expand to {target:?}: aligned at the last dimension, each size must equal its target \
         or be 1"
    )]
    NotExpandable {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The sizes that were asked for.
        target: Vec<usize>,
    },
    /// The target holds another number of elements.
    #[error("sizes {target:?} do not hold the {numel} elements of sizes {sizes:?}")]
    NumelMismatch {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The layout's number of elements.
        numel: usize,
        /// The sizes that were asked for.
        target: Vec<usize>,
    },
    /// No strides give the target the same elements in the same order.
    #[error(
        "sizes {sizes:?} with strides {strides:?} cannot be viewed as {target:?}: a dimension would span two that are \
         not contiguous with each other; reshape, which copies, or copy first"
    )]
    NotViewable {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The layout's strides.
        strides: Vec<usize>,
        /// The sizes that were asked for.
        target: Vec<usize>,
    },
    /// Elements are past the end of the storage.
    #[error(
        "sizes {sizes:?} with strides {strides:?} at offset {offset} need {required} bytes of {dtype}, and the storage \
         has {available}"
    )]
    OutOfBounds {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The layout's strides.
        strides: Vec<usize>,
        /// The layout's offset.
        offset: usize,
        /// The type of the elements.
        dtype: DType,
        /// The bytes up to the end of the last element.
        required: usize,
        /// The bytes of the storage.
        available: usize,
    },
    /// The memory format is for another number of dimensions.
    #[error("memory format {format} needs {expected} dimensions, got sizes {sizes:?}")]
    FormatRank {
        /// The format that was asked for.
        format: MemoryFormat,
        /// The number of dimensions that the format is for.
        expected: usize,
        /// The sizes that were asked for.
        sizes: Vec<usize>,
    },
}

/// The error for memory that was refused. The failed call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// No allocator was registered.
    #[error("no allocator is registered for {kind}: register one before allocating there")]
    NotRegistered {
        /// The kind of device.
        kind: DeviceKind,
    },
    /// There is not enough memory.
    #[error(
        "out of memory on {device}: asked for {requested} bytes with {allocated} allocated; free tensors that are no \
         longer needed, or make the request smaller"
    )]
    OutOfMemory {
        /// The device of the memory.
        device: Device,
        /// The bytes that were asked for.
        requested: usize,
        /// The bytes in the allocator's live allocations.
        allocated: usize,
    },
    /// There is not enough memory, on a device that knows which allocations hold it.
    #[error("{report}")]
    DeviceOutOfMemory {
        /// The device of the memory.
        device: Device,
        /// The bytes that were asked for.
        requested: usize,
        /// A text that lists the holders of memory, and remedies to try.
        report: String,
    },
    /// The request is larger than any address space.
    #[error("a request of {requested} bytes is larger than any memory: check the shape it was computed from")]
    TooLarge {
        /// The bytes that were asked for.
        requested: usize,
    },
    /// The allocator's pointers are not their own contexts.
    #[error("raw allocation on {device} is not possible: the allocator's pointers need a context of their own")]
    NoRawAllocation {
        /// The device of the memory.
        device: Device,
    },
    /// There is no such NUMA node.
    #[error("NUMA node {node} cannot take memory: {reason}; the nodes are listed in /sys/devices/system/node")]
    BadNumaNode {
        /// The node that was asked for.
        node: u32,
        /// The system's message.
        reason: String,
    },
    /// The device failed.
    #[error("{call} on {device} failed: {reason}")]
    Failed {
        /// The device that failed.
        device: Device,
        /// The call that failed.
        call: &'static str,
        /// The device's message.
        reason: String,
    },
}

/// The error for a storage that refused to change. The storage is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Other code relies on the place of the bytes: a foreign owner, or an exported view.
    #[error("a storage of {bytes} bytes that is not resizable was asked for {requested}: copy to a new storage")]
    NotResizable {
        /// The bytes of the storage.
        bytes: usize,
        /// The bytes that were asked for.
        requested: usize,
    },
    /// The storage has no allocator to take new memory from.
    #[error("a storage without an allocator cannot be made resizable: give it one when it is made")]
    NoAllocator,
    /// The bytes are not on the device from which the allocator could copy them.
    #[error("a storage whose data is on {data} cannot be resized by an allocator of {allocator}: move it first")]
    DeviceMismatch {
        /// The device of the bytes.
        data: Device,
        /// The device of the allocator's memory.
        allocator: Device,
    },
    /// The allocator refused.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
}

fn known_dtypes() -> String {
    let names = DType::ALL.map(DType::name);
    let (last, others) = names.split_last().expect("there are dtypes");
    format!("{} or {last}", others.join(", "))
}
