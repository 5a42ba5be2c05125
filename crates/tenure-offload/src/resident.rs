//! Residents: bytes that stay from step to step, such as an optimizer's state, and need not be in memory between their
//! uses.

use tenure_core::{DType, Storage, Tag};
use tenure_device::Stream;

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::place::{OffloadTensor, Place, SavedHandle};
use crate::profiled::StepEvent;
use crate::reclaim;

/// Bytes that the engine keeps as long as this handle lives. They leave memory between their uses where a plan says so.
pub struct Resident {
    saved: SavedHandle,
}

impl Engine {
    /// Hands the bytes of a storage, elements of `dtype`, to the engine, as they are when the work that is on `stream`
    /// so far is done. From now on only callers that [borrow](Self::lend) the bytes may use them.
    ///
    /// Forgets all measurements, since steps now have more to move. If more is allocated than the budget allows, the
    /// bytes leave memory at once.
    ///
    /// # Errors
    /// The bytes cannot leave memory.
    ///
    /// # Panics
    /// The storage has no allocator.
    pub fn keep(
        &self,
        storage: Storage,
        dtype: DType,
        stream: Option<&Stream>,
        name: impl Into<String>,
    ) -> Result<Resident, OffloadError> {
        let Some(allocator) = storage.allocator().cloned() else { panic!("a resident's storage has an allocator") };
        let tensor = OffloadTensor {
            name: name.into(),
            bytes: storage.bytes() as u64,
            tag: Tag::OptimizerState,
            dtype,
            allocator,
            stream: stream.cloned(),
            source: None,
            recompute: None,
            place: Place::in_memory(storage),
            stays: false,
        };
        self.forget();
        let mut ledger = self.inner.ledger.lock();
        let id = ledger.add(tensor);
        ledger.residents.push(id);
        drop(ledger);
        let resident = Resident { saved: SavedHandle { owner: self.inner.clone(), id } };
        let allocated = self.inner.memory.statistics().all.allocated_bytes.current;
        let limit = self.inner.ledger.lock().limit_bytes();
        if limit.is_some_and(|limit| allocated > limit) {
            self.inner.spill(&mut self.inner.ledger.lock(), id, 0)?;
            reclaim::wait_for_spills(&self.inner)?;
        }
        Ok(resident)
    }

    /// Returns a resident's bytes in memory. The host, or the work that is put on `stream`, may read and write them
    /// until they are [given back](Self::give_back).
    ///
    /// # Errors
    /// The bytes cannot come back.
    pub fn lend(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let inner = &self.inner;
        let id = resident.saved.id;
        inner.handle_event(StepEvent::Lend { id }, stream)?;
        let storage = inner.bring_back(id, stream)?;
        if let Some(tensor) = inner.ledger.lock().tensors.get_mut(&id) {
            // The caller is about to overwrite the bytes, so spilled bytes become outdated.
            tensor.release_spill_source();
            tensor.place = Place::Lent;
        }
        inner.begin_interval(stream)?;
        Ok(storage)
    }

    /// Takes a resident's bytes back, as they are when the work that is on `stream` so far is done.
    ///
    /// # Errors
    /// A transfer that is due now fails, or an earlier one failed.
    pub fn give_back(
        &self,
        resident: &Resident,
        storage: Storage,
        stream: Option<&Stream>,
    ) -> Result<(), OffloadError> {
        let inner = &self.inner;
        let id = resident.saved.id;
        if let Some(tensor) = inner.ledger.lock().tensors.get_mut(&id) {
            tensor.place = Place::in_memory(storage);
        }
        inner.handle_event(StepEvent::GiveBack { id }, stream)?;
        inner.begin_interval(stream)
    }

    /// Returns a resident's bytes in memory, to be read until the last handle is dropped. Steps do not count this use.
    ///
    /// # Errors
    /// The bytes cannot come back.
    pub fn look_at(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        self.inner.bring_back(resident.saved.id, stream)
    }
}
