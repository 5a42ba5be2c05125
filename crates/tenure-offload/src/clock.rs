//! How long the device, or the host, computes between points.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure_device::{DriverError, Event, EventKind, Stream};

/// So far ahead a host gets when its device has nothing left to do: some hundred operations.
pub(crate) const LEAD: Duration = Duration::from_millis(20);

/// A source of the host's time.
pub(crate) type HostTime = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Intervals of time, each from a mark to another.
pub(crate) struct Clock {
    /// Spans of time, each with the interval that it is a part of.
    spans: Vec<(usize, Mark, Mark)>,
    /// How many intervals have ended.
    ended: usize,
    began: Option<Mark>,
    lead: Duration,
    host_time: HostTime,
}

impl Default for Clock {
    fn default() -> Self {
        Self::with_host_time(Arc::new(Instant::now))
    }
}

enum Mark {
    Host(Instant),
    Device(Event),
}

impl Clock {
    /// A clock whose intervals of the host are measured by `host_time`.
    pub(crate) fn with_host_time(host_time: HostTime) -> Self {
        Self { spans: Vec::new(), ended: 0, began: None, lead: Duration::ZERO, host_time }
    }

    /// One whose intervals are the device's own time: a device that waits for its host to ask for more would count that. So
    /// where it has nothing left to do, it waits for so long, before an interval, as the host goes on.
    pub(crate) fn with_lead(lead: Duration) -> Self {
        Self { lead, ..Self::default() }
    }

    /// An interval begins.
    pub(crate) fn begin(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        let is_idle = || self.spans.last().map_or(Ok(true), |(.., end)| end.is_passed());
        if let (Some(stream), false) = (stream, self.lead.is_zero())
            && is_idle()?
        {
            let lead = self.lead;
            stream.host_function(move || thread::sleep(lead))?;
        }
        self.began = Some(self.now(stream)?);
        Ok(())
    }

    /// It ends.
    pub(crate) fn end(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        let end = self.now(stream)?;
        let began = match self.began.take() {
            Some(began) => began,
            None => self.now(stream)?,
        };
        self.spans.push((self.ended, began, end));
        self.ended += 1;
        Ok(())
    }

    /// The interval goes on, but what comes until it is [resumed](Self::resume) takes none of its time.
    pub(crate) fn pause(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        if let Some(began) = self.began.take() {
            self.spans.push((self.ended, began, self.now(stream)?));
        }
        Ok(())
    }

    /// See [`pause`](Self::pause).
    pub(crate) fn resume(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        self.began = Some(self.now(stream)?);
        Ok(())
    }

    fn now(&self, stream: Option<&Stream>) -> Result<Mark, DriverError> {
        let Some(stream) = stream else { return Ok(Mark::Host((self.host_time)())) };
        let mut event = Event::new(Arc::clone(stream.driver()), EventKind::Timing);
        event.record(stream)?;
        Ok(Mark::Device(event))
    }

    /// How long each was, in nanoseconds. Waits until all are over.
    pub(crate) fn finish(self) -> Result<Vec<u64>, DriverError> {
        let mut times_ns = vec![0; self.ended];
        for (interval, began, end) in &self.spans {
            if let Some(time_ns) = times_ns.get_mut(*interval) {
                *time_ns += began.until(end)?;
            }
        }
        Ok(times_ns)
    }
}

impl Mark {
    fn is_passed(&self) -> Result<bool, DriverError> {
        match self {
            Self::Host(_) => Ok(true),
            Self::Device(event) => event.query(),
        }
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

#[cfg(test)]
mod tests {
    use tenure_device::memory::{DeviceMemory, MemoryConfig};
    use tenure_device::sim::{SimConfig, SimDriver};

    use super::*;

    #[test]
    fn a_device_waits_ahead_of_intervals_where_it_has_nothing_to_do() {
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        let memory = DeviceMemory::new(driver, MemoryConfig::default()).unwrap();
        let stream = memory.streams().null();
        for (lead, times) in [(Duration::ZERO, 0), (Duration::from_millis(3), 2)] {
            let (mut clock, since) = (Clock::with_lead(lead), Instant::now());
            for _ in 0..2 {
                clock.begin(Some(&stream)).unwrap();
                clock.end(Some(&stream)).unwrap();
                stream.synchronize().unwrap();
            }
            assert!(since.elapsed() >= lead * times);
            assert_eq!(clock.finish().unwrap().len(), 2);
        }
        // A pause takes no time of the interval that it is in.
        let now = Arc::new(parking_lot::Mutex::new(Instant::now()));
        let time = Arc::clone(&now);
        let mut clock = Clock::with_host_time(Arc::new(move || *time.lock()));
        let pass = |ms| *now.lock() += Duration::from_millis(ms);
        clock.begin(None).unwrap();
        pass(1);
        clock.pause(None).unwrap();
        pass(100);
        clock.resume(None).unwrap();
        pass(2);
        clock.end(None).unwrap();
        assert_eq!(clock.finish().unwrap(), [3_000_000]);
        // A host never waits for itself, which here would take a day.
        let mut clock = Clock::with_lead(Duration::from_secs(24 * 3600));
        clock.begin(None).unwrap();
        clock.end(None).unwrap();
    }
}
