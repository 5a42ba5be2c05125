//! The niceness of processes that compute: one whose batches take long yields the processors to the others.
//!
//! With more computing processes than processors, a model whose batches take milliseconds would wait for a turn at each
//! of its messages. So a process gets a higher niceness as soon as a batch has computed for long. Only a privileged
//! process can lower its niceness again. So a worker is replaced, and Python computes on another thread, when the model's
//! batches are short again.

use std::fs;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, getpriority_process, setpriority_process};

/// A batch is long if it still computes after this time, and then takes as much processor time again. Waiting is not
/// computing, so a batch that had to wait for a processor is not long for that.
const LONG: Duration = Duration::from_millis(50);

/// The number of short batches in a row after which a process may have its normal niceness again.
const SHORT_IN_A_ROW: u32 = 16;

/// The number by which niceness is raised: the system gives such a thread a tenth of the time of one that competes.
const RAISE: i32 = 10;

/// The highest niceness.
const HIGHEST: i32 = 19;

/// The niceness of a process that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Niceness {
    #[default]
    Normal,
    Raised {
        /// The number of short batches since the last long one.
        short_batches: u32,
    },
}

/// The processor time that a running batch was seen to use.
#[derive(Debug)]
pub(crate) struct BatchMeter {
    next_look: Instant,
    state: MeterState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MeterState {
    /// It has not run for long enough to be looked at.
    New,
    /// Its process had used this much processor time at the first look.
    Seen(Duration),
    Long,
}

impl Niceness {
    /// The niceness of a process from the moment that a batch is found to be long.
    pub(crate) const RAISED: Self = Self::Raised { short_batches: 0 };

    pub(crate) fn is_raised(self) -> bool {
        self != Self::Normal
    }

    /// Returns whether niceness is raised without need: the last batches were short.
    pub(crate) fn is_raised_needlessly(self) -> bool {
        matches!(self, Self::Raised { short_batches: SHORT_IN_A_ROW.. })
    }

    /// Records a batch that is over: niceness was raised during long ones.
    pub(crate) fn after(&mut self, batch: &BatchMeter) {
        if let Self::Raised { short_batches } = self {
            *short_batches = if batch.is_long() { 0 } else { *short_batches + 1 };
        }
    }
}

impl BatchMeter {
    pub(crate) fn new(begun: Instant) -> Self {
        Self { next_look: begun + LONG, state: MeterState::New }
    }

    /// Returns when to look at the batch next. `None` if it is known to be long.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (!self.is_long()).then_some(self.next_look)
    }

    /// Looks at the batch at the time `now`, when its process has used `processor_time` since it started. Returns whether
    /// this look finds the batch long.
    pub(crate) fn look(&mut self, now: Instant, processor_time: Duration) -> bool {
        self.state = match self.state {
            MeterState::New => MeterState::Seen(processor_time),
            MeterState::Seen(before) if processor_time.saturating_sub(before) < LONG => MeterState::Seen(before),
            MeterState::Seen(_) | MeterState::Long => MeterState::Long,
        };
        self.next_look = now + LONG;
        self.is_long()
    }

    fn is_long(&self) -> bool {
        self.state == MeterState::Long
    }
}

/// Returns the processor time that all threads of a process have used. A process that is gone has used none.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field, the program's name, may contain any character.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 =
        fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the niceness of a thread that yields to this program's.
pub(crate) fn raised() -> i32 {
    let normal = getpriority_process(Some(rustix::process::getpid())).unwrap_or(0);
    (normal + RAISE).min(HIGHEST)
}

/// Raises the niceness of all threads of a process, which later threads inherit.
pub(crate) fn raise(pid: u32) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        raise_thread(number.and_then(Pid::from_raw));
    }
}

/// Raises the niceness of this thread for the rest of its life: its work must not hold up what takes a short time.
pub(crate) fn raise_this_thread() {
    raise_thread(None);
}

/// Raises the niceness of a thread, or of this one. If that fails, it has ended.
fn raise_thread(thread: Option<Pid>) {
    let _ = setpriority_process(thread, raised());
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    #[test]
    fn a_batch_is_long_once_it_has_computed_for_long() {
        let origin = Instant::now();
        let mut meter = BatchMeter::new(origin);
        assert_eq!(meter.next_look(), Some(origin + STEP));
        // It has waited for a processor until now.
        assert!(!meter.look(origin + STEP, 7 * STEP));
        assert!(!meter.look(origin + 2 * STEP, 7 * STEP + STEP / 2));
        assert_eq!(meter.next_look(), Some(origin + 3 * STEP));
        assert!(meter.look(origin + 3 * STEP, 8 * STEP));
        assert_eq!(meter.next_look(), None);
    }

    #[test]
    fn niceness_is_raised_until_enough_batches_in_a_row_were_short() {
        let origin = Instant::now();
        let short = BatchMeter::new(origin);
        let mut long = BatchMeter::new(origin);
        assert!(!long.look(origin + STEP, Duration::ZERO) && long.look(origin + 2 * STEP, STEP));
        let mut niceness = Niceness::default();
        niceness.after(&short);
        assert_eq!(niceness, Niceness::Normal);
        for batch in [&short, &long] {
            niceness = Niceness::RAISED;
            (1..SHORT_IN_A_ROW).for_each(|_| niceness.after(&short));
            assert!(!niceness.is_raised_needlessly());
            niceness.after(batch);
            assert_eq!(niceness.is_raised_needlessly(), !batch.is_long());
        }
    }

    #[test]
    fn a_process_that_computes_uses_processor_time() {
        let pid = process::id();
        let before = processor_time(pid);
        let mut rounds = 0_u64;
        while processor_time(pid) == before {
            rounds += 1;
            assert!(rounds < 10_000_000, "no processor time is seen");
        }
        assert_eq!(processor_time(u32::MAX), Duration::ZERO);
    }
}
