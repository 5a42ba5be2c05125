//! Replays: what a program did with its memory, done again on another allocator: on the simulated driver, or on a real
//! device's memory.

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
use tenure_plan::{Action, Trace};

pub use kind::AllocatorKind;
pub use measured::{Held, MeasuredCall, OnDevice};
pub use outcome::{DriverCalls, Outcome, before_history, recorded, verdict};
use player::Player;
use real::Real;
use simulated::Simulated;

use crate::Error;

/// How to replay a trace.
///
/// The device of [`run`](Self::run) is an H200 in software, or a larger one where the trace asks for more. It keeps time
/// by the trace: the virtual clock stands at an event's time when the event is replayed. That of
/// [`run_on`](Self::run_on) is whatever its driver shows, and goes through the trace as fast as it can.
///
/// - An `alloc` allocates; a `free_completed` frees.
/// - A run of `segment_free` or `segment_unmap` is the program's `empty_cache()`, and releases what is cached.
/// - After the last event the blocks still live are freed, in the order of the addresses that the allocator gave
///   them, and the streams complete. That is a pass; the next begins later, with whatever the allocator kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The allocator.
    pub allocator: AllocatorKind,
    /// How many times the trace is played, one after the other; at least once.
    pub repeat: u32,
    /// How long after a block's free the simulated device completes its work on the block, in µs of the trace. A real
    /// device has work of its own.
    pub lag_us: u64,
}

/// How far a replay is, after each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The pass, from 0.
    pub pass: u32,
    /// The event, from 0.
    pub event: usize,
    /// Bytes asked for and live.
    pub requested_bytes: u64,
    /// Bytes in live blocks.
    pub allocated_bytes: u64,
    /// Bytes of the device held.
    pub reserved_bytes: u64,
}

impl Replay {
    /// One pass on `allocator`, with a device that is never behind.
    pub fn new(allocator: AllocatorKind) -> Self {
        Self { allocator, repeat: 1, lag_us: 0 }
    }

    /// Replays `trace`.
    ///
    /// # Errors
    /// The event at which the allocator refused, or a setting of the trace that the allocator cannot have.
    pub fn run(&self, trace: &Trace) -> Result<Outcome, Error> {
        self.run_observed(trace, |_| ControlFlow::Continue(()))
    }

    /// [`run`](Self::run), and tells `observe` of every event that was replayed, which can stop it there. Its time is
    /// in no figure.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::Stopped`].
    pub fn run_observed(
        &self,
        trace: &Trace,
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let summary = trace.summary();
        let mut play = |script: Vec<_>| {
            let machine = Simulated::new(&summary, self.lag_us, script);
            Player::new(self, trace, &summary, Box::new(machine))?.play(&mut observe)
        };
        if self.allocator == AllocatorKind::Native && player::has_native_addresses(trace) {
            // Segments get the addresses that they had when the trace was recorded.
            let segments = trace.events().iter().filter(|event| event.action == Action::SegmentAlloc);
            let scripted = play(segments.map(|event| event.address).collect());
            // A recording that cannot be followed, such as one of graph captures or of a device that was full, may
            // give a segment the address of one that is still held here. Then the addresses are the driver's.
            if matches!(scripted, Ok(_) | Err(Error::Stopped { .. })) {
                return scripted;
            }
        }
        play(Vec::new())
    }

    /// Replays `trace` on a device, with real memory and real maps, and tells `observe` of every event, which can stop
    /// it there. Nothing is left on the device, whatever comes of it.
    ///
    /// The streams of the trace are streams of `driver`. Both ends of every block are written in the order of its
    /// stream, and those of one block in sixteen are read before its free. Every call of the allocator is timed, and
    /// the device is asked how much of its memory is in use: what others get or give back meanwhile shows in
    /// [`OnDevice`].
    ///
    /// # Errors
    /// As [`run_observed`](Self::run_observed); a call of the driver that failed; [`Error::Damaged`].
    pub fn run_on(
        &self,
        driver: &Arc<dyn Driver>,
        trace: &Trace,
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let summary = trace.summary();
        let machine = Real::new(&summary, Arc::clone(driver))?;
        Player::new(self, trace, &summary, Box::new(machine))?.play(&mut observe)
    }
}
