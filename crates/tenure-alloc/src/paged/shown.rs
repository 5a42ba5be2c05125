//! Where the memory of a space is seen, for snapshots and histories.
//!
//! # Note [Where bytes are shown]
//!
//! A chunk may be mapped in several windows, but each byte is *shown* once, so that figures add up: a byte in use at the
//! block that uses it, a free one at the chunk's home, the first place where it is mapped. Snapshots list the bytes
//! where they are shown, side by side as a segment. Histories tell of a byte that is shown elsewhere from now on as
//! unmapped there and mapped here, so that a block always lies in mapped memory, the mapped bytes are the reserved
//! ones, and the segments of a snapshot are those that the events before it add up to: PyTorch's viewer plays them
//! backwards from there. Windows serve every stream, so neither segments nor their events name one.

use std::sync::Arc;

use tenure_core::StreamId;

use crate::{Action, Address, Event, History, PoolId};

/// Tells the history of a space's pool where its bytes are shown.
pub(super) struct Shown {
    history: Arc<History>,
    pool: PoolId,
}

impl Shown {
    pub(super) fn new(history: Arc<History>, pool: PoolId) -> Self {
        Self { history, pool }
    }

    /// Whether anybody wants to know.
    #[inline]
    pub(super) fn is_noted(&self) -> bool {
        self.history.is_on()
    }

    /// Bytes that were shown nowhere.
    pub(super) fn appears(&self, address: Address, bytes: u64) {
        self.history.record(|| self.event(Action::SegmentMap, address, bytes));
    }

    /// Bytes that are shown nowhere any more.
    pub(super) fn vanishes(&self, address: Address, bytes: u64) {
        self.history.record(|| self.event(Action::SegmentUnmap, address, bytes));
    }

    /// Bytes that are shown elsewhere from now on.
    pub(super) fn moves(&self, from: Address, to: Address, bytes: u64) {
        let event = |action, address| self.event(action, address, bytes);
        self.history.record_move(|| (event(Action::SegmentUnmap, from), event(Action::SegmentMap, to)));
    }

    fn event(&self, action: Action, address: Address, bytes: u64) -> Event {
        Event::new(action, address, bytes, StreamId::NULL).in_pool(self.pool)
    }
}
