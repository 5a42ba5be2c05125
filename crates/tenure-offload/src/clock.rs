//! The clock of a step, which measures how long the device or the host computes in each interval.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tenure_device::{DriverError, Event, EventKind, Stream};

/// The longest time that a device waits until the host has asked for an interval's work. It waits so long if the host
/// waits for the device meanwhile.
pub(crate) const LEAD: Duration = Duration::from_millis(20);

/// A source of the host's time.
pub(crate) type HostTime = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Measures the times of a step's intervals, on a device by events and on the host by a clock.
pub(crate) struct IntervalClock {
    /// Spans of time, each with the number of its interval.
    spans: Vec<(usize, Mark, Mark)>,
    /// The nanoseconds that the host took to ask for the work of each interval. Empty without a lead.
    asked_ns: Vec<u64>,
    /// The moment since which the host asks for the work of the current interval.
    asking: Option<Instant>,
    /// How long it asked for that work before the last pause.
    asked: Duration,
    /// The number of intervals that have ended.
    ended: usize,
    /// The begin of the current interval, or of its part since a pause.
    began: Option<Mark>,
    /// The longest time that a device waits before an interval; zero for no wait.
    lead: Duration,
    /// The gate at which the device waits before the current interval, until the host has asked for its work.
    gate: Option<Gate>,
    host_time: HostTime,
}

impl Default for IntervalClock {
    fn default() -> Self {
        Self::with_host_time(Arc::new(Instant::now))
    }
}

/// Keeps a device waiting until it is dropped.
type Gate = Sender<Infallible>;

/// Returns a gate, and the function of the device that waits at it, but no longer than for `most`. The function returns
/// whether the gate is open. A simulated device has no thread of its own, and the host does not wait for itself.
fn gate(most: Duration) -> (Gate, impl FnOnce() -> bool + Send) {
    let (gate, opened) = mpsc::channel();
    let host = thread::current().id();
    let most = move || if thread::current().id() == host { Duration::ZERO } else { most };
    (gate, move || opened.recv_timeout(most()) == Err(RecvTimeoutError::Disconnected))
}

/// A moment on the host or on a device.
#[derive(Clone)]
enum Mark {
    Host(Instant),
    Device(Arc<Event>),
}

impl IntervalClock {
    /// Returns a clock that measures intervals on the host by `host_time`.
    pub(crate) fn with_host_time(host_time: HostTime) -> Self {
        Self {
            spans: Vec::new(),
            asked_ns: Vec::new(),
            asking: None,
            asked: Duration::ZERO,
            ended: 0,
            began: None,
            lead: Duration::ZERO,
            gate: None,
            host_time,
        }
    }

    /// Returns a clock whose intervals take the device's time, or the host's time where the host asks for work more
    /// slowly than the device does it. A device that waits for its host would count the wait as its own time. So a
    /// device that is about to catch up waits before an interval, or a part of one, until the host has asked for its
    /// work, but no longer than for `lead`.
    pub(crate) fn with_lead(lead: Duration) -> Self {
        Self { lead, ..Self::default() }
    }

    /// Returns whether the device has begun the last interval, so that the host is ahead by less than one.
    fn is_near(&self) -> Result<bool, DriverError> {
        self.spans.last().map_or(Ok(true), |(_, began, _)| began.is_passed())
    }

    /// Ends the interval.
    pub(crate) fn end(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        if !self.lead.is_zero() {
            self.stop_asking();
            self.asked_ns.push(std::mem::take(&mut self.asked).as_nanos() as u64);
        }
        let end = self.now(stream)?;
        let began = match self.began.take() {
            Some(began) => began,
            None => self.now(stream)?,
        };
        self.spans.push((self.ended, began, end));
        self.ended += 1;
        Ok(())
    }

    /// Ends the interval, and begins the next at once.
    pub(crate) fn split(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        self.end(stream)?;
        self.began = self.spans.last().map(|(.., end)| end.clone());
        Ok(())
    }

    /// Adds the time since the host began to ask for work, if it does. The device need not wait any longer.
    fn stop_asking(&mut self) {
        self.gate = None;
        self.asked += self.asking.take().map_or(Duration::ZERO, |since| (self.host_time)() - since);
    }

    /// Pauses the interval: time until it [begins](Self::begin) again does not count.
    pub(crate) fn pause(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        self.stop_asking();
        if let Some(began) = self.began.take() {
            self.spans.push((self.ended, began, self.now(stream)?));
        }
        Ok(())
    }

    /// Begins an interval, or resumes it after a [`pause`](Self::pause).
    pub(crate) fn begin(&mut self, stream: Option<&Stream>) -> Result<(), DriverError> {
        if let (Some(stream), false) = (stream, self.lead.is_zero())
            && self.is_near()?
            && !stream.driver().is_capturing(stream.id())?
        {
            let (gate, wait) = gate(self.lead);
            stream.host_function(move || _ = wait())?;
            self.gate = Some(gate);
        }
        self.began = Some(self.now(stream)?);
        self.asking = (!self.lead.is_zero()).then(|| (self.host_time)());
        Ok(())
    }

