//! Saved tensors and residents, and the handles that keep them.

use std::sync::Arc;

use tenure_core::{Allocator, DType, Storage, Tag, WeakStorage};
use tenure_device::Stream;
use tenure_tier::{PendingFetch, Stored};

use crate::identity::HeldId;
use crate::recompute::Recomputation;

/// A handle of a saved tensor. The engine keeps the tensor until the last handle is dropped.
pub struct SavedHandle {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) id: HeldId,
}

/// The interface of an engine that handles use: it removes a tensor when its last handle is dropped.
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
        held.release_stored_source();
        std::mem::take(&mut held.inputs.saved)
    }
}

/// A saved tensor or a resident. Its bytes are in memory, stored on another tier, both, being moved, or dropped to be
/// recomputed.
pub(crate) struct HeldTensor {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) tag: Tag,
    pub(crate) dtype: DType,
    pub(crate) allocator: Arc<dyn Allocator>,
    /// For a device's memory, the stream in whose order the bytes were written.
    pub(crate) stream: Option<Stream>,
    /// The storage that was saved, which the front end may still use. None for a resident.
    pub(crate) source: Option<WeakStorage>,
    /// The storage with the bytes, or the target of their fetch, while the engine holds one.
    pub(crate) storage: Option<Storage>,
    /// The fetch to wait for, while bytes are being fetched into `storage`.
    pub(crate) arrival: Option<Arc<PendingFetch>>,
    /// The bytes on another tier, if they were spilled.
    pub(crate) stored: Option<Stored>,
    /// Whether a caller has borrowed this resident.
    pub(crate) is_lent: bool,
    /// The front end's way to recompute the bytes, if there is one.
    pub(crate) recompute: Option<Arc<dyn Recomputation>>,
    /// The inputs from which the bytes are recomputed, once they are dropped.
    pub(crate) inputs: HeldInputs,
}

impl HeldTensor {
    /// Returns the storage that was saved, if it still exists.
    pub(crate) fn live_source(&self) -> Option<Storage> {
        self.source.as_ref()?.upgrade()
    }

    /// Returns whether the bytes take memory: they are there, being fetched, or used by the front end.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.storage.is_some() || self.is_lent || self.live_source().is_some()
    }

    /// Takes the storage, whose bytes will be recomputed from `inputs`. Returns `inputs` as the error if there is no
    /// storage to take, or bytes are still on their way into it.
    pub(crate) fn drop_bytes(&mut self, inputs: HeldInputs) -> Result<Storage, HeldInputs> {
        match self.storage.take_if(|_| self.arrival.is_none()) {
            Some(storage) => {
                self.inputs = inputs;
                Ok(storage)
            }
            None => Err(inputs),
        }
    }

    /// Makes the mover release the storage that the bytes were stored from, in the order of their stream. If the driver
    /// fails, the next call to it returns the error.
    pub(crate) fn release_stored_source(&self) {
        if let (Some(stored), Some(stream)) = (&self.stored, &self.stream)
            && stored.keeps_source()
        {
            let _ = stored.lead_to(stream);
        }
    }

    /// Returns whether the engine alone holds the storage, so that the bytes can leave memory.
    pub(crate) fn is_idle(&self) -> bool {
        match (&self.storage, &self.arrival) {
            // A caller that waits for the fetch has cloned its handle.
            (Some(_), Some(arrival)) => Arc::strong_count(arrival) == 1,
            (Some(storage), None) => storage.handles() == 1,
            (None, _) => false,
        }
    }

    /// Returns whether others than the engine hold the storage.
    pub(crate) fn is_used_by_others(&self) -> bool {
        match &self.storage {
            Some(storage) => storage.handles() > 1,
            None => self.live_source().is_some(),
        }
    }
}

/// The inputs of a dropped tensor, held until it is recomputed: a step that differs from the measured one might release
/// them.
#[derive(Default)]
pub(crate) struct HeldInputs {
    pub(crate) saved: Vec<Arc<SavedHandle>>,
    /// The inputs that were not saved, such as parameters.
    pub(crate) unsaved: Vec<Storage>,
}
