//! Saved tensors and residents, wherever their bytes are.

use std::sync::Arc;

use tenure_core::{Allocator, DType, Storage, Tag, WeakStorage};
use tenure_device::Stream;
use tenure_tier::{PendingFetch, Stored};

use crate::identity::HeldId;
use crate::recompute::Recomputation;

/// A handle of a saved tensor, which the engine keeps as long as there is a handle.
pub struct SavedHandle {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) id: HeldId,
}

/// Keeps saved tensors until their last handles are dropped. The engine implements it; handles need nothing else of the
/// engine.
pub(crate) trait Keeper: Send + Sync {
    /// Removes a tensor whose last handle is dropped. Returns None if it is not kept.
    fn remove(&self, id: HeldId) -> Option<HeldTensor>;
}

impl Drop for SavedHandle {
    fn drop(&mut self) {
        let mut inputs = self.remove();
        // A loop, not a recursion: a chain of inputs may be deeper than the stack.
        while let Some(input) = inputs.pop() {
            inputs.extend(Arc::into_inner(input).into_iter().flat_map(|input| input.remove()));
        }
    }
}

impl SavedHandle {
    /// Removes the tensor. Returns the tensors from which it would have been recomputed.
    fn remove(&self) -> Vec<Arc<Self>> {
        let Some(mut held) = self.keeper.remove(self.id) else { return Vec::new() };
        held.leave_behind();
        std::mem::take(&mut held.inputs.saved)
    }
}

/// A saved tensor or a resident. Its bytes are in memory, stored, both, or on their way.
pub(crate) struct HeldTensor {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) tag: Tag,
    pub(crate) dtype: DType,
    pub(crate) allocator: Arc<dyn Allocator>,
    /// For a device's memory, the stream in whose order the bytes were written.
    pub(crate) stream: Option<Stream>,
    /// The storage that was saved, which others may still have. None for a resident.
    pub(crate) source: Option<WeakStorage>,
    pub(crate) storage: Option<Storage>,
    /// The arrival to wait for, while bytes are on their way into `storage`.
    pub(crate) arrival: Option<Arc<PendingFetch>>,
    pub(crate) stored: Option<Stored>,
    /// Whether a caller has borrowed this resident.
    pub(crate) is_lent: bool,
    pub(crate) recompute: Option<Arc<dyn Recomputation>>,
    /// The inputs from which the bytes are recomputed, once they are dropped.
    pub(crate) inputs: HeldInputs,
}

impl HeldTensor {
    /// Returns the storage that was saved, if others still have it.
    pub(crate) fn of_others(&self) -> Option<Storage> {
        self.source.as_ref()?.upgrade()
    }

    /// Returns whether the bytes are in memory, or on their way into it.
    pub(crate) fn is_here(&self) -> bool {
        self.storage.is_some() || self.is_lent || self.of_others().is_some()
    }

    /// Takes the storage, whose bytes will be recomputed from `inputs`. Returns `inputs` as the error if there is no
    /// storage to take, or bytes are still on their way into it.
    pub(crate) fn give_up(&mut self, inputs: HeldInputs) -> Result<Storage, HeldInputs> {
        match self.storage.take_if(|_| self.arrival.is_none()) {
            Some(storage) => {
                self.inputs = inputs;
                Ok(storage)
            }
            None => Err(inputs),
        }
    }

    /// Releases the storage that the bytes were stored from, in the order of their stream. If the driver fails, the
    /// next call to it returns the error.
    pub(crate) fn leave_behind(&self) {
        if let (Some(stored), Some(stream)) = (&self.stored, &self.stream)
            && stored.keeps_source()
        {
            let _ = stored.lead_to(stream);
        }
    }

    /// Returns whether the tensor is in memory, and no caller uses it.
    pub(crate) fn is_idle(&self) -> bool {
        match (&self.storage, &self.arrival) {
            // A caller that needs the tensor has a handle.
            (Some(_), Some(arrival)) => Arc::strong_count(arrival) == 1,
            (Some(storage), None) => storage.handles() == 1,
            (None, _) => false,
        }
    }

    /// Returns whether others have the bytes in memory.
    pub(crate) fn held_by_others(&self) -> bool {
        match &self.storage {
            Some(storage) => storage.handles() > 1,
            None => self.of_others().is_some(),
        }
    }
}

/// The inputs of a dropped tensor, held until it is recomputed: a step that differs from the measured one might release
/// them.
#[derive(Default)]
pub(crate) struct HeldInputs {
    pub(crate) saved: Vec<Arc<SavedHandle>>,
    pub(crate) staying: Vec<Storage>,
}
