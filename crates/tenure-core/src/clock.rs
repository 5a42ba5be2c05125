//! The clock of time limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// The clock by which time limits are measured: the system's, or one that a test sets.
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug, Default)]
enum ClockSource {
    #[default]
    System,
    /// The time in ns.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns a clock that stands still until it is [advanced](Self::advance). Its clones advance with it.
    pub fn manual() -> Self {
        Self(ClockSource::Manual(Arc::default()))
    }

    /// Advances a [manual](Self::manual) clock. Has no effect on the system's clock.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(now_ns) = &self.0 {
            now_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        }
    }

    /// Returns the time since a moment that is the same for all calls.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that tests replace")]
    pub fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        match &self.0 {
            ClockSource::System => START.elapsed(),
            ClockSource::Manual(now_ns) => Duration::from_nanos(now_ns.load(Ordering::SeqCst)),
        }
    }
}

/// Two clocks are equal if they are the same clock.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (ClockSource::System, ClockSource::System) => true,
            (ClockSource::Manual(one), ClockSource::Manual(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Clock {}
