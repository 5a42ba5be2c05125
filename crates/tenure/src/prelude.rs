//! What a user of Tenure needs: `use tenure::prelude::*`.

pub use tenure_alloc::{
    AllocError, Backing, Block, CachingAllocator, NativeAllocator, PagedAllocator, PoolId, Request, Resource, Snapshot,
    Statistics,
};
pub use tenure_core::{
    Allocator, AllocatorRegistry, AllocatorScope, DType, DataPtr, Device, DeviceKind, Key, KeyId, Layout, MemoryFormat,
    Purpose, Span, Storage, StreamId, Tag, result_type,
};
pub use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
pub use tenure_device::pinned::{PinnedBuffer, PinnedConfig, PinnedPool};
pub use tenure_device::sim::{SimConfig, SimDriver, SimPlatform};
pub use tenure_device::{
    Counters, DeviceBacking, Driver, Event as StreamEvent, EventKind, Platform, Priority, Stream, StreamGuard, Streams,
    cuda, functions, share,
};
#[cfg(feature = "nn")]
pub use tenure_nn::{Module, Parameter, Scope, layers::Layer};
pub use tenure_plan::{Action, Event, Format, ReadOptions, Settings, Summary, Trace, TraceError};
#[cfg(feature = "nn")]
pub use tenure_tensor::{Tensor, TensorError, random::Generator};

pub use crate::Error;
pub use crate::replay::{AllocatorKind, Outcome, Replay};
pub use crate::report::{MemoryReport, Report};
pub use crate::units::{Bytes, Micros, Nanos};
