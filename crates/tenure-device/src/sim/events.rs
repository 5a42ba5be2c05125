//! Events of the simulated device, by their handles: the device, kind and last record of each.

use std::sync::Arc;

use tenure_core::Device;

use super::race::Stamp;
use super::signal::Signal;
use crate::{ErrorKind, EventHandle, EventId, EventKind};

/// A point in a stream, passed when the work before it has run and the clock has reached its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) stream: usize,
    /// The number of the stream's items before the point.
    pub(super) position: u64,
    /// The time, in µs.
    pub(super) at_us: u64,
}

/// All events of a device.
pub(super) struct Events {
    device: Device,
    slots: Vec<SimEvent>,
    /// Unused slots.
    spare: Vec<u32>,
}

/// An event, or an unused slot for one.
#[derive(Default)]
pub(super) struct SimEvent {
    /// Grows when the slot is reused, so that an old handle is recognised.
    generation: u32,
    live: bool,
    kind: EventKind,
    /// The number of records made here.
    pub(super) records: u64,
    /// The point in a stream where it was recorded last.
    pub(super) point: Option<Point>,
    /// The work before that point.
    pub(super) stamp: Stamp,
    /// The time at which the point was passed, in µs, if that is known.
    pub(super) passed_us: Option<u64>,
    shared: Option<SharedEvent>,
}

/// The part of an event that other processes see.
struct SharedEvent {
    signal: Arc<Signal>,
    /// Whether the event was created here, not opened.
    created_here: bool,
    /// The number of the last record that was made here.
    record: u64,
}

/// The last record of an event.
pub(super) enum LastRecord<'a> {
    /// It was never recorded.
    Never,
    /// On a stream of this device, after the work in the stamp.
    Here(Point, &'a Stamp),
    /// By another process, with that record number.
    Elsewhere(Arc<Signal>, u64),
}

impl Events {
    pub(super) fn new(device: Device) -> Self {
        Self { device, slots: Vec::new(), spare: Vec::new() }
    }

    pub(super) fn create(&mut self, kind: EventKind) -> Result<EventId, ErrorKind> {
        let shared = match kind {
            EventKind::Order | EventKind::Timing => None,
            EventKind::Interprocess => {
                Some(SharedEvent { signal: Arc::new(Signal::new()?), created_here: true, record: 0 })
            }
        };
        Ok(self.add(kind, shared))
    }

    pub(super) fn destroy(&mut self, event: EventId) -> Result<(), ErrorKind> {
        let slot = self.get_mut(event)?;
        *slot = SimEvent { generation: slot.generation, ..SimEvent::default() };
        self.spare.push(decode_id(event).index as u32);
        Ok(())
    }

    pub(super) fn export(&self, event: EventId) -> Result<EventHandle, ErrorKind> {
        let found = self.get(event)?;
        found.check_kind(event, EventKind::Interprocess)?;
        let shared = found.shared.as_ref().expect("every interprocess event has a signal");
        Ok(shared.signal.handle())
    }

    pub(super) fn open(&mut self, handle: &EventHandle) -> Result<EventId, ErrorKind> {
        let signal = Signal::open(handle)?;
        let mut shared = self.slots.iter().filter_map(|event| event.shared.as_ref());
        if shared.any(|shared| shared.created_here && shared.signal.is(&signal)) {
            return Err(ErrorKind::OwnEvent);
        }
        let shared = SharedEvent { signal: Arc::new(signal), created_here: false, record: 0 };
        Ok(self.add(EventKind::Interprocess, Some(shared)))
    }

    /// Returns where `event` was recorded last.
    pub(super) fn last_record(&self, event: EventId) -> Result<LastRecord<'_>, ErrorKind> {
        let event = self.get(event)?;
        if let Some(SharedEvent { signal, record, .. }) = &event.shared {
            let last = signal.records();
            if last != *record {
                return Ok(LastRecord::Elsewhere(Arc::clone(signal), last));
            }
        }
        Ok(event.point.map_or(LastRecord::Never, |point| LastRecord::Here(point, &event.stamp)))
    }

    pub(super) fn get(&self, event: EventId) -> Result<&SimEvent, ErrorKind> {
        let EventIdFields { generation, device, index } = decode_id(event);
        let slot = self.slots.get(index).filter(|slot| slot.live && slot.generation == generation);
        let slot = slot.filter(|_| device == self.device.index());
        slot.ok_or_else(|| unknown("event", event.0))
    }

    pub(super) fn get_mut(&mut self, event: EventId) -> Result<&mut SimEvent, ErrorKind> {
        let EventIdFields { generation, device, index } = decode_id(event);
        let slot = self.slots.get_mut(index).filter(|slot| slot.live && slot.generation == generation);
        let slot = slot.filter(|_| device == self.device.index());
        slot.ok_or_else(|| unknown("event", event.0))
    }

    /// Checks that `event` belongs to this device, so that its streams can wait for it.
    pub(super) fn check_device(&self, event: EventId) -> Result<(), ErrorKind> {
        let event = Device::cuda(decode_id(event).device);
        let stream = self.device;
        if event == stream { Ok(()) } else { Err(ErrorKind::OtherDevice { event, stream }) }
    }

    /// Creates an event in an unused slot.
    fn add(&mut self, kind: EventKind, shared: Option<SharedEvent>) -> EventId {
        let index = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(SimEvent::default());
            let index = self.slots.len() - 1;
            assert!(index < 1 << INDEX_BITS, "no program has {index} events at once");
            index as u32
        });
        let slot = &mut self.slots[index as usize];
        *slot = SimEvent { generation: slot.generation + 1, live: true, kind, shared, ..SimEvent::default() };
        EventId(u64::from(slot.generation) << 32 | u64::from(self.device.index()) << INDEX_BITS | u64::from(index))
    }
}

impl SimEvent {
    /// Records the event for the other processes too, if they may see it. Returns the signal to pass, and the
    /// record's number.
    pub(super) fn publish(&mut self) -> Result<Option<(Arc<Signal>, u64)>, ErrorKind> {
        let Some(shared) = &mut self.shared else { return Ok(None) };
        shared.record = shared.signal.record()?;
        Ok(Some((Arc::clone(&shared.signal), shared.record)))
    }

    /// Checks that the event is of the kind that a call needs.
    pub(super) fn check_kind(&self, event: EventId, needed: EventKind) -> Result<(), ErrorKind> {
        let actual = self.kind;
        if actual == needed { Ok(()) } else { Err(ErrorKind::WrongEventKind { event: event.0, actual, needed }) }
    }
}

/// The number of bits of an [`EventId`] that give the event's slot. Its device and its generation are in the bits
/// above.
const INDEX_BITS: u32 = 24;

/// The fields of an [`EventId`].
struct EventIdFields {
    generation: u32,
    device: u8,
    index: usize,
}

fn decode_id(EventId(id): EventId) -> EventIdFields {
    EventIdFields {
        generation: (id >> 32) as u32,
        device: (id >> INDEX_BITS) as u8,
        index: id as usize & ((1 << INDEX_BITS) - 1),
    }
}

/// Creates the error for an unknown handle. It is not inlined: building and dropping an error that did not occur would
/// cost more than finding an event.
#[cold]
pub(super) fn unknown(what: &'static str, handle: u64) -> ErrorKind {
    ErrorKind::UnknownHandle { what, handle }
}
