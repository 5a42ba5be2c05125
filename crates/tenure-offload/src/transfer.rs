//! Transfers: spills, fetches and recomputes saved tensors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{DType, KeyId, Purpose, Storage, Tag};
use tenure_device::{Stream, StreamGuard};
use tenure_tier::codec::{Choice, Coding};
use tenure_tier::{MovableBytes, Urgency};

use crate::error::OffloadError;
use crate::identity::HeldId;
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::memory::Memory;
use crate::recompute::SavedBytesId;

impl EngineInner {
    /// Drops a tensor's bytes, to be recomputed later, and returns whether it did: they stay if there is no recipe.
    /// Storages that become unused are freed with no lock held.
    pub(crate) fn give_up(&self, id: HeldId) -> bool {
        let (recompute, making) = {
            let ledger = self.ledger.lock();
            let recompute = ledger.held.get(&id).and_then(|held| held.recompute.clone());
            let making = ledger.index(id).and_then(|index| ledger.course.making(index));
            let (Some(recompute), Some(making)) = (recompute, making) else { return false };
            (recompute, making)
        };
        let saved = |id| self.ledger.lock().find(id);
        let Some(inputs) = making.hold(&*recompute, saved) else { return false };
        let mut ledger = self.ledger.lock();
        let given_up = ledger.held.get_mut(&id).map(|held| held.give_up(inputs));
        let is_gone = given_up.as_ref().is_some_and(Result::is_ok);
        if is_gone {
            ledger.note(id, |record, now_us| record.dropped_us = Some(now_us));
        }
        drop(ledger);
        drop(given_up);
        is_gone
    }

    /// Returns the codec for a saved tensor, and how many times smaller it makes the bytes. The latter is known only in
    /// the host's memory, from which all links lead to disks, and where a sample can be encoded now.
    pub(crate) fn codec(&self, storage: &Storage, dtype: DType, choice: Choice) -> (Choice, Option<f64>) {
        let (Memory::Host(_), Some(disk)) = (&self.memory, self.mover.disk()) else { return (choice, None) };
        let bytes = storage.lock();
        // SAFETY: saved bytes are written to again only by a program that is wrong. Then the sample is of no use.
        let (codec, ratio) = disk.sample(unsafe { bytes.as_slice() }, Coding { choice, dtype, is_beside: false });
        (Choice::Codec(codec), Some(1.0 / ratio).filter(|smaller| *smaller > 1.0))
    }

