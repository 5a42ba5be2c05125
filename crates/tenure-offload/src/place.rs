//! Saved tensors and residents: their handles, the place of their bytes, and the ways to recompute them.
//!
//! [`Place`] is the one value that says where a tensor's bytes are. Which tier has spilled bytes, [`Stored`] knows.

use std::error::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Allocator, DType, Generation, Storage, Tag, WeakStorage};
use tenure_device::Stream;
use tenure_tier::{PendingFetch, Stored};

use crate::error::OffloadError;
use crate::identity::TensorId;

/// A handle of a saved tensor. The engine keeps the tensor until the last handle is dropped.
pub struct SavedHandle {
    pub(crate) owner: Arc<dyn TensorOwner>,
    pub(crate) id: TensorId,
}

/// The interface of an engine that handles use: it removes a tensor when its last handle is dropped.
pub(crate) trait TensorOwner: Send + Sync {
    /// Removes a tensor whose last handle is dropped. Returns None if the engine does not have it.
    fn remove(&self, id: TensorId) -> Option<OffloadTensor>;
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
        let Some(mut tensor) = self.owner.remove(self.id) else { return Vec::new() };
        tensor.release_spill_source();
        match &mut tensor.place {
            Place::Dropped(inputs) => std::mem::take(&mut inputs.saved),
            _ => Vec::new(),
        }
    }
}

/// A saved tensor or a resident.
pub(crate) struct OffloadTensor {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) tag: Tag,
    pub(crate) dtype: DType,
    pub(crate) allocator: Arc<dyn Allocator>,
    /// For a device's memory, the stream in whose order the bytes were written.
    pub(crate) stream: Option<Stream>,
    /// The storage that was saved, which the front end may still use. None for a resident.
    pub(crate) source: Option<WeakStorage>,
    /// The front end's way to recompute the bytes, if there is one.
    pub(crate) recompute: Option<Arc<dyn Recomputation>>,
    pub(crate) place: Place,
    /// Whether the bytes stay in memory, since they were written to after they were saved.
    pub(crate) stays: bool,
}

/// The place of a tensor's bytes.
///
/// ```text
///                spill                    fetch                      the fetch is awaited
///  InMemory ────────────────> Spilled ────────────────> Arriving ────────────────────────> InMemory
///  InMemory ──drop_bytes────> Dropped ──recompute────────────────────────────────────────> InMemory
///  InMemory ──lend──────────> Lent ─────give_back────────────────────────────────────────> InMemory
/// ```
///
/// A tensor begins in memory. It also goes back there from `Spilled` and `Dropped` without a transfer if the front end
/// still has the storage that it saved. Dropped bytes that were spilled before are `Spilled`. Only residents are lent,
/// and only saved tensors are dropped.
pub(crate) enum Place {
    /// The bytes are in memory. If they were spilled before, the spilled bytes stay, so that they need not be written
    /// again.
    InMemory { storage: Storage, spilled: Option<Stored> },
    /// The bytes are being fetched into `storage`. Its users wait for `arrival` first.
    Arriving { storage: Storage, arrival: Arc<PendingFetch>, spilled: Stored },
    /// The bytes are on another tier, or on their way there.
    Spilled(Stored),
    /// The bytes are nowhere. They are recomputed from these inputs.
    Dropped(RecomputeInputs),
    /// The caller that borrowed the resident has the bytes, and may write them.
    Lent,
}

impl Place {
    /// Returns the place of bytes that are in memory only.
    pub(crate) fn in_memory(storage: Storage) -> Self {
        Self::InMemory { storage, spilled: None }
    }

    /// Returns the storage with the bytes, or the target of their fetch, if the engine has one.
    pub(crate) fn storage(&self) -> Option<&Storage> {
        match self {
            Self::InMemory { storage, .. } | Self::Arriving { storage, .. } => Some(storage),
            Self::Spilled(_) | Self::Dropped(_) | Self::Lent => None,
        }
    }

