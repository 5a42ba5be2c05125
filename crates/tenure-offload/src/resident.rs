//! Bytes that stay from step to step, such as an optimizer's state, and need not be in memory between their uses.

use tenure_core::{DType, Storage, Tag};
use tenure_device::Stream;

use crate::engine::Engine;
use crate::error::OffloadError;
use crate::held::{Held, HeldInputs, Saved};
use crate::profiled::Event;
use crate::reclaim;

/// Bytes that stay as long as this lives, and leave memory between their uses where a plan says so.
pub struct Resident {
    saved: Saved,
}

impl Engine {
    /// Bytes, elements of a dtype, are given into the engine's hands, as they are when what was put on their stream so far is done. Nobody else
    /// may have them from now on, but who [borrows](Self::lend) them.
    ///
    /// What was measured is forgotten: steps that have more to move are others. Where more is allocated than the budget, they
    /// leave at once.
    ///
    /// # Errors
    /// They cannot leave.
    ///
    /// # Panics
    /// The storage is of no allocator.
    pub fn keep(
        &self,
        storage: Storage,
        dtype: DType,
        stream: Option<&Stream>,
        name: impl Into<String>,
    ) -> Result<Resident, OffloadError> {
        let Some(allocator) = storage.allocator().cloned() else { panic!("a resident's storage has an allocator") };
        let held = Held {
            name: name.into(),
            bytes: storage.bytes() as u64,
            tag: Tag::OptimizerState,
            dtype,
            allocator,
            stream: stream.cloned(),
            source: None,
            storage: Some(storage),
            arrival: None,
            stored: None,
            is_lent: false,
            recompute: None,
            inputs: HeldInputs::default(),
        };
        self.forget();
        let mut ledger = self.inner.ledger.lock();
        let id = ledger.add(held);
        ledger.residents.push(id);
        drop(ledger);
        let resident = Resident { saved: Saved { keeper: self.inner.clone(), id } };
        let allocated = self.inner.memory.statistics().all.allocated_bytes.current;
        let limit = self.inner.ledger.lock().limit_bytes();
        if limit.is_some_and(|limit| allocated > limit) {
            self.inner.spill(&mut self.inner.ledger.lock(), id, 0)?;
            reclaim::wait_for_all(&self.inner)?;
        }
        Ok(resident)
    }

    /// A resident's bytes, in memory, to be read and written until they are [given back](Self::give_back), by what is put
    /// on the stream, or by the host.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn lend(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let (inner, id) = (&self.inner, resident.saved.id);
        inner.pass(Event::Lend { id }, stream)?;
        let storage = inner.here(id, stream)?;
        if let Some(held) = inner.ledger.lock().held.get_mut(&id) {
            // What was stored is about to be of the past.
            held.leave_behind();
            (held.storage, held.stored, held.is_lent) = (None, None, true);
        }
        inner.begin_interval(stream)?;
        Ok(storage)
    }

    /// A resident's bytes are as they are to be when what was put on their stream so far is done.
    ///
    /// # Errors
    /// What is to go now cannot, or what went before could not.
    pub fn give_back(
        &self,
        resident: &Resident,
        storage: Storage,
        stream: Option<&Stream>,
    ) -> Result<(), OffloadError> {
        let (inner, id) = (&self.inner, resident.saved.id);
        if let Some(held) = inner.ledger.lock().held.get_mut(&id) {
            (held.storage, held.is_lent) = (Some(storage), false);
        }
        inner.pass(Event::GiveBack { id }, stream)?;
        inner.begin_interval(stream)
    }

    /// A resident's bytes, in memory, to be read until the last handle is dropped. No step knows of it.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn look_at(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        self.inner.here(resident.saved.id, stream)
    }
}