    /// Begins to spill a tensor over link `link`, or over the next slower one whose tier has room. The tensor stays if
    /// there is none. The engine releases the storage at once: the mover holds it as long as it must.
    pub(crate) fn spill(&self, ledger: &mut Ledger, id: HeldId, link: usize) -> Result<(), OffloadError> {
        let choice = ledger.codec_of(id);
        // Tensors that have come back since then free their room on the tier.
        ledger.forget_gone();
        let Ledger { held, report, leaving, no_room, .. } = ledger;
        let Some(held) = held.get_mut(&id).filter(|held| held.arrival.is_none()) else { return Ok(()) };
        let Some(storage) = held.storage.take() else { return Ok(()) };
        if held.stored.is_some() {
            return Ok(());
        }
        for (_, destination) in self.options.links.iter().skip(link) {
            // SAFETY: a front end refuses to use saved bytes after they are written to, so bytes that were read during
            // such a write are not used either. A device's bytes are read in the order of its stream.
            let source = unsafe { MovableBytes::of(&storage, held.stream.as_ref()) };
            let coding = Coding { choice, dtype: held.dtype, is_beside: self.memory.device().is_some() };
            match self.mover.store_encoded(&held.name, source, *destination, coding) {
                Ok(stored) => {
                    report.spilled_bytes += held.bytes;
                    leaving.push_back((id, stored.clone()));
                    held.stored = Some(stored);
                    ledger.note(id, |record, now_us| record.spilled = Some((now_us, *destination)));
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

    /// Begins to fetch a tensor, if it is not in memory.
    pub(crate) fn fetch(&self, id: HeldId, urgency: Urgency) -> Result<(), OffloadError> {
        let (name, bytes, tag, allocator, stream) = {
            let mut ledger = self.ledger.lock();
            let Some(held) = ledger.held.get_mut(&id) else { return Ok(()) };
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
        // Nothing is locked, since the allocation may have to make room.
        let storage = {
            let _purpose = Purpose::enter(tag, KeyId::NONE);
            let _stream = stream.as_ref().map(StreamGuard::new);
            Storage::new(bytes as usize, allocator).map_err(|source| OffloadError::Back { name, source })?
        };
        let mut ledger = self.ledger.lock();
        let Ledger { held, report, .. } = &mut *ledger;
        let Some(held) = held.get_mut(&id) else { return Ok(()) };
        let (Some(stored), None) = (&held.stored, &held.storage) else { return Ok(()) };
        // SAFETY: the storage is fresh, and the engine hands it out only after the bytes have arrived.
        let target = unsafe { MovableBytes::of(&storage, held.stream.as_ref()) };
        held.arrival = Some(Arc::new(self.mover.fetch(stored, target, urgency)?));
        let encoded = Some(stored.encoded()).filter(|encoded| encoded.raw_bytes as u64 == bytes);
        held.storage = Some(storage);
        report.fetched_bytes += bytes;
        ledger.note(id, |record, now_us| (record.fetched_us, record.encoded) = (Some(now_us), encoded));
        Ok(())
    }

    /// Returns a tensor's storage in memory, ready for the work that is put on `stream` next, or for the host.
    pub(crate) fn here(&self, id: HeldId, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        loop {
            let (storage, arrival, home, is_given_up) = {
                let ledger = self.ledger.lock();
                let Some(held) = ledger.held.get(&id) else { unreachable!("what is saved is held") };
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
                self.ledger.lock().note(id, |record, _| record.stalled_us += stalled_us);
                // For other streams the bytes are still on their way.
                if stream.is_none() || stream == home.as_ref() {
                    self.arrived(id);
                }
            }
            return Ok(storage);
        }
    }

    /// Recomputes a tensor whose bytes were dropped.
    fn compute(&self, id: HeldId, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let (name, bytes, home, recompute) = {
            let ledger = self.ledger.lock();
            let Some(held) = ledger.held.get(&id) else { return Ok(()) };
            (held.name.clone(), held.bytes, held.stream.clone(), held.recompute.clone())
        };
        let again = |reason: String| OffloadError::Again { name, reason };
        let Some(recompute) = recompute else { return Err(again("there is no recipe for it".into())) };
        let storage = {
            let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
            let _stream = home.as_ref().map(StreamGuard::new);
            recompute
                .run(&|id: SavedBytesId| {
                    let known = self.ledger.lock().find(id);
                    known.map(|known| self.here(known.id, home.as_ref())).transpose()
                })
                .map_err(|error| again(error.to_string()))?
        };
        if let (Some(home), Some(stream)) = (&home, stream)
            && home != stream
        {
            home.lead_to(stream)?;
        }
        let mut ledger = self.ledger.lock();
        let time_ns = ledger.index(id).and_then(|index| ledger.course.recompute_ns(index));
        ledger.report.recomputed += Duration::from_nanos(time_ns.unwrap_or(0));
        ledger.report.recomputed_bytes += bytes;
        ledger.note(id, |record, now_us| record.recomputed_us = Some(now_us));
        let inputs = ledger.held.get_mut(&id).map(|held| {
            held.storage.get_or_insert(storage);
            std::mem::take(&mut held.inputs)
        });
        drop(ledger);
        drop(inputs);
        Ok(())
    }

    /// Notes that a tensor's bytes have arrived, for their own stream and for the host.
    pub(crate) fn arrived(&self, id: HeldId) {
        if let Some(held) = self.ledger.lock().held.get_mut(&id) {
            held.arrival = None;
        }
    }
}