    /// Returns the bytes on another tier, if they were spilled.
    fn spilled(&self) -> Option<&Stored> {
        match self {
            Self::InMemory { spilled, .. } => spilled.as_ref(),
            Self::Arriving { spilled, .. } | Self::Spilled(spilled) => Some(spilled),
            Self::Dropped(_) | Self::Lent => None,
        }
    }
}

impl OffloadTensor {
    /// Returns the storage that was saved, if it still exists.
    pub(crate) fn live_source(&self) -> Option<Storage> {
        self.source.as_ref()?.upgrade()
    }

    /// Returns whether the bytes take memory: they are there, being fetched, or used by the front end.
    pub(crate) fn is_in_memory(&self) -> bool {
        match self.place {
            Place::InMemory { .. } | Place::Arriving { .. } | Place::Lent => true,
            Place::Spilled(_) | Place::Dropped(_) => self.live_source().is_some(),
        }
    }

    /// Drops the bytes in memory. If they are on no other tier, they will be recomputed from `inputs`. Returns the
    /// former place, for the caller to drop, or `inputs` as the error if the bytes are not in memory.
    pub(crate) fn drop_bytes(&mut self, inputs: RecomputeInputs) -> Result<Place, RecomputeInputs> {
        let Place::InMemory { spilled, .. } = &mut self.place else { return Err(inputs) };
        if self.stays {
            return Err(inputs);
        }
        let place = spilled.take().map_or(Place::Dropped(inputs), Place::Spilled);
        Ok(std::mem::replace(&mut self.place, place))
    }

    /// Takes a spilled or dropped tensor back into memory if the front end still has the storage that was
    /// saved. Returns the former place, for the caller to drop when it has released its locks.
    pub(crate) fn return_to_source(&mut self) -> Option<Place> {
        let spilled = match &self.place {
            Place::Spilled(spilled) => Some(spilled.clone()),
            Place::Dropped(_) => None,
            Place::InMemory { .. } | Place::Arriving { .. } | Place::Lent => return None,
        };
        let storage = self.live_source()?;
        Some(std::mem::replace(&mut self.place, Place::InMemory { storage, spilled }))
    }

    /// Makes the bytes stay in memory, as they are there now. Returns a former place, for the caller to drop when it has
    /// released its locks.
    pub(crate) fn stay(&mut self) -> Option<Place> {
        self.stays = true;
        let former = self.return_to_source();
        match &mut self.place {
            Place::InMemory { spilled, .. } => spilled.take().map(Place::Spilled).or(former),
            _ => former,
        }
    }

    /// Takes the recomputed bytes of a dropped tensor. Returns the former place, or the bytes if another thread was
    /// faster, for the caller to drop when it has released its locks.
    pub(crate) fn end_recompute(&mut self, storage: Storage) -> Place {
        let place = Place::in_memory(storage);
        match self.place {
            Place::Dropped(_) => std::mem::replace(&mut self.place, place),
            _ => place,
        }
    }

    /// Ends an arrival that needs no more waiting.
    pub(crate) fn end_arrival(&mut self) {
        if let Place::Arriving { storage, spilled, .. } = &self.place {
            self.place = Place::InMemory { storage: storage.clone(), spilled: Some(spilled.clone()) };
        }
    }

    /// Makes the mover release the storage that the bytes were spilled from, in the order of their stream. If the
    /// driver fails, the next call to it returns the error.
    pub(crate) fn release_spill_source(&self) {
        if let (Some(spilled), Some(stream)) = (self.place.spilled(), &self.stream)
            && spilled.keeps_source()
        {
            let _ = spilled.lead_to(stream);
        }
    }

    /// Returns whether the engine alone has the storage, so that the bytes can leave memory.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.place {
            _ if self.stays => false,
            Place::InMemory { storage, .. } => storage.handles() == 1,
            // A caller that waits for the fetch has cloned its handle.
            Place::Arriving { arrival, .. } => Arc::strong_count(arrival) == 1,
            Place::Spilled(_) | Place::Dropped(_) | Place::Lent => false,
        }
    }

    /// Returns whether others than the engine have the storage.
    pub(crate) fn is_used_by_others(&self) -> bool {
        match self.place.storage() {
            Some(storage) => storage.handles() > 1,
            None => self.live_source().is_some(),
        }
    }
}

