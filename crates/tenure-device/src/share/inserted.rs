//! What a worker's allocator has of a shared cache.

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::StreamId;

use super::tenancy::{Awaited, Tenancy};
use super::{PoolLease, RangeUse, SharedPool};
use crate::Access;

/// A range that the allocator has.
pub(super) struct Inserted {
    /// The mapping that it lies in. Each has one of its own, if several have the same range.
    pub(super) view: Arc<SharedPool>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) range: RangeUse,
    pub(super) stream: StreamId,
    pub(super) right: Right,
    /// What is said of the parameters in it, once they are published.
    pub(super) about: Option<Vec<u8>>,
}

/// By what right a range is used.
pub(super) enum Right {
    /// A lease from when it is inserted.
    Leased(PoolLease),
    /// That too. What was written is told to readers when it is taken out.
    Transferring(PoolLease),
    /// A lease while blocks are in it.
    WhileUsed(Arc<Tenancy>),
    /// None: others may write the parameters that are read there.
    Awaiting,
}

impl Inserted {
    pub(super) fn address(&self) -> Address {
        self.view.address() + self.offset
    }

    pub(super) fn overlaps(&self, offset: u64, bytes: u64) -> bool {
        self.offset < offset.saturating_add(bytes) && offset < self.offset + self.bytes
    }

    pub(super) fn writes_parameters(&self) -> bool {
        let (Right::Leased(lease) | Right::Transferring(lease)) = &self.right else { return false };
        self.range == RangeUse::Parameters && lease.access() == Access::ReadWrite
    }

    pub(super) fn awaited(&self) -> Awaited {
        Awaited { view: Arc::clone(&self.view), bytes: self.bytes }
    }
}
