//! The addresses at which the memory of a space is shown, in snapshots and histories.
//!
//! # Note [Where bytes are shown]
//!
//! A chunk may be mapped in several windows, but each byte is *shown* once, so that numbers add up. A byte in use is
//! shown at the block that uses it. A free byte is shown at the chunk's home, the first place where it is mapped.
//! Snapshots list bytes where they are shown; bytes side by side form a segment. When a byte is shown elsewhere from
//! now on, histories record it as unmapped there and mapped here. So a block always lies in mapped memory, the mapped
//! bytes are the reserved ones, and the segments of a snapshot are those that the events before it add up to: PyTorch's
//! viewer plays the events backwards from there. Windows serve every stream, so neither segments nor their events name
//! one.

use std::sync::Arc;

use tenure_core::StreamId;

use crate::{Address, History, HistoryAction, HistoryEvent};

/// Records in the history where a space's bytes are shown.
pub(super) struct MappingRecorder(Arc<History>);

impl MappingRecorder {
    pub(super) fn new(history: Arc<History>) -> Self {
        Self(history)
    }

    /// Returns whether the history is on.
    #[inline]
    pub(super) fn is_recording(&self) -> bool {
        self.0.is_on()
    }

    /// Records bytes that were not shown anywhere before.
    pub(super) fn record_mapped(&self, address: Address, bytes: u64) {
        self.0.record(|| event(HistoryAction::SegmentMap, address, bytes));
    }

    /// Records bytes that are not shown anywhere any more.
    pub(super) fn record_unmapped(&self, address: Address, bytes: u64) {
        self.0.record(|| event(HistoryAction::SegmentUnmap, address, bytes));
    }

    /// Records bytes that are shown elsewhere from now on.
    pub(super) fn record_moved(&self, from: Address, to: Address, bytes: u64) {
        self.0.record_move(|| {
            (event(HistoryAction::SegmentUnmap, from, bytes), event(HistoryAction::SegmentMap, to, bytes))
        });
    }
}

fn event(action: HistoryAction, address: Address, bytes: u64) -> HistoryEvent {
    HistoryEvent::new(action, address, bytes, StreamId::NULL)
}
