//! Copies out of a device's memory that go on while the program does. Work that writes to the memory waits for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_alloc::Address;
use tenure_core::StreamId;

use crate::{DriverError, Event, Stream, Streams};

/// A copy that is noted, until this is dropped.
#[must_use = "writes wait for the copy only while this lives"]
pub struct NotedCopy {
    stream: Stream,
    address: Address,
    event: Arc<Event>,
}

impl Stream {
    /// Notes that the device copies the bytes that begin at `address` elsewhere, until `event`. The stream is any of
    /// that device.
    pub fn note_copy(&self, address: Address, event: Arc<Event>) -> NotedCopy {
        let copies = self.pools().copies();
        copies.events.lock().entry(address).or_default().push(Arc::clone(&event));
        copies.count.fetch_add(1, Ordering::Relaxed);
        NotedCopy { stream: self.clone(), address, event }
    }
}

impl Drop for NotedCopy {
    fn drop(&mut self) {
        let copies = self.stream.pools().copies();
        copies.count.fetch_sub(1, Ordering::Relaxed);
        let mut events = copies.events.lock();
        let is_last = events.get_mut(&self.address).is_some_and(|noted| {
            noted.retain(|event| !Arc::ptr_eq(event, &self.event));
            noted.is_empty()
        });
        if is_last {
            events.remove(&self.address);
        }
    }
}

impl Streams {
    /// Returns whether there are [noted](Stream::note_copy) copies.
    #[inline]
    pub fn has_copies(&self) -> bool {
        self.pools().copies().count.load(Ordering::Relaxed) > 0
    }

    /// Makes later work of `stream` wait, on the device, for the noted copies of the bytes that begin
    /// at `address`. Work that writes to them calls this before. It does nothing in a capture, whose work runs later.
    ///
    /// # Errors
    /// The errors of [`Event::wait`].
    #[track_caller]
    pub fn wait_for_copies(&self, address: Address, stream: StreamId) -> Result<(), DriverError> {
        if !self.has_copies() {
            return Ok(());
        }
        let Some(events) = self.pools().copies().events.lock().get(&address).cloned() else { return Ok(()) };
        if self.driver().is_capturing(stream)? {
            return Ok(());
        }
        let stream = self.external(stream);
        events.iter().try_for_each(|event| stream.wait(event))
    }
}
