use crate::{DType, Device, DeviceKind, MemoryFormat};

/// Any error of this crate: one variant a subsystem.
///
/// Every subsystem's error converts into it with `?`; crates above wrap it in an enum of their own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device was named that cannot be.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A dtype was named that cannot be.
    #[error(transparent)]
    DType(#[from] DTypeError),
    /// A layout does not exist, or does not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory was refused.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// A storage refused to change.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a text names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no such kind of device.
    #[error("unknown device {text:?}: expected \"cpu\", \"cuda\" or \"cuda:INDEX\"")]
    UnknownKind {
        /// The whole text.
        text: String,
    },
    /// What follows the colon is no index.
    #[error("bad device index in {text:?}: expected a number from 0 to 255 without sign or leading zeros")]
    BadIndex {
        /// The whole text.
        text: String,
    },
    /// An index that the CPU does not have.
    #[error("no device {text:?}: there is one CPU device, \"cpu\"")]
    OneCpu {
        /// The whole text.
        text: String,
    },
}

/// Why a text names no dtype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DTypeError {
    /// There is no such dtype.
    #[error("unknown dtype {text:?}: expected {}", known_dtypes())]
    Unknown {
        /// The whole text.
        text: String,
    },
}

/// Why a layout, or a view of one, does not exist. Sizes, strides and offsets are in elements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A number of elements, an element's place, or a number of bytes is past `isize::MAX`.
    #[error("a layout of sizes {sizes:?} is larger than any memory: check how the shape was computed")]
    TooLarge {
        /// The sizes asked for.
        sizes: Vec<usize>,
    },
    /// One number a dimension was needed.
    #[error("{what}: got {actual}, need {expected}, one for each dimension")]
    RankMismatch {
        /// What there was the wrong number of.
        what: &'static str,
        /// How many there were.
        actual: usize,
        /// How many dimensions there are.
        expected: usize,
    },
    /// A dimension the layout does not have.
    #[error("dimension {dim} is out of range for a layout of {rank} dimensions")]
    DimOutOfRange {
        /// The dimension asked for.
        dim: usize,
        /// How many dimensions there are.
        rank: usize,
    },
    /// An index past the end of its dimension.
    #[error("index {index} is out of range for dimension {dim} of size {size}")]
    IndexOutOfRange {
        /// The index asked for.
        index: usize,
        /// The dimension.
        dim: usize,
        /// The dimension's size.
        size: usize,
    },
    /// A range that ends past the end of its dimension.
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
    /// A slice that would never end.
    #[error("a slice's step must be at least 1, got 0")]
    ZeroStep,
    /// Not every dimension exactly once.
    #[error("{dims:?} is not a permutation of 0..{rank}")]
    NotAPermutation {
        /// The order asked for.
        dims: Vec<usize>,
        /// How many dimensions there are.
        rank: usize,
    },
    /// Only dimensions of size 1 expand.
    #[error(
        "sizes {sizes:?} do not expand to {target:?}: aligned at the last dimension, each size must equal its target \
         or be 1"
    )]
    NotExpandable {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The sizes asked for.
        target: Vec<usize>,
    },
    /// The target holds another number of elements.
    #[error("sizes {target:?} do not hold the {numel} elements of sizes {sizes:?}")]
    NumelMismatch {
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// The layout's number of elements.
        numel: usize,
        /// The sizes asked for.
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
        /// The sizes asked for.
        target: Vec<usize>,
    },
    /// Elements past the end of the storage.
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
        /// Bytes up to the end of the last element.
        required: usize,
        /// Bytes of the storage.
        available: usize,
    },
    /// A memory format of another number of dimensions.
    #[error("memory format {format} needs {expected} dimensions, got sizes {sizes:?}")]
    FormatRank {
        /// The format asked for.
        format: MemoryFormat,
        /// How many dimensions it is for.
        expected: usize,
        /// The sizes asked for.
        sizes: Vec<usize>,
    },
}

/// Why memory was refused. A failed call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// Nobody registered an allocator.
    #[error("no allocator is registered for {kind}: register one before allocating there")]
    NotRegistered {
        /// The kind of device.
        kind: DeviceKind,
    },
    /// Not enough memory.
    #[error(
        "out of memory on {device}: asked for {requested} bytes with {allocated} allocated; free tensors that are no \
         longer needed, or make the request smaller"
    )]
    OutOfMemory {
        /// Where.
        device: Device,
        /// Bytes asked for.
        requested: usize,
        /// Bytes the allocator's live allocations hold.
        allocated: usize,
    },
    /// Not enough memory, on a device that knows who holds it.
    #[error("{report}")]
    DeviceOutOfMemory {
        /// Where.
        device: Device,
        /// Bytes asked for.
        requested: usize,
        /// Who holds what, and what to try.
        report: String,
    },
    /// The request is larger than any address space.
    #[error("a request of {requested} bytes is larger than any memory: check the shape it was computed from")]
    TooLarge {
        /// Bytes asked for.
        requested: usize,
    },
    /// The allocator's pointers do not stand for themselves.
    #[error("raw allocation on {device} is not possible: the allocator's pointers need a context of their own")]
    NoRawAllocation {
        /// Where.
        device: Device,
    },
    /// There is no such NUMA node.
    #[error("NUMA node {node} cannot take memory: {reason}; the nodes are listed in /sys/devices/system/node")]
    BadNumaNode {
        /// The node asked for.
        node: u32,
        /// The system's words.
        reason: String,
    },
    /// The device failed.
    #[error("{call} on {device} failed: {reason}")]
    Failed {
        /// Where.
        device: Device,
        /// The call that failed.
        call: &'static str,
        /// The device's words.
        reason: String,
    },
}

/// Why a storage refused to change. It is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Others rely on its place: a foreign owner, or an exported view.
    #[error("a storage of {bytes} bytes that is not resizable was asked for {requested}: copy to a new storage")]
    NotResizable {
        /// Bytes of the storage.
        bytes: usize,
        /// Bytes asked for.
        requested: usize,
    },
    /// Nothing to take new memory from.
    #[error("a storage without an allocator cannot be made resizable: give it one when it is made")]
    NoAllocator,
    /// The bytes are not where the allocator could copy them from.
    #[error("a storage whose data is on {data} cannot be resized by an allocator of {allocator}: move it first")]
    DeviceMismatch {
        /// Where the bytes are.
        data: Device,
        /// Where the allocator's memory is.
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
