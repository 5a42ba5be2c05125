//! Failures that tests inject into the simulated device.

use crate::Call;

/// A failure for a test: a call that changes nothing and reports an error.
///
/// `cuMemAlloc` and `cuMemCreate` fail with [`OutOfMemory`](crate::ErrorKind::OutOfMemory), as their callers must
/// expect; other calls with [`Injected`](crate::ErrorKind::Injected).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    call: Option<Call>,
    /// The number of matching calls up to the one that fails, including that one.
    countdown: u64,
    /// Whether all later matching calls fail too.
    lasting: bool,
}

impl Failure {
    /// Makes the `n`-th call of any kind from now on fail, once. The next call is the first.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn of_any(n: u64) -> Self {
        assert!(n > 0, "calls are counted from 1");
        Self { call: None, countdown: n, lasting: false }
    }

    /// Makes the `n`-th `call` from now on fail, once. The next one is the first.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn of(call: Call, n: u64) -> Self {
        Self { call: Some(call), ..Self::of_any(n) }
    }

    /// Returns the same failure, after which every matching call fails too.
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self }
    }
}

/// Counts of the calls made so far, and the planned failures.
pub(super) struct Failures {
    /// The number of calls, by kind.
    made: [u64; Call::COUNT],
    planned: Vec<Failure>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { made: [0; Call::COUNT], planned: Vec::new() }
    }
}

impl Failures {
    pub(super) fn plan(&mut self, failure: Failure) {
        self.planned.push(failure);
    }

    pub(super) fn clear(&mut self) {
        self.planned.clear();
    }

    /// Returns the number of calls made so far: of `call`, or of all kinds.
    pub(super) fn made(&self, call: Option<Call>) -> u64 {
        call.map_or_else(|| self.made.iter().sum(), |call| self.made[call as usize])
    }

    /// Counts a call. Returns whether it fails.
    pub(super) fn count_call(&mut self, call: Call) -> bool {
        self.made[call as usize] += 1;
        if self.planned.is_empty() {
            return false;
        }
        let mut fails = false;
        self.planned.retain_mut(|failure| {
            if failure.call.is_some_and(|only| only != call) {
                return true;
            }
            failure.countdown = failure.countdown.saturating_sub(1);
            let now = failure.countdown == 0;
            fails |= now;
            !now || failure.lasting
        });
        fails
    }
}
