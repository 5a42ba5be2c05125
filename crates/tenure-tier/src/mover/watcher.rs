//! A thread that waits for events of a device and then calls functions.

use std::sync::{Arc, mpsc};
use std::{io, thread};

use tenure_device::{DriverError, Event};

use crate::disk::join_unless_current;

/// The function to call after an event.
type Then = Box<dyn FnOnce(Result<(), DriverError>) + Send>;

/// A thread that waits for events one after the other, and calls a function after each. Dropping it waits until all are
/// done.
pub(super) struct Watcher {
    events: Option<mpsc::Sender<(Arc<Event>, Then)>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (events, queue) = mpsc::channel::<(Arc<Event>, Then)>();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            for (event, then) in queue {
                then(event.synchronize());
            }
        })?;
        Ok(Self { events: Some(events), thread: Some(thread) })
    }

    /// Calls `then` on the watcher's thread when the device has passed `event`, or with the error if waiting fails.
    /// Since the thread waits for events in the order of these calls, an event also delays those given after it.
    pub(super) fn when_passed(&self, event: Arc<Event>, then: impl FnOnce(Result<(), DriverError>) + Send + 'static) {
        let Some(events) = &self.events else { return };
        if let Err(refused) = events.send((event, Box::new(then))) {
            // The thread is gone, because an earlier function panicked.
            let (event, then) = refused.0;
            then(event.synchronize());
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.events = None;
        if let Some(thread) = self.thread.take() {
            join_unless_current(thread);
        }
    }
}
