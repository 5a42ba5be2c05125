//! Spilling, fetching, dropping and recomputing of saved tensors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{DType, KeyId, Purpose, Storage, Tag};
use tenure_device::allocation_clock::StoppedClock;
use tenure_device::{Stream, StreamGuard};
use tenure_tier::codec::{Choice, Coding};
use tenure_tier::{MovableBytes, Urgency};

use crate::error::OffloadError;
use crate::identity::TensorId;
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::machine::Memory;
use crate::place::{KnownBytes, OffloadTensor, Place, Recomputation, SavedBytesId};

/// The bytes that the engine knows, for a recomputation on a stream.
struct KnownFrom<'a> {
    inner: &'a EngineInner,
    home: Option<&'a Stream>,
}

impl KnownBytes for KnownFrom<'_> {
    fn find(&self, id: SavedBytesId) -> Result<Option<Storage>, OffloadError> {
        let (saved, made) = {
            let ledger = self.inner.ledger.lock();
            (ledger.find(id), ledger.intermediate(id))
        };
        match saved {
            Some(saved) => self.inner.bring_back(saved.id, self.home).map(Some),
            None => Ok(made.and_then(|made| made.get(self.home))),
        }
    }

    fn made(&self, id: SavedBytesId, storage: &Storage) {
        let made = self.inner.ledger.lock().intermediate(id);
        made.into_iter().for_each(|made| made.keep(storage, self.home));
    }
}

impl EngineInner {
    /// Returns a storage's bytes as a saved tensor in memory. None if the storage has no allocator.
    pub(crate) fn saved_tensor(
        storage: &Storage,
        dtype: DType,
        stream: Option<&Stream>,
        recompute: Option<Arc<dyn Recomputation>>,
        name: String,
    ) -> Option<OffloadTensor> {
        let tag = if Purpose::current().0 == Tag::Gradient { Tag::Gradient } else { Tag::Activation };
        Some(OffloadTensor {
            name,
            bytes: storage.bytes() as u64,
            tag,
            dtype,
            allocator: Arc::clone(storage.allocator()?),
            stream: stream.cloned(),
            source: Some(storage.downgrade()),
            recompute,
            place: Place::in_memory(storage.clone()),
            stays: false,
        })
    }

    /// Drops a tensor's bytes, to be recomputed when they are needed. Returns `false`, and the bytes stay, if they
    /// cannot be recomputed or are in transit. The storage is freed with no lock held.
    pub(crate) fn drop_bytes(&self, id: TensorId) -> bool {
        let (recompute, making) = {
            let ledger = self.ledger.lock();
            let recompute = ledger.tensors.get(&id).and_then(|tensor| tensor.recompute.clone());
            let making = ledger.index(id).and_then(|index| ledger.course.making(index));
            let (Some(recompute), Some(making)) = (recompute, making) else { return false };
            (recompute, making)
        };
        let saved = |id| self.ledger.lock().find(id);
        let made = |id| self.ledger.lock().intermediate_of_dropped(id);
        let Some(inputs) = making.find_inputs(&*recompute, saved, made) else { return false };
        let mut ledger = self.ledger.lock();
        let dropped = ledger.tensors.get_mut(&id).map(|tensor| tensor.drop_bytes(inputs));
        let is_dropped = dropped.as_ref().is_some_and(Result::is_ok);
        if is_dropped {
            ledger.note(id, |record, now_us| record.dropped_us = Some(now_us));
        }
        drop(ledger);
        drop(dropped);
        is_dropped
    }

    /// Returns the codec for a saved tensor, and the factor by which it makes the bytes smaller. A factor is estimated
    /// only for host memory with a disk, whose bytes can be sampled now. Otherwise returns `choice` and None.
    pub(crate) fn codec(&self, storage: &Storage, dtype: DType, choice: Choice) -> (Choice, Option<f64>) {
        let (Memory::Host(_), Some(disk)) = (&self.memory, self.mover.disk()) else { return (choice, None) };
        let bytes = storage.lock();
        // SAFETY: a correct program does not write to saved bytes. If one does, only the estimate is wrong.
        let (codec, ratio) = disk.sample(unsafe { bytes.as_slice() }, Coding { choice, dtype, is_beside: false });
        (Choice::Codec(codec), Some(1.0 / ratio).filter(|smaller| *smaller > 1.0))
    }

