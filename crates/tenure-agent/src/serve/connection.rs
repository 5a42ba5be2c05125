//! A connection, used by both ends: each frame is received whole within its time, or not at all.

use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use serde::Serialize;
use tenure_core::Clock;
use tenure_ipc::wait;

use super::address::Stream;
use super::frame::{Frame, FrameError, Kind};

/// How often waiting checks the stop flag.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// The most reads from a closing connection before other connections get their turn.
const MAX_DISCARDS: usize = 64;

/// A connection on which no call waits longer than its time, or after the stop flag is set.
pub(super) struct Connection<'a> {
    stream: Stream,
    stop: &'a AtomicBool,
    clock: Clock,
    /// The time on `clock` at which reading gives up.
    deadline: Duration,
}

impl<'a> Connection<'a> {
    /// Wraps a stream whose writes wait at most `patience`.
    pub(super) fn new(stream: Stream, stop: &'a AtomicBool, patience: Duration, clock: Clock) -> io::Result<Self> {
        stream.set_write_timeout(patience)?;
        let deadline = clock.now();
        Ok(Self { stream, stop, clock, deadline })
    }

    /// Returns the next frame, which must arrive whole within `patience`. Returns `None` if the other end has ended the
    /// connection.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Option<Frame>, FrameError> {
        self.deadline = self.clock.now() + patience;
        Frame::read(&mut *self)
    }

    /// Sends a message as JSON.
    pub(super) fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), FrameError> {
        let body = serde_json::to_vec(message).map_err(io::Error::from)?;
        self.send_frame(&Frame { kind, body })
    }

    /// Sends a frame.
    pub(super) fn send_frame(&mut self, frame: &Frame) -> Result<(), FrameError> {
        frame.write(&mut self.stream)
    }

    /// Returns whether the stop flag is set.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the other end has ended the connection, or its side of it.
    pub(super) fn has_peer_closed(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        wait(&self.stream, PollFlags::RDHUP, Duration::ZERO).is_ok_and(|found| found.intersects(gone))
    }

    /// Closes the connection after the other end has had time to read the last frame. Closing it with unread data could
    /// discard that frame.
    pub(super) fn close(mut self, patience: Duration) {
        if self.begin_to_close(patience) {
            let mut unread = [0; 1 << 16];
            while self.read(&mut unread).is_ok_and(|count| count > 0) {}
        }
    }

    /// Ends this side, and gives the other end `patience` to end its own. Returns whether the connection was still
    /// open.
    pub(super) fn begin_to_close(&mut self, patience: Duration) -> bool {
        self.deadline = self.clock.now() + patience;
        self.stream.end_writing().is_ok()
    }

    /// Discards the received data, without waiting. Returns whether to go on: whether the other end has not closed the
    /// connection yet and has time left.
    pub(super) fn discard_received(&mut self) -> bool {
        let mut unread = [0; 1 << 16];
        for _ in 0..MAX_DISCARDS {
            match wait(&self.stream, PollFlags::IN, Duration::ZERO) {
                Ok(found) if found.is_empty() => return self.clock.now() < self.deadline,
                Ok(_) if self.stream.read(&mut unread).is_ok_and(|count| count > 0) => {}
                _ => return false,
            }
        }
        self.clock.now() < self.deadline
    }
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.deadline.saturating_sub(self.clock.now());
            if self.is_stopped() {
                return Err(io::Error::other("the agent ends"));
            }
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "nothing whole came in time"));
            }
            if !wait(&self.stream, PollFlags::IN, left.min(TICK))?.is_empty() {
                return self.stream.read(buffer);
            }
        }
    }
}
