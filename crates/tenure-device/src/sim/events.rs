//! Events by their handles: of what device and kind each is, and where it was recorded.

use std::sync::Arc;

use tenure_core::Device;

use super::race::Stamp;
use super::signal::Signal;
use super::timeline::{Point, unknown};
use crate::{ErrorKind, EventHandle, EventId, EventKind};

pub(super) struct Events {
    device: Device,
    slots: Vec<Event>,
    /// Slots that no event has.
    spare: Vec<u32>,
}

#[derive(Default)]
pub(super) struct Event {
    /// Grows when the slot changes hands, so that an old handle is known.
    generation: u32,
    live: bool,
    kind: EventKind,
    /// How often it was recorded here.
    pub(super) records: u64,
    pub(super) point: Option<Point>,
    pub(super) stamp: Stamp,
    /// When the point was passed, in µs, if that is known.
    pub(super) passed_us: Option<u64>,
    shared: Option<Shared>,
}

/// What other processes see of an event.
struct Shared {
    signal: Arc<Signal>,
    /// Made here, not opened.
    own: bool,
    /// The number of the last record that was made here.
    record: u64,
}

/// Where an event was recorded last.
pub(super) enum Recorded<'a> {
    Nowhere,
    /// On a stream of this device, after what the stamp says.
    Here(Point, &'a Stamp),
    /// By another process, as a record of that number.
    Elsewhere(Arc<Signal>, u64),
}

impl Events {
    pub(super) fn new(device: Device) -> Self {
        Self { device, slots: Vec::new(), spare: Vec::new() }
    }

    pub(super) fn create(&mut self, kind: EventKind) -> Result<EventId, ErrorKind> {
        let shared = match kind {
            EventKind::Order | EventKind::Timing => None,
            EventKind::Interprocess => Some(Shared { signal: Arc::new(Signal::new()?), own: true, record: 0 }),
        };
        Ok(self.add(kind, shared))
    }

    pub(super) fn destroy(&mut self, event: EventId) -> Result<(), ErrorKind> {
        let slot = self.get_mut(event)?;
        *slot = Event { generation: slot.generation, ..Event::default() };
        self.spare.push(parts(event).index as u32);
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
        if shared.any(|shared| shared.own && shared.signal.is(&signal)) {
            return Err(ErrorKind::OwnEvent);
        }
        let shared = Shared { signal: Arc::new(signal), own: false, record: 0 };
        Ok(self.add(EventKind::Interprocess, Some(shared)))
    }

    /// Where `event` was recorded last.
    pub(super) fn recorded(&self, event: EventId) -> Result<Recorded<'_>, ErrorKind> {
        let event = self.get(event)?;
        if let Some(Shared { signal, record, .. }) = &event.shared {
            let last = signal.records();
            if last != *record {
                return Ok(Recorded::Elsewhere(Arc::clone(signal), last));
            }
        }
        Ok(event.point.map_or(Recorded::Nowhere, |point| Recorded::Here(point, &event.stamp)))
    }

    pub(super) fn get(&self, event: EventId) -> Result<&Event, ErrorKind> {
        let Parts { generation, device, index } = parts(event);
        let slot = self.slots.get(index).filter(|slot| slot.live && slot.generation == generation);
        let slot = slot.filter(|_| device == self.device.index());
        slot.ok_or_else(|| unknown("event", event.0))
    }

    pub(super) fn get_mut(&mut self, event: EventId) -> Result<&mut Event, ErrorKind> {
        let Parts { generation, device, index } = parts(event);
        let slot = self.slots.get_mut(index).filter(|slot| slot.live && slot.generation == generation);
        let slot = slot.filter(|_| device == self.device.index());
        slot.ok_or_else(|| unknown("event", event.0))
    }

    /// Whether a stream of this device can wait for `event`, as far as devices go.
    pub(super) fn check_device(&self, event: EventId) -> Result<(), ErrorKind> {
        let (event, stream) = (Device::cuda(parts(event).device), self.device);
        if event == stream { Ok(()) } else { Err(ErrorKind::OtherDevice { event, stream }) }
    }

    fn add(&mut self, kind: EventKind, shared: Option<Shared>) -> EventId {
        let index = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(Event::default());
            let index = self.slots.len() - 1;
            assert!(index < 1 << INDEX_BITS, "no program has {index} events at once");
            index as u32
        });
        let slot = &mut self.slots[index as usize];
        *slot = Event { generation: slot.generation + 1, live: true, kind, shared, ..Event::default() };
        EventId(u64::from(slot.generation) << 32 | u64::from(self.device.index()) << INDEX_BITS | u64::from(index))
    }
}

impl Event {
    /// Tells other processes, if any may see the event, that it is recorded: what is to be passed, and its number.
    pub(super) fn publish(&mut self) -> Result<Option<(Arc<Signal>, u64)>, ErrorKind> {
        let Some(shared) = &mut self.shared else { return Ok(None) };
        shared.record = shared.signal.record()?;
        Ok(Some((Arc::clone(&shared.signal), shared.record)))
    }

    pub(super) fn check_kind(&self, event: EventId, needed: EventKind) -> Result<(), ErrorKind> {
        let actual = self.kind;
        if actual == needed { Ok(()) } else { Err(ErrorKind::WrongEventKind { event: event.0, actual, needed }) }
    }
}

/// How many bits of an event's name say its slot. Above them are its device and its generation.
const INDEX_BITS: u32 = 24;

/// What an event's name says.
struct Parts {
    generation: u32,
    device: u8,
    index: usize,
}

fn parts(EventId(id): EventId) -> Parts {
    Parts {
        generation: (id >> 32) as u32,
        device: (id >> INDEX_BITS) as u8,
        index: id as usize & ((1 << INDEX_BITS) - 1),
    }
}