/// The inputs of a dropped tensor, which stay until it is recomputed: a step that differs from the measured one might
/// release them.
#[derive(Default)]
pub(crate) struct RecomputeInputs {
    pub(crate) saved: Vec<Arc<SavedHandle>>,
    /// The inputs that were not saved, such as parameters.
    pub(crate) unsaved: Vec<Storage>,
    /// The bytes that are recomputed on the way. Other dropped tensors may need them, too.
    pub(crate) made: Vec<Arc<IntermediateBytes>>,
}

/// Bytes that are recomputed on the way to dropped tensors, which share them. When they have been recomputed for one of
/// the tensors, they stay for the others.
#[derive(Default)]
pub(crate) struct IntermediateBytes {
    /// The bytes, once they are there, and the stream in whose order they were recomputed.
    made: Mutex<Option<(Storage, Option<Stream>)>>,
}

impl IntermediateBytes {
    /// Returns the bytes for work on a stream, if they are there.
    pub(crate) fn get(&self, stream: Option<&Stream>) -> Option<Storage> {
        let made = self.made.lock();
        made.as_ref().filter(|(_, home)| home.as_ref() == stream).map(|(storage, _)| storage.clone())
    }

    /// Keeps the bytes if others than this tensor need them. The caller has two handles of these bytes: its own, and that
    /// of the tensor which is being recomputed.
    pub(crate) fn keep(self: &Arc<Self>, storage: &Storage, stream: Option<&Stream>) {
        if Arc::strong_count(self) > 2 {
            *self.made.lock() = Some((storage.clone(), stream.cloned()));
        }
    }

    /// Takes the bytes, if nothing uses them now: they can be recomputed once more.
    pub(crate) fn give_up(&self) -> Option<Storage> {
        self.made.lock().take_if(|(storage, _)| storage.handles() == 1).map(|(storage, _)| storage)
    }
}

/// Identifies saved bytes: a storage, and its version.
pub type SavedBytesId = (Generation, u64);

/// The bytes that the engine knows, for a front end that recomputes some from them.
pub trait KnownBytes {
    /// Fetches or recomputes saved bytes, and returns their storage. Returns None if they were not saved, or are not needed
    /// any more.
    ///
    /// # Errors
    /// The bytes cannot come back.
    fn find(&self, id: SavedBytesId) -> Result<Option<Storage>, OffloadError>;

    /// Tells the engine of an input that was recomputed on the way: it keeps the bytes if it needs them again.
    fn made(&self, id: SavedBytesId, storage: &Storage);
}

/// A front end's way to recompute saved bytes.
pub trait Recomputation: Send + Sync {
    /// Returns the identity of the bytes.
    fn id(&self) -> SavedBytesId;

    /// Returns the inputs. The engine asks for them at the end of a measured step, and when it drops the bytes.
    fn inputs(&self) -> Vec<RecomputeInput>;

    /// Returns the [interval](crate::Engine::interval) in which the bytes were made, if the front end did not report
    /// the operation.
    fn made_in(&self) -> Option<usize> {
        None
    }

    /// Computes the bytes in fresh memory, on the thread's current stream. They are the same as before.
    ///
    /// # Errors
    /// An input cannot come back, is gone, or was written to; the operation fails.
    fn run(&self, known: &dyn KnownBytes) -> Result<Storage, Box<dyn Error + Send + Sync>>;
}

/// An input from which bytes are recomputed.
pub struct RecomputeInput {
    /// The identity of the input.
    pub id: SavedBytesId,
    /// The storage of the input, if it is in memory now. A storage that is there at the end of a step, such as a
    /// parameter or the batch, is expected to stay through the next step, unless it was saved.
    pub here: Option<Storage>,
    /// The way to recompute the input itself, if there is one.
    pub recompute: Option<Arc<dyn Recomputation>>,
}
