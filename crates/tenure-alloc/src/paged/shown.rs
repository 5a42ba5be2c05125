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

use crate::{Action, Address, Event, History};

/// Tells the history where a space's bytes are shown.
pub(super) struct Shown(Arc<History>);

impl Shown {
    pub(super) fn new(history: Arc<History>) -> Self {
        Self(history)
    }

    /// Whether anybody wants to know.
    #[inline]
    pub(super) fn is_noted(&self) -> bool {
        self.0.is_on()
    }

    /// Bytes that were shown nowhere.
    pub(super) fn appears(&self, address: Address, bytes: u64) {
        self.0.record(|| event(Action::SegmentMap, address, bytes));
    }

    /// Bytes that are shown nowhere any more.
    pub(super) fn vanishes(&self, address: Address, bytes: u64) {
        self.0.record(|| event(Action::SegmentUnmap, address, bytes));
    }

    /// Bytes that are shown elsewhere from now on.
    pub(super) fn moves(&self, from: Address, to: Address, bytes: u64) {
        self.0.record_move(|| (event(Action::SegmentUnmap, from, bytes), event(Action::SegmentMap, to, bytes)));
    }
}

fn event(action: Action, address: Address, bytes: u64) -> Event {
    Event::new(action, address, bytes, StreamId::NULL)
}
