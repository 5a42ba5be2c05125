//! How long the device, or the host, computes between points.

use std::sync::Arc;
use std::time::Instant;

use tenure_device::{DriverError, Event, EventKind, Stream};

/// Intervals of time, each from a mark to another.
#[derive(Default)]
pub(crate) struct Clock {
    intervals: Vec<(Mark, Mark)>,
    began: Option<Mark>,
}

enum Mark {
    Host(Instant),
    Device(Event),
}

impl Clock {
    /// An interval begins.
    pub(crate) fn begin(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        self.began = Some(Mark::now(stream)?);
        Ok(())
    }

    /// It ends.
    pub(crate) fn end(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        let end = Mark::now(stream)?;
        let began = match self.began.take() {
            Some(began) => began,
            None => Mark::now(stream)?,
        };
        self.intervals.push((began, end));
        Ok(())
    }

    /// How long each was, in nanoseconds. Waits until all are over.
    pub(crate) fn finish(self) -> Result<Vec<u64>, DriverError> {
        self.intervals.iter().map(|(began, end)| began.until(end)).collect()
    }
}

impl Mark {
    fn now(stream: Option<&Stream>) -> Result<Self, DriverError> {
        let Some(stream) = stream else { return Ok(Self::Host(Instant::now())) };
        let mut event = Event::new(Arc::clone(stream.driver()), EventKind::Timing);
        event.record(stream)?;
        Ok(Self::Device(event))
    }

    fn until(&self, end: &Self) -> Result<u64, DriverError> {
        match (self, end) {
            (Self::Host(began), Self::Host(end)) => Ok((*end - *began).as_nanos() as u64),
            (Self::Device(began), Self::Device(end)) => {
                end.synchronize()?;
                Ok((began.elapsed_us(end)? * 1e3) as u64)
            }
            // What began on the host and ended on a device is nobody's work.
            _ => Ok(0),
        }
    }
}
