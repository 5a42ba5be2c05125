//! Events: points in a stream that other streams and the host can wait for.

use std::sync::{Arc, Weak};
use std::{fmt, mem};

use parking_lot::Mutex;
use tenure_core::Device;

use crate::{Call, CallError, Driver, DriverError, ErrorKind, EventHandle, EventId, EventKind};

/// A point in a stream that other streams and the host can wait for. c10's `CUDAEvent` (`ATen/cuda/CUDAEvent.h`).
///
/// The driver's event is created when this one is first recorded or exported. An event that was never recorded counts
/// as passed. A drop destroys the driver's event, and waits already put on streams still hold. A host function cannot
/// call the driver: an event that is dropped there is destroyed when the next event is created.
pub struct Event {
    pub(crate) driver: Arc<dyn Driver>,
    kind: EventKind,
    id: Option<EventId>,
}

impl Event {
    /// Creates an event of a device. Calls no driver.
    pub fn new(driver: Arc<dyn Driver>, kind: EventKind) -> Self {
        Self { driver, kind, id: None }
    }

    /// Opens an event of another process, given a handle that [`export`](Self::export) returned there.
    ///
    /// # Errors
    /// The event is gone, or belongs to this process.
    #[track_caller]
    pub fn open(driver: Arc<dyn Driver>, handle: &EventHandle) -> Result<Self, DriverError> {
        let id = driver.open_event(handle)?;
        Ok(Self { driver, kind: EventKind::Interprocess, id: Some(id) })
    }

    /// Returns the device whose event it is.
    pub fn device(&self) -> Device {
        self.driver.device()
    }

    /// Returns the use of the event.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// Returns the driver's id of the event, once there is one.
    pub fn id(&self) -> Option<EventId> {
        self.id
    }

    /// Returns whether the device has passed the event. Never waits.
    ///
    /// # Errors
    /// A driver call failed, or work before the event did.
    #[track_caller]
    pub fn query(&self) -> Result<bool, DriverError> {
        Ok(self.id.map_or(Ok(true), |id| self.driver.query_event(id))?)
    }

    /// Blocks the host until the event is passed.
    ///
    /// # Errors
    /// The errors of [`query`](Self::query).
    #[track_caller]
    pub fn synchronize(&self) -> Result<(), DriverError> {
        Ok(self.id.map_or(Ok(()), |id| self.driver.synchronize_event(id))?)
    }

    /// Returns the device time from this event to `end`, in µs.
    ///
    /// # Errors
    /// One of the two is not of [`EventKind::Timing`] ([`ErrorKind::WrongEventKind`]), or was not recorded or not
    /// passed yet ([`ErrorKind::NotPassed`]).
    #[track_caller]
    pub fn elapsed_us(&self, end: &Self) -> Result<f64, DriverError> {
        let start = self.timing()?;
        let end = end.timing()?;
        Ok(self.driver.elapsed_us(start, end)?)
    }

    /// Returns a handle with which another process can [`open`](Self::open) the event, recorded or not.
    ///
    /// # Errors
    /// The event is not of [`EventKind::Interprocess`] ([`ErrorKind::WrongEventKind`]), or a driver call failed.
    #[track_caller]
    pub fn export(&mut self) -> Result<EventHandle, DriverError> {
        self.require(EventKind::Interprocess, Call::ExportEvent)?;
        let id = self.create()?;
        Ok(self.driver.export_event(id)?)
    }

    /// Returns the driver's event, which is created if there is none yet.
    #[track_caller]
    pub(crate) fn create(&mut self) -> Result<EventId, DriverError> {
        match self.id {
            Some(id) => Ok(id),
            None => {
                let id = *self.id.insert(self.driver.create_event(self.kind)?);
                // The driver took the call, so this is no host function.
                destroy_deferred();
                Ok(id)
            }
        }
    }

    /// Returns the driver's event, if its kind is [`EventKind::Timing`].
    #[track_caller]
    fn timing(&self) -> Result<EventId, DriverError> {
        self.require(EventKind::Timing, Call::Elapsed)?;
        match self.id {
            Some(id) => Ok(id),
            None => Err(DriverError::new(Call::Elapsed, ErrorKind::NotPassed(self.handle()))),
        }
    }

    /// Checks that the event is of the kind that `call` needs.
    #[track_caller]
    fn require(&self, needed: EventKind, call: Call) -> Result<(), DriverError> {
        let event = self.handle();
        let actual = self.kind;
        if actual == needed {
            return Ok(());
        }
        Err(DriverError::new(call, ErrorKind::WrongEventKind { event, actual, needed }))
    }

    /// Returns the event's number for error messages; 0 before there is one.
    fn handle(&self) -> u64 {
        self.id.map_or(0, |id| id.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Any other error means a lost context, which took its events along.
            if let Err(CallError { kind: ErrorKind::CalledFromWork, .. }) = self.driver.destroy_event(id) {
                UNDESTROYED.lock().push((Arc::downgrade(&self.driver), id));
            }
        }
    }
}

/// Events dropped in a host function, where the driver cannot be called.
static UNDESTROYED: Mutex<Vec<(Weak<dyn Driver>, EventId)>> = Mutex::new(Vec::new());

/// Destroys the events that were dropped in host functions.
fn destroy_deferred() {
    let left = mem::take(&mut *UNDESTROYED.lock());
    for (driver, id) in left {
        let _ = driver.upgrade().map(|driver| driver.destroy_event(id));
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.device()).field("kind", &self.kind).field("id", &self.id).finish()
    }
}