    /// Begins to spill a tensor over link `link`, or over the next slower one whose tier has room. The tensor stays in
    /// memory if no tier has. The engine releases the storage at once; the mover keeps it until it has been copied.
    pub(crate) fn spill(&self, ledger: &mut Ledger, id: TensorId, link: usize) -> Result<(), OffloadError> {
        let choice = ledger.codec_of(id);
        // Removing a spill drops its handle, which may free room on the tier.
        ledger.remove_released_spills();
        let Ledger { tensors, report, spills, no_room, .. } = ledger;
        let Some(tensor) = tensors.get_mut(&id).filter(|tensor| !tensor.stays) else { return Ok(()) };
        let Place::InMemory { storage, spilled } = &mut tensor.place else { return Ok(()) };
        if let Some(spilled) = spilled.take() {
            tensor.place = Place::Spilled(spilled);
            return Ok(());
        }
        for (_, destination) in self.options.links.iter().skip(link) {
            // SAFETY: a front end refuses to use saved bytes after they are written to, so bytes that were read during
            // such a write are not used either. A device's bytes are read in the order of its stream.
            let source = unsafe { MovableBytes::of(storage, tensor.stream.as_ref()) };
            let coding = Coding { choice, dtype: tensor.dtype, is_beside: self.memory.device().is_some() };
            match self.mover.store_encoded(&tensor.name, source, *destination, coding) {
                Ok(spilled) => {
                    report.spilled_bytes += tensor.bytes;
                    spills.push_back((id, spilled.clone()));
                    tensor.place = Place::Spilled(spilled);
                    ledger.note(id, |record, now_us| record.spilled = Some((now_us, *destination)));
                    return Ok(());
                }
                Err(error) if error.is_no_room() => *no_room = Some(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Begins to fetch a spilled tensor, if it is not in memory.
    pub(crate) fn fetch(&self, id: TensorId, urgency: Urgency) -> Result<(), OffloadError> {
        let (name, bytes, tag, allocator, stream) = {
            let _former;
            let mut ledger = self.ledger.lock();
            let Some(tensor) = ledger.tensors.get_mut(&id) else { return Ok(()) };
            _former = tensor.return_to_source();
            let OffloadTensor { name, bytes, tag, allocator, stream, place, .. } = &*tensor;
            match place {
                Place::Spilled(_) => (name.clone(), *bytes, *tag, Arc::clone(allocator), stream.clone()),
                Place::InMemory { .. } | Place::Arriving { .. } | Place::Dropped(_) | Place::Lent => return Ok(()),
            }
        };
        // The ledger is unlocked, since the allocation may have to make room.
        let storage = {
            let _purpose = Purpose::enter(tag, KeyId::NONE);
            let _stream = stream.as_ref().map(StreamGuard::new);
            match (Storage::new(bytes as usize, allocator), &stream, urgency) {
                (Ok(storage), ..) => storage,
                // The program waits for it.
                (Err(_), Some(stream), Urgency::Now)
                    if let Some(storage) = self.overflow(bytes as usize, stream.id()) =>
                {
                    storage
                }
                (Err(source), ..) => return Err(OffloadError::Back { name, source }),
            }
        };
        let mut ledger = self.ledger.lock();
        let Ledger { tensors, report, .. } = &mut *ledger;
        let Some(tensor) = tensors.get_mut(&id) else { return Ok(()) };
        let Place::Spilled(spilled) = &tensor.place else { return Ok(()) };
        // SAFETY: the storage is fresh, and the engine hands it out only after the bytes have arrived.
        let target = unsafe { MovableBytes::of(&storage, tensor.stream.as_ref()) };
        let arrival = Arc::new(self.mover.fetch(spilled, target, urgency)?);
        let encoded = Some(spilled.encoded()).filter(|encoded| encoded.raw_bytes as u64 == bytes);
        tensor.place = Place::Arriving { storage, arrival, spilled: spilled.clone() };
        report.fetched_bytes += bytes;
        ledger.note(id, |record, now_us| (record.fetched_us, record.encoded) = (Some(now_us), encoded));
        Ok(())
    }

    /// Brings a tensor's bytes to memory: fetches or recomputes them if necessary. Returns the storage, ready for the
    /// work that is queued on `stream` next, or for the host.
    pub(crate) fn bring_back(&self, id: TensorId, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        loop {
            let _former;
            let mut ledger = self.ledger.lock();
            let Some(tensor) = ledger.tensors.get_mut(&id) else {
                unreachable!("a tensor lives as long as its handle")
            };
            _former = tensor.return_to_source();
            match &tensor.place {
                Place::InMemory { storage, .. } => return Ok(storage.clone()),
                Place::Arriving { storage, arrival, .. } => {
                    let storage = storage.clone();
                    let arrival = Arc::clone(arrival);
                    let home = tensor.stream.clone();
                    drop(ledger);
                    let since = Instant::now();
                    self.stalled(|| stream.map_or_else(|| arrival.wait(), |stream| arrival.lead_to(stream)))?;
                    let stalled_us = since.elapsed().as_micros() as u64;
                    self.ledger.lock().note(id, |record, _| record.stalled_us += stalled_us);
                    // Other streams still have to wait for the fetch.
                    if stream.is_none() || stream == home.as_ref() {
                        self.end_arrival(id);
                    }
                    return Ok(storage);
                }
                Place::Spilled(_) => {
                    drop(ledger);
                    self.fetch(id, Urgency::Now)?;
                }
                Place::Dropped(_) => {
                    drop(ledger);
                    self.recompute(id, stream)?;
                }
                Place::Lent => {
                    let name = tensor.name.clone();
                    return Err(OffloadError::Again { name, reason: "a caller has borrowed it".into() });
                }
            }
        }
    }

    /// Recomputes a tensor whose bytes were dropped.
    fn recompute(&self, id: TensorId, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let (name, bytes, home, recompute) = {
            let ledger = self.ledger.lock();
            let Some(tensor) = ledger.tensors.get(&id) else { return Ok(()) };
            (tensor.name.clone(), tensor.bytes, tensor.stream.clone(), tensor.recompute.clone())
        };
        let Some(recompute) = recompute else {
            return Err(OffloadError::Again { name, reason: "the front end gave no recipe for it".into() });
        };
        let storage = {
            let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
            let _stream = home.as_ref().map(StreamGuard::new);
            let _stopped = StoppedClock::enter();
            recompute
                .run(&KnownFrom { inner: self, home: home.as_ref() })
                .map_err(|error| OffloadError::Again { name, reason: error.to_string() })?
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
        let former = ledger.tensors.get_mut(&id).map(|tensor| tensor.end_recompute(storage));
        drop(ledger);
        drop(former);
        Ok(())
    }

    /// Records that a tensor's fetch needs no more waiting, on its own stream or on the host.
    pub(crate) fn end_arrival(&self, id: TensorId) {
        if let Some(tensor) = self.ledger.lock().tensors.get_mut(&id) {
            tensor.end_arrival();
        }
    }
}
