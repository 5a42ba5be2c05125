//! What was saved, wherever it is.

use std::sync::Arc;

use tenure_core::{Allocator, DType, Storage, Tag, WeakStorage};
use tenure_device::Stream;
use tenure_tier::{Arrival, Stored};

use crate::identity::HeldId;
use crate::recompute::Recompute;

/// Something that was saved, for as long as anybody may need it.
pub struct Saved {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) id: HeldId,
}

/// Keeps saved tensors until their last handles are dropped. The engine implements it; handles need no more of the engine.
pub(crate) trait Keeper: Send + Sync {
    /// Removes a tensor whose last handle is dropped. None if it is not kept.
    fn remove(&self, id: HeldId) -> Option<Held>;
}

impl Drop for Saved {
    fn drop(&mut self) {
        let mut inputs = self.remove();
        // One after the other, not one inside the other: a chain may be deeper than the stack.
        while let Some(input) = inputs.pop() {
            inputs.extend(Arc::into_inner(input).into_iter().flat_map(|input| input.remove()));
        }
    }
}

impl Saved {
    /// Removes the tensor. Returns what it was to be recomputed from.
    fn remove(&self) -> Vec<Arc<Self>> {
        let Some(mut held) = self.keeper.remove(self.id) else { return Vec::new() };
        held.leave_behind();
        std::mem::take(&mut held.inputs.saved)
    }
}

/// Bytes that were saved. In memory, stored, both, or on their way.
pub(crate) struct Held {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) tag: Tag,
    pub(crate) dtype: DType,
    pub(crate) allocator: Arc<dyn Allocator>,
    /// Of a device: in whose order they were written.
    pub(crate) stream: Option<Stream>,
    /// Where they were when they were saved: others may have them still. None of what is a resident.
    pub(crate) source: Option<WeakStorage>,
    pub(crate) storage: Option<Storage>,
    /// Of what they are in, if they have not arrived there.
    pub(crate) arrival: Option<Arc<Arrival>>,
    pub(crate) stored: Option<Stored>,
    /// A resident that somebody uses.
    pub(crate) is_lent: bool,
    pub(crate) recompute: Option<Arc<dyn Recompute>>,
    /// Of what they are made, if they were given up.
    pub(crate) inputs: HeldInputs,
}

impl Held {
    /// Those that others have.
    pub(crate) fn of_others(&self) -> Option<Storage> {
        self.source.as_ref()?.upgrade()
    }

    /// Whether they are in memory, or about to.
    pub(crate) fn is_here(&self) -> bool {
        self.storage.is_some() || self.is_lent || self.of_others().is_some()
    }

    /// Lets go of them, to be computed again of these, which are given back if there is nothing to let go of.
    pub(crate) fn give_up(&mut self, inputs: HeldInputs) -> Result<Storage, HeldInputs> {
        match self.storage.take_if(|_| self.arrival.is_none()) {
            Some(storage) => {
                self.inputs = inputs;
                Ok(storage)
            }
            None => Err(inputs),
        }
    }

    /// What they were stored from is let go of, in the order of their stream. A driver that fails tells the next who asks.
    pub(crate) fn leave_behind(&self) {
        if let (Some(stored), Some(stream)) = (&self.stored, &self.stream)
            && stored.keeps_source()
        {
            let _ = stored.lead_to(stream);
        }
    }

    /// Whether others have them in memory.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match &self.storage {
            Some(storage) => storage.handles() > 1,
            None => self.of_others().is_some(),
        }
    }
}

/// What something that was given up is made of, held until it is: another step than was measured might let go of it.
#[derive(Default)]
pub(crate) struct HeldInputs {
    pub(crate) saved: Vec<Arc<Saved>>,
    pub(crate) staying: Vec<Storage>,
}
