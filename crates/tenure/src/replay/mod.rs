//! Replays: what a program did with its memory, done again on another allocator over the simulated driver.

mod kind;
mod latency;
mod outcome;
mod player;

use tenure_plan::Trace;

pub use kind::AllocatorKind;
pub use outcome::{DriverCalls, Outcome, verdict};
use player::Player;

use crate::Error;

/// How to replay a trace.
///
/// The device is an H200 in software, or a larger one where the trace asks for more. It keeps time by the trace: the
/// virtual clock stands at an event's time when the event is replayed.
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
    /// How long after a block's free the device completes its work on the block, in µs of the trace.
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
        self.run_observed(trace, |_| {})
    }

    /// [`run`](Self::run), and tells `observe` of every event that was replayed. Its time is in no figure.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_observed(&self, trace: &Trace, mut observe: impl FnMut(Progress)) -> Result<Outcome, Error> {
        if self.allocator == AllocatorKind::Native && player::has_native_addresses(trace) {
            let scripted = Player::new(self, trace, true)?.play(&mut observe);
            // A recording that cannot be followed, such as one of graph captures or of a device that was full, may
            // give a segment the address of one that is still held here. Then the addresses are the driver's.
            if scripted.is_ok() {
                return scripted;
            }
        }
        Player::new(self, trace, false)?.play(&mut observe)
    }
}
