use std::sync::Arc;

use crate::BackingError;

/// What stands before a donated range that is not its process's alone: the right to use it is had only while blocks are
/// in it.
///
/// No call is made under a lock of the allocator's: each may wait, for whoever has the range or for the device.
pub trait Gate: Send + Sync {
    /// Before a block is placed in the range. Whether it may be; if not, it is served from elsewhere.
    ///
    /// # Errors
    /// The request is refused.
    fn enter(&self) -> Result<bool, BackingError>;

    /// After a block was freed that had been entered for, or had not been placed after all. Work that was put on the
    /// device may still use it.
    fn leave(&self);

    /// After the last of the captures, real or possible, in which the device could not be waited for.
    fn after_captures(&self);
}

/// A gate that was entered for a block. Dropped, it is left.
pub(super) struct Entered(Option<Arc<dyn Gate>>);

impl Entered {
    /// None if the range may not be used.
    pub(super) fn new(gate: Arc<dyn Gate>) -> Result<Option<Self>, BackingError> {
        Ok(gate.enter()?.then(|| Self(Some(gate))))
    }

    pub(super) fn is_of(&self, gate: &Arc<dyn Gate>) -> bool {
        self.0.as_ref().is_some_and(|entered| std::ptr::addr_eq(Arc::as_ptr(entered), Arc::as_ptr(gate)))
    }

    /// The block is placed: whoever frees it leaves.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.leave();
        }
    }
}
