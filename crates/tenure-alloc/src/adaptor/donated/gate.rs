//! [`RangeGate`]: the right to use a donated range that other processes use too.

use std::sync::Arc;

use crate::BackingError;

/// The right to use a donated range that several processes share. The allocator holds it only while blocks are in the
/// range.
///
/// The allocator calls no method with one of its locks held: each may wait, for the present user of the range or for
/// the device.
pub trait RangeGate: Send + Sync {
    /// Enters the gate, before a block is placed in the range. Returns whether the block may be placed; if not, the
    /// request is served from elsewhere.
    ///
    /// # Errors
    /// An error refuses the request.
    fn enter(&self) -> Result<bool, BackingError>;

    /// Leaves the gate, once for each successful [`enter`](Self::enter): after the block was freed, or if it was not
    /// placed after all. Work that was put on the device may still use the range.
    fn leave(&self);

    /// Handles the end of the last capture during which the device could not be waited for. A pool whose use is
    /// [`PoolUse::Capture`](crate::PoolUse::Capture) counts as a capture.
    fn after_captures(&self);
}

/// A gate that was entered for a block. Leaves the gate when dropped.
pub(super) struct EnteredGate(Option<Arc<dyn RangeGate>>);

impl EnteredGate {
    /// Enters the gate; returns `None` if the range may not be used.
    pub(super) fn new(gate: Arc<dyn RangeGate>) -> Result<Option<Self>, BackingError> {
        Ok(gate.enter()?.then(|| Self(Some(gate))))
    }

    /// Returns whether this gate is `gate`.
    pub(super) fn is_of(&self, gate: &Arc<dyn RangeGate>) -> bool {
        self.0.as_ref().is_some_and(|entered| std::ptr::addr_eq(Arc::as_ptr(entered), Arc::as_ptr(gate)))
    }

    /// Keeps the gate entered, because the block is placed: freeing the block leaves it.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EnteredGate {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.leave();
        }
    }
}
