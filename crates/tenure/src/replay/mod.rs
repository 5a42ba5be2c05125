//! Replays: repeat a program's recorded allocations and frees on another allocator, on the simulated driver or on a
//! real device's memory.

mod kind;
mod latency;
mod machine;
mod measured;
mod metered;
mod outcome;
mod player;
mod real;
mod simulated;

use std::ops::ControlFlow;
use std::sync::Arc;

use tenure_device::Driver;
use tenure_plan::{Trace, TraceAction};

pub use kind::AllocatorKind;
pub use measured::{HeldMemory, MeasuredCall, OnDevice};
pub use outcome::{DriverCalls, ReplayOutcome, before_history, recorded, verdict};
use player::Player;
pub use player::ReplayProgress;
use real::RealMachine;
use simulated::SimulatedMachine;

use crate::Error;

/// Settings of a replay.
///
/// [`run`](Self::run) uses a simulated H200, or a larger device if the trace needs more. Its virtual clock follows the
/// trace: it stands at an event's time when the event is replayed. [`run_on`](Self::run_on) uses the device of its
/// driver, and goes through the trace as fast as it can.
///
/// - An `alloc` allocates; a `free_completed` frees.
/// - A run of `segment_free` or `segment_unmap` is the program's `empty_cache()`, and releases the allocator's cache.
/// - After the last event the blocks that are still live are freed, in the order of the addresses that the allocator
///   gave them, and the streams complete. That is a pass; the next begins later, with the memory that the allocator
///   kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The allocator.
    pub allocator: AllocatorKind,
    /// The number of passes, one after the other; at least one.
    pub repeat: u32,
    /// The time after a block's free at which the simulated device completes its work on the block, in µs of the trace.
    /// A real device has its own work.
    pub lag_us: u64,
}

impl Replay {
    /// Makes a replay of one pass on `allocator`, with a device that never lags.
    pub fn new(allocator: AllocatorKind) -> Self {
        Self { allocator, repeat: 1, lag_us: 0 }
    }

    /// Replays `trace`.
    ///
    /// # Errors
    /// The event at which the allocator returned an error, or a setting of the trace that the allocator does not
    /// support.
    pub fn run(&self, trace: &Trace) -> Result<ReplayOutcome, Error> {
        self.run_observed(trace, |_| ControlFlow::Continue(()))
    }

    /// Replays `trace` like [`run`](Self::run), and calls `observe` after every event; it can stop the replay. The time
    /// that it takes is not counted.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), and [`Error::Stopped`].
    pub fn run_observed(
        &self,
        trace: &Trace,
        mut observe: impl FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplayOutcome, Error> {
        let summary = trace.summary();
        let mut play = |script: Vec<_>| {
            let machine = SimulatedMachine::new(&summary, self.lag_us, script);
            Player::new(self.allocator, self.repeat, trace, &summary, Box::new(machine))?.play(&mut observe)
        };
        if self.allocator == AllocatorKind::Native && player::has_native_addresses(trace) {
            // Segments get the addresses that they had when the trace was recorded.
            let segments = trace.events().iter().filter(|event| event.action == TraceAction::SegmentAlloc);
            let scripted = play(segments.map(|event| event.address).collect());
            // Some recordings cannot be followed, such as those of graph captures or of a full device: they give a
            // segment the address of one that is still held here. Then the driver chooses the addresses.
            if matches!(scripted, Ok(_) | Err(Error::Stopped { .. })) {
                return scripted;
            }
        }
        play(Vec::new())
    }

    /// Replays `trace` on a device, with real memory and mappings, and calls `observe` after every event; it can stop
    /// the replay. Nothing is left on the device, even after an error.
    ///
    /// The streams of the trace are streams of `driver`. Both ends of every block are written in the order of its
    /// stream, and the ends of one block in sixteen are read before its free. Every call of the allocator is timed. The
    /// replay asks the device how much of its memory is in use, so other processes' allocations and frees in the
    /// meantime show in [`OnDevice`].
    ///
    /// # Errors
    /// The errors of [`run_observed`](Self::run_observed), a failed driver call, and [`Error::Damaged`].
    pub fn run_on(
        &self,
        driver: &Arc<dyn Driver>,
        trace: &Trace,
        mut observe: impl FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplayOutcome, Error> {
        let summary = trace.summary();
        let machine = RealMachine::new(&summary, Arc::clone(driver))?;
        Player::new(self.allocator, self.repeat, trace, &summary, Box::new(machine))?.play(&mut observe)
    }
}
