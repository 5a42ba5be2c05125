//! Points that work waits for before it uses a group of weights.

use std::sync::Arc;

use tenure_device::graph::Gate;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventHandle, EventKind, Stream};

use crate::SwitchError;

/// The end of the last copy of a group: a gate for this process, and an event that several processes see.
pub(crate) struct GroupGate {
    gate: Gate,
    /// The event of this process if models are lent, and the lender's if this one is borrowed.
    signal: Option<Event>,
}

impl GroupGate {
    /// An open gate.
    pub(crate) fn new(memory: &DeviceMemory, is_lending: bool) -> Result<Self, SwitchError> {
        let signal = is_lending.then(|| Event::new(Arc::clone(memory.driver()), EventKind::Interprocess));
        Ok(Self { gate: Gate::new(memory)?, signal })
    }

    /// Work that is launched from now on waits until `copies` has passed what is on it now.
    pub(crate) fn record(&mut self, copies: &Stream) -> Result<(), SwitchError> {
        self.gate.record(copies)?;
        self.signal.as_mut().map_or(Ok(()), |signal| Ok(signal.record(copies)?))
    }

    /// Makes later work of a stream wait.
    pub(crate) fn wait(&self, stream: &Stream) -> Result<(), SwitchError> {
        Ok(self.gate.wait(stream)?)
    }

    /// The name of the event for other processes; nothing if models are not lent.
    pub(crate) fn export(&mut self) -> Result<Option<EventHandle>, SwitchError> {
        Ok(self.signal.as_mut().map(Event::export).transpose()?)
    }

    /// Work that is launched from now on waits for what another process has recorded in its event. `follower` is a stream
    /// that does nothing else.
    pub(crate) fn follow(&mut self, signal: &EventHandle, follower: &Stream) -> Result<(), SwitchError> {
        if self.signal.is_none() {
            self.signal = Some(Event::open(Arc::clone(follower.driver()), signal)?);
        }
        self.signal.as_ref().map_or(Ok(()), |signal| signal.wait(follower))?;
        Ok(self.gate.record(follower)?)
    }
}
