//! Bytes that leave memory, come back, or are made again.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tenure_core::{DType, KeyId, Purpose, Storage, Tag};
use tenure_device::{Stream, StreamGuard};
use tenure_tier::codec::{Choice, Coding};
use tenure_tier::{Bytes, Urgency};

use crate::engine::{Shared, State};
use crate::step::{Course, Pass};
use crate::{Action, Id, Memory, OffloadError, reclaim};

impl Shared {
    /// Does what is to be done at a point. In a pass that is measured within the budget, what is `fresh` goes at once, and
    /// nothing goes on meanwhile: so that what a step takes is known, and how long it takes.
    pub(crate) fn act<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        actions: Vec<(u64, Action)>,
        fresh: Option<u64>,
    ) -> Result<(), OffloadError> {
        let is_measured = matches!(&state.course, Course::Measured(measured) if measured.pass == Pass::Budgeted);
        if let Some(fresh) = fresh.filter(|_| is_measured) {
            self.spill(&mut state, fresh, 0)?;
            drop(state);
            return reclaim::wait_for_all(self);
        }
        for (id, action) in actions {
            match action {
                Action::Spill { link } => self.spill(&mut state, id, link)?,
                Action::Fetch => {
                    drop(state);
                    // There may be no room yet: then it comes when it is needed.
                    let fetched = self.fetch(id, Urgency::Ahead);
                    if let Err(error) = fetched
                        && !matches!(error, OffloadError::Back { .. })
                    {
                        return Err(error);
                    }
                    state = self.state.lock();
                }
                Action::Drop => {
                    drop(state);
                    self.give_up(id);
                    state = self.state.lock();
                }
            }
        }
        Ok(())
    }

    /// Bytes are let go of, to be computed again; they stay if nobody knows how. What else somebody may let go of is let go
    /// of with nothing locked. Whether they were let go of.
    pub(crate) fn give_up(&self, id: u64) -> bool {
        let (recompute, making) = {
            let state = self.state.lock();
            let recompute = state.held.get(&id).and_then(|held| held.recompute.clone());
            let making = id.checked_sub(state.first).and_then(|number| state.course.making(number as usize));
            let (Some(recompute), Some(making)) = (recompute, making) else { return false };
            (recompute, making)
        };
        let saved = |id| self.state.lock().known.get(&id).and_then(Weak::upgrade);
        let Some(inputs) = making.hold(&*recompute, saved) else { return false };
        let mut state = self.state.lock();
        let given_up = state.held.get_mut(&id).map(|held| held.give_up(inputs));
        let is_gone = given_up.as_ref().is_some_and(Result::is_ok);
        if is_gone {
            state.note(id, |record, now_us| record.dropped_us = Some(now_us));
        }
        drop(state);
        drop(given_up);
        is_gone
    }

    /// By what bytes that were saved are to be encoded, and how many times smaller they get, where that can be looked at
    /// now: in the host's memory, from which all links lead to disks.
    pub(crate) fn codec(&self, storage: &Storage, dtype: DType, choice: Choice) -> (Choice, Option<f64>) {
        let (Memory::Host(_), Some(disk)) = (&self.memory, self.mover.disk()) else { return (choice, None) };
        let bytes = storage.lock();
        // SAFETY: what is saved is not written to any more, but by a program that is wrong: then the sample is of no use.
        let (codec, ratio) = disk.sample(unsafe { bytes.as_slice() }, Coding { choice, dtype, is_beside: false });
        (Choice::Codec(codec), Some(1.0 / ratio).filter(|smaller| *smaller > 1.0))
    }

    /// Bytes begin to go, over a link or one behind it that leads to room; if there is none, they stay. They are let go of
    /// at once: who moves them has them as long as it must.
    pub(crate) fn spill(&self, state: &mut State, id: u64, link: usize) -> Result<(), OffloadError> {
        let choice = state.choice(id);
        // What came back since takes no room any more where it was.
        state.forget_gone();
        let State { held, report, leaving, no_room, .. } = state;
        let Some(held) = held.get_mut(&id).filter(|held| held.arrival.is_none()) else { return Ok(()) };
        let Some(storage) = held.storage.take() else { return Ok(()) };
        if held.stored.is_some() {
            return Ok(());
        }
        for (_, destination) in self.options.links.iter().skip(link) {
            // SAFETY: a front end that has saved bytes refuses to use them once they are written to; what was read of such
            // a write is not used then either. Bytes of a device are read in the order of its stream.
            let source = unsafe { Bytes::of(&storage, held.stream.as_ref()) };
            let coding = Coding { choice, dtype: held.dtype, is_beside: self.memory.device().is_some() };
            match self.mover.store_encoded(&held.name, source, *destination, coding) {
                Ok(stored) => {
                    report.spilled_bytes += held.bytes;
                    leaving.push_back((id, stored.clone()));
                    held.stored = Some(stored);
                    state.note(id, |record, now_us| record.spilled = Some((now_us, *destination)));
                    return Ok(());
                }
                Err(error) if error.is_no_room() => *no_room = Some(error.into()),
                Err(error) => {
                    held.storage = Some(storage);
                    return Err(error.into());
                }
            }
        }
        held.storage = Some(storage);
        Ok(())
    }

    /// Bytes begin to come back, if they are not there.
    fn fetch(&self, id: u64, urgency: Urgency) -> Result<(), OffloadError> {
        let (name, bytes, tag, allocator, stream) = {
            let mut state = self.state.lock();
            let Some(held) = state.held.get_mut(&id) else { return Ok(()) };
            if held.storage.is_some() {
                return Ok(());
            }
            if let Some(source) = held.of_others() {
                held.storage = Some(source);
                return Ok(());
            }
            if held.stored.is_none() {
                return Ok(());
            }
            (held.name.clone(), held.bytes, held.tag, Arc::clone(&held.allocator), held.stream.clone())
        };
        // Nothing is locked: room may have to be made.
        let storage = {
            let _purpose = Purpose::enter(tag, KeyId::NONE);
            let _stream = stream.as_ref().map(StreamGuard::new);
            Storage::new(bytes as usize, allocator).map_err(|source| OffloadError::Back { name, source })?
        };
        let mut state = self.state.lock();
        let State { held, report, .. } = &mut *state;
        let Some(held) = held.get_mut(&id) else { return Ok(()) };
        let (Some(stored), None) = (&held.stored, &held.storage) else { return Ok(()) };
        // SAFETY: it is fresh, and given to nobody before it has arrived.
        let target = unsafe { Bytes::of(&storage, held.stream.as_ref()) };
        held.arrival = Some(Arc::new(self.mover.fetch(stored, target, urgency)?));
        let encoded = Some(stored.encoded()).filter(|encoded| encoded.raw_bytes as u64 == bytes);
        held.storage = Some(storage);
        report.fetched_bytes += bytes;
        state.note(id, |record, now_us| (record.fetched_us, record.encoded) = (Some(now_us), encoded));
        Ok(())
    }

    /// Bytes, in memory, and there for what is put on a stream next.
    pub(crate) fn here(&self, id: u64, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        loop {
            let (storage, arrival, home, is_given_up) = {
                let state = self.state.lock();
                let Some(held) = state.held.get(&id) else { unreachable!("what is saved is held") };
                let is_given_up = held.stored.is_none() && held.of_others().is_none();
                (held.storage.clone(), held.arrival.clone(), held.stream.clone(), is_given_up)
            };
            let Some(storage) = storage else {
                if is_given_up {
                    self.compute(id, stream)?;
                } else {
                    self.fetch(id, Urgency::Now)?;
                }
                continue;
            };
            if let Some(arrival) = arrival {
                let since = Instant::now();
                self.stalled(|| stream.map_or_else(|| arrival.wait(), |stream| arrival.lead_to(stream)))?;
                let stalled_us = since.elapsed().as_micros() as u64;
                self.state.lock().note(id, |record, _| record.stalled_us += stalled_us);
                // For other streams it is still on its way.
                if stream.is_none() || stream == home.as_ref() {
                    self.arrived(id);
                }
            }
            return Ok(storage);
        }
    }

    /// Bytes that were given up are computed again.
    fn compute(&self, id: u64, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let (name, bytes, home, recompute) = {
            let state = self.state.lock();
            let Some(held) = state.held.get(&id) else { return Ok(()) };
            (held.name.clone(), held.bytes, held.stream.clone(), held.recompute.clone())
        };
        let again = |reason: String| OffloadError::Again { name, reason };
        let Some(recompute) = recompute else { return Err(again("nobody knows how".into())) };
        let find = |id: Id| {
            let known = self.state.lock().known.get(&id).and_then(Weak::upgrade);
            known.map(|known| self.here(known.id, home.as_ref())).transpose()
        };
        let storage = {
            let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
            let _stream = home.as_ref().map(StreamGuard::new);
            recompute.run(&find).map_err(|error| again(error.to_string()))?
        };
        if let (Some(home), Some(stream)) = (&home, stream)
            && home != stream
        {
            home.lead_to(stream)?;
        }
        let mut state = self.state.lock();
        let time_ns = id.checked_sub(state.first).and_then(|number| state.course.recompute_ns(number as usize));
        state.report.recomputed += Duration::from_nanos(time_ns.unwrap_or(0));
        state.report.recomputed_bytes += bytes;
        state.note(id, |record, now_us| record.recomputed_us = Some(now_us));
        let inputs = state.held.get_mut(&id).map(|held| {
            held.storage.get_or_insert(storage);
            std::mem::take(&mut held.inputs)
        });
        drop(state);
        drop(inputs);
        Ok(())
    }

    /// Bytes are there, for their own stream and the host.
    pub(crate) fn arrived(&self, id: u64) {
        if let Some(held) = self.state.lock().held.get_mut(&id) {
            held.arrival = None;
        }
    }

    /// Does something that the host may have to wait in.
    pub(crate) fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let waited = wait();
        self.state.lock().report.stalled += since.elapsed();
        waited
    }
}
