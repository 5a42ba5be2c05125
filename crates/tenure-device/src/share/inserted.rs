//! Ranges of a shared cache that a worker has inserted into its allocator.

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::StreamId;

use super::tenancy::{PlacedParameters, Tenancy};
use super::{PoolLease, RangeUse, SharedPool};
use crate::AccessMode;

/// A range of the shared cache that the allocator may place blocks in.
pub(super) struct Inserted {
    /// The mapping that contains the range. If a range is inserted several times, each insertion has a mapping of its
    /// own.
    pub(super) mapping: Arc<SharedPool>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) range: RangeUse,
    pub(super) stream: StreamId,
    pub(super) right: Right,
    /// The publisher's description of the parameters in the range, once they are published.
    pub(super) about: Option<Vec<u8>>,
}

/// The right under which a range is used.
pub(super) enum Right {
    /// A lease, taken when the range is inserted.
    Leased(PoolLease),
    /// A lease, taken when the range is inserted. When the range is taken out, readers are told which blocks were
    /// written.
    Transferring(PoolLease),
    /// A lease that is held only while blocks are in the range.
    WhileUsed(Arc<Tenancy>),
    /// No lease: tensors were placed in the range before their parameters are written. This process reads them there,
    /// while other processes may write them.
    Placed,
}

impl Inserted {
    pub(super) fn address(&self) -> Address {
        self.mapping.address() + self.offset
    }

    /// Returns whether the range has bytes in common with `bytes` bytes from `offset`.
    pub(super) fn overlaps(&self, offset: u64, bytes: u64) -> bool {
        self.offset < offset.saturating_add(bytes) && offset < self.offset + self.bytes
    }

    /// Returns whether this process writes parameters in the range.
    pub(super) fn writes_parameters(&self) -> bool {
        let (Right::Leased(lease) | Right::Transferring(lease)) = &self.right else { return false };
        self.range == RangeUse::Parameters && lease.access() == AccessMode::ReadWrite
    }

    pub(super) fn placed_parameters(&self) -> PlacedParameters {
        PlacedParameters { mapping: Arc::clone(&self.mapping), bytes: self.bytes }
    }
}
