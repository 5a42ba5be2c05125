//! Bytes that stay from step to step, such as an optimizer's state, and need not be in memory between their uses.

use tenure_core::{DType, Storage, Tag};
use tenure_device::Stream;

use crate::held::{Held, Saved};
use crate::recompute::HeldInputs;
use crate::step::Event;
use crate::{Engine, OffloadError, reclaim};

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
        let mut state = self.shared.state.lock();
        let id = state.add(held);
        state.residents.push(id);
        drop(state);
        let resident = Resident { saved: Saved { shared: self.shared.clone(), id } };
        let allocated = self.shared.memory.statistics().all.allocated_bytes.current;
        let limit = self.shared.state.lock().limit_bytes();
        if limit.is_some_and(|limit| allocated > limit) {
            self.shared.spill(&mut self.shared.state.lock(), id, 0)?;
            reclaim::wait_for_all(&self.shared)?;
        }
        Ok(resident)
    }

    /// A resident's bytes, in memory, to be read and written until they are [given back](Self::give_back), by what is put
    /// on the stream, or by the host.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn lend(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let (shared, id) = (&self.shared, resident.saved.id);
        shared.pass(Event::Lend { id }, stream)?;
        let storage = shared.here(id, stream)?;
        if let Some(held) = shared.state.lock().held.get_mut(&id) {
            // What was stored is about to be of the past.
            held.leave_behind();
            (held.storage, held.stored, held.is_lent) = (None, None, true);
        }
        shared.begin_interval(stream)?;
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
        let (shared, id) = (&self.shared, resident.saved.id);
        if let Some(held) = shared.state.lock().held.get_mut(&id) {
            (held.storage, held.is_lent) = (Some(storage), false);
        }
        shared.pass(Event::GiveBack { id }, stream)?;
        shared.begin_interval(stream)
    }

    /// A resident's bytes, in memory, to be read until the last handle is dropped. No step knows of it.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn look_at(&self, resident: &Resident, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        self.shared.here(resident.saved.id, stream)
    }
}