    fn now(&self, stream: Option<&Stream>) -> Result<Mark, DriverError> {
        let Some(stream) = stream else { return Ok(Mark::Host((self.host_time)())) };
        let mut event = Event::new(Arc::clone(stream.driver()), EventKind::Timing);
        event.record(stream)?;
        Ok(Mark::Device(Arc::new(event)))
    }

    /// Returns the length of each interval in nanoseconds. Waits until all are over.
    pub(crate) fn finish(mut self) -> Result<Vec<u64>, DriverError> {
        let asked_ns = std::mem::take(&mut self.asked_ns);
        Ok(with_host_times(&self.measured()?, &asked_ns))
    }

    /// Returns the length of each interval in nanoseconds, by its marks.
    fn measured(self) -> Result<Vec<u64>, DriverError> {
        let mut times_ns = vec![0; self.ended];
        for (interval, began, end) in &self.spans {
            if let Some(time_ns) = times_ns.get_mut(*interval) {
                *time_ns += began.until(end)?;
            }
        }
        Ok(times_ns)
    }
}

/// Returns the nanoseconds that intervals take together with the host that asks for their work, one after the other: an
/// interval cannot end before the host has asked for its work.
fn with_host_times(times_ns: &[u64], asked_ns: &[u64]) -> Vec<u64> {
    let mut asked = 0;
    let mut done = 0;
    let asked_ns = asked_ns.iter().copied().chain(std::iter::repeat(0));
    let pace = times_ns.iter().zip(asked_ns).map(|(time_ns, asked_ns)| {
        asked += asked_ns;
        let before = done;
        done = asked.max(before + time_ns);
        done - before
    });
    pace.collect()
}

impl Mark {
    fn is_passed(&self) -> Result<bool, DriverError> {
        match self {
            Self::Host(_) => Ok(true),
            Self::Device(event) => event.query(),
        }
    }

    /// Returns the nanoseconds from this moment to `end`. Waits until a device has passed `end`.
    fn until(&self, end: &Self) -> Result<u64, DriverError> {
        match (self, end) {
            (Self::Host(began), Self::Host(end)) => Ok((*end - *began).as_nanos() as u64),
            (Self::Device(began), Self::Device(end)) => {
                end.synchronize()?;
                Ok((began.elapsed_us(end)? * 1e3) as u64)
            }
            // A span with one end on the host and the other on a device counts no time.
            _ => Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_device::memory::{DeviceMemory, MemoryConfig};
    use tenure_device::sim::{SimConfig, SimDriver};
    use tenure_device::{Call, Driver};

    use super::*;

    #[test]
    fn an_interval_is_not_over_before_the_host_has_asked_for_it() {
        assert_eq!(with_host_times(&[3, 5, 1], &[]), [3, 5, 1]);
        // The second and third intervals take the host's time. In the last, the host is ahead.
        assert_eq!(with_host_times(&[3, 5, 1, 9], &[1, 11, 2, 1]), [3, 9, 2, 9]);
    }

    #[test]
    fn a_device_waits_at_a_gate_until_it_is_dropped() {
        let day = Duration::from_secs(24 * 3600);
        let (_closed, wait) = gate(day);
        assert!(!wait(), "the host does not wait for itself");
        let (_closed, wait) = gate(Duration::ZERO);
        assert!(!thread::spawn(wait).join().unwrap());
        let (gate, wait) = gate(day);
        let waiting = thread::spawn(wait);
        drop(gate);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn a_device_waits_before_an_interval_if_it_has_begun_the_last_one() {
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        let memory = DeviceMemory::new(Arc::clone(&driver) as Arc<dyn Driver>, MemoryConfig::default()).unwrap();
        let stream = memory.streams().null();
        for (lead, waits) in [(Duration::ZERO, 0), (LEAD, 2)] {
            let mut clock = IntervalClock::with_lead(lead);
            let before = driver.calls(Some(Call::HostFunction));
            for begins in [false, true, false] {
                clock.begin(Some(&stream)).unwrap();
                clock.end(Some(&stream)).unwrap();
                if begins {
                    stream.synchronize().unwrap();
                }
            }
            assert_eq!(driver.calls(Some(Call::HostFunction)) - before, waits);
            assert_eq!(clock.finish().unwrap().len(), 3);
        }
    }

    #[test]
    fn a_pause_is_no_part_of_an_interval() {
        // Nor is it a part of the time that the host takes to ask for its work.
        for lead in [Duration::ZERO, Duration::from_secs(24 * 3600)] {
            let now = Arc::new(parking_lot::Mutex::new(Instant::now()));
            let time = Arc::clone(&now);
            let mut clock = IntervalClock { lead, ..IntervalClock::with_host_time(Arc::new(move || *time.lock())) };
            let pass = |ms| *now.lock() += Duration::from_millis(ms);
            clock.begin(None).unwrap();
            pass(1);
            clock.pause(None).unwrap();
            pass(100);
            clock.begin(None).unwrap();
            pass(2);
            clock.end(None).unwrap();
            assert_eq!(clock.finish().unwrap(), [3_000_000]);
        }
        // A host never waits for itself, which here would take a day.
        let mut clock = IntervalClock::with_lead(Duration::from_secs(24 * 3600));
        clock.begin(None).unwrap();
        clock.end(None).unwrap();
    }
}
