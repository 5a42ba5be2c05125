//! Gates: events on the device that work waits for before it uses a group of weights.

use std::sync::Arc;

use tenure_device::graph::GraphGate;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventHandle, EventKind, Stream};

use crate::SwitchError;

/// The event after the last copy of a group. This process waits for its graph gate; other processes wait for its
/// interprocess event.
pub(crate) struct GroupGate {
    gate: GraphGate,
    /// This process's event if its models are lent, or the lender's if the model is borrowed.
    signal: Option<Event>,
}

impl GroupGate {
    /// Creates an open gate.
    pub(crate) fn new(memory: &DeviceMemory, is_lending: bool) -> Result<Self, SwitchError> {
        let signal = is_lending.then(|| Event::new(Arc::clone(memory.driver()), EventKind::Interprocess));
        Ok(Self { gate: GraphGate::new(memory)?, signal })
    }

    /// Makes work that is launched from now on wait for the work that is now on `copies`.
    pub(crate) fn record(&mut self, copies: &Stream) -> Result<(), SwitchError> {
        self.gate.record(copies)?;
        self.signal.as_mut().map_or(Ok(()), |signal| Ok(signal.record(copies)?))
    }

    /// Makes later work of a stream wait for the group.
    pub(crate) fn wait(&self, stream: &Stream) -> Result<(), SwitchError> {
        Ok(self.gate.wait(stream)?)
    }

    /// Returns a handle by which other processes open the event, or `None` if models are not lent.
    pub(crate) fn export(&mut self) -> Result<Option<EventHandle>, SwitchError> {
        Ok(self.signal.as_mut().map(Event::export).transpose()?)
    }

    /// Makes work that is launched from now on wait for the last record of another process's event. `follower` is a
    /// stream that is used for nothing else.
    pub(crate) fn follow(&mut self, signal: &EventHandle, follower: &Stream) -> Result<(), SwitchError> {
        if self.signal.is_none() {
            self.signal = Some(Event::open(Arc::clone(follower.driver()), signal)?);
        }
        self.signal.as_ref().map_or(Ok(()), |signal| signal.wait(follower))?;
        Ok(self.gate.record(follower)?)
    }
}
