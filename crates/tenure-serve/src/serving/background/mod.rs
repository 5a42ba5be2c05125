//! Programs in the background of a server, such as training, which run while there are no requests.
//!
//! The programs connect to a socket. When no request has come for a while, they get the device. When a request comes,
//! each program is sent the line `yield`; the request waits until all have answered `yielded`, but at most 50 ms. The
//! only other line that they are sent is `run`. A program that has just connected is sent one of the two at once, and
//! may run until then.

mod programs;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

pub(super) use self::programs::Programs;
use super::core::{Core, CoreState};

/// The time without an event after which programs run.
const QUIET: Duration = Duration::from_millis(20);
/// The longest time that a request waits until programs yield.
const PATIENCE: Duration = Duration::from_millis(50);

impl Core {
    /// Lets programs run while there are no requests, until the server ends.
    pub(super) fn schedule_background(&self, programs: &Programs) {
        let mut state = self.state.lock();
        while !state.is_ending {
            if programs.is_empty() {
                self.background.wait(&mut state);
                continue;
            }
            let quiet = self.now().saturating_sub(state.last_event);
            if quiet >= QUIET && self.begin_background(&mut state) {
                self.run_background(&mut state, programs);
            } else {
                // The devices may compute for longer than this: then it tries again.
                let left = QUIET.checked_sub(quiet).filter(|left| !left.is_zero()).unwrap_or(QUIET);
                self.background.wait_for(&mut state, left);
            }
        }
    }

    /// Takes all devices for the programs, if there are no requests. Returns whether it did.
    fn begin_background(&self, state: &mut CoreState) -> bool {
        let begun =
            self.devices.iter().take_while(|device| state.requests.scheduler.begin_background(device.id)).count();
        state.is_in_background = begun == self.devices.len();
        if !state.is_in_background {
            self.devices[..begun].iter().for_each(|device| state.requests.scheduler.end_background(device.id));
        }
        state.is_in_background
    }

    /// Returns whether background programs have the devices and a request needs one of them.
    pub(super) fn must_yield(&self, state: &CoreState, now: Duration) -> bool {
        state.is_in_background && self.devices.iter().any(|device| state.requests.scheduler.must_yield(device.id, now))
    }

    /// Lets programs run until a request comes.
    fn run_background(&self, state: &mut MutexGuard<'_, CoreState>, programs: &Programs) {
        let metrics = &self.metrics.background;
        metrics.begun();
        programs.run();
        while !state.is_ending && !programs.is_empty() && !self.must_yield(state, self.now()) {
            self.background.wait(state);
        }
        // There is no request if the programs have left by themselves.
        let arrived = state.requests.first_arrival();
        let have_yielded = MutexGuard::unlocked(state, || programs.yield_now(PATIENCE));
        metrics.ended(arrived.map(|arrived| arrived.elapsed()), have_yielded);
        state.is_in_background = false;
        self.devices.iter().for_each(|device| state.requests.scheduler.end_background(device.id));
        self.advance(state);
    }
}

/// Accepts programs until the server ends.
pub(super) fn accept(core: &Arc<Core>, programs: &Arc<Programs>) {
    let connected = Arc::clone(core);
    // The lock ensures that the scheduling thread is not between its check and its wait.
    programs.accept(move || {
        let _state = connected.state.lock();
        connected.background.notify_all();
    });
}
