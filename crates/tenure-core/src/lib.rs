//! The vocabulary that all crates of Tenure share: where bytes are, their type and their owner.
//!
//! - [`Device`] is the place of bytes, [`DType`] the type of elements, and [`Layout`] the positions of a tensor's
//!   elements in a storage.
//! - An [`Allocator`] returns a [`DataPtr`], which a [`Storage`] owns and views share.
//! - [`StreamId`] is the stream of an allocation, [`Tag`] its purpose, and [`Key`] its name. A thread's [`Context`]
//!   holds the purpose and the name for the thread's allocations.
//! - Every subsystem has an error enum of its own. All of them convert into [`Error`].
//!
//! The behaviour is that of PyTorch's `c10/core`, without its globals.
//!
//! ```
//! use tenure_core::{AllocatorRegistry, DType, DeviceKind, Layout, Storage};
//!
//! let layout = Layout::contiguous(&[2, 3, 4])?;
//! let bytes = layout.required_bytes(DType::F32)?;
//! let storage = Storage::new(bytes, AllocatorRegistry::global().allocator(DeviceKind::Cpu)?)?;
//! assert_eq!(storage.bytes(), 96);
//!
//! let column = layout.select(2, 1)?; // a view: the same storage, another layout
//! assert_eq!((column.sizes(), column.strides(), column.offset()), (&[2, 3][..], &[12, 4][..], 1));
//! # Ok::<(), tenure_core::Error>(())
//! ```
#![warn(missing_docs)]

mod allocator;
#[forbid(unsafe_code)]
mod amount;
#[forbid(unsafe_code)]
pub mod atomic_files;
#[forbid(unsafe_code)]
mod clock;
#[forbid(unsafe_code)]
mod context;
mod data_ptr;
#[forbid(unsafe_code)]
mod device;
#[forbid(unsafe_code)]
mod dtype;
#[forbid(unsafe_code)]
mod error;
mod forks;
#[forbid(unsafe_code)]
mod layout;
#[forbid(unsafe_code)]
mod purpose;
#[forbid(unsafe_code)]
mod site;
#[forbid(unsafe_code)]
mod span;
mod storage;
#[forbid(unsafe_code)]
mod tag;
#[forbid(unsafe_code)]
pub mod user_files;
mod vectors;

pub use allocator::{
    Allocator, AllocatorRegistry, AllocatorScope, CpuAllocator, MemoryReporter, MemoryUse, NumaMove, OutOfMemory,
    move_to_numa_node,
};
pub use amount::{Amount, AmountError, parse_bytes};
pub use clock::Clock;
pub use context::{Context, ContextGuard};
pub use data_ptr::{DataPtr, Deleter};
pub use device::{Device, DeviceKind, StreamId};
pub use dtype::{DType, Operand, result_type};
pub use error::{AllocatorError, DTypeError, DeviceError, Error, LayoutError, StorageError};
pub use forks::{AtFork, Unforked, UnforkedGuard};
pub use layout::{Layout, MemoryFormat, Overlap, Reshape};
pub use purpose::Purpose;
pub use site::{Name, Site, SiteGuard};
pub use span::Span;
pub use storage::{Arrival, ExclusiveGuard, Generation, Storage, StorageGuard, WeakStorage};
pub use tag::{Key, KeyId, Tag};
pub use vectors::vectorized;
