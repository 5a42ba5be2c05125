//! A connection as both ends see it: frames that come in time or not at all.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use tenure_core::Clock;

use super::address::Stream;
use super::frame::{Frame, FrameError, Kind};

/// How often it is looked whether to stop.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Reads of a connection that is closing, before others have their turn.
const UNREAD_AT_ONCE: usize = 64;

/// Nothing waits for longer than it may, or after it was told to stop.
pub(super) struct Connection<'a> {
    stream: Stream,
    stop: &'a AtomicBool,
    clock: Clock,
    until: Duration,
}

impl<'a> Connection<'a> {
    /// Writes wait for so long at most.
    pub(super) fn new(stream: Stream, stop: &'a AtomicBool, patience: Duration, clock: Clock) -> io::Result<Self> {
        stream.set_write_timeout(patience)?;
        let until = clock.now();
        Ok(Self { stream, stop, clock, until })
    }

    /// The next frame, which must be there whole in time; none if the other end has ended the connection.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Option<Frame>, FrameError> {
        self.until = self.clock.now() + patience;
        Frame::read(&mut *self)
    }

    pub(super) fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), FrameError> {
        let body = serde_json::to_vec(message).map_err(io::Error::from)?;
        self.send_frame(&Frame { kind, body })
    }

    pub(super) fn send_frame(&mut self, frame: &Frame) -> Result<(), FrameError> {
        frame.write(&mut self.stream)
    }

    /// Whether it was told to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the other end has ended the connection, or its side of it.
    pub(super) fn is_gone(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        wait(&self.stream, PollFlags::RDHUP, Duration::ZERO).is_ok_and(|found| found.intersects(gone))
    }

    /// Ends it, when the other end has had time to take what was said last: what is closed with something unread may take
    /// that along.
    pub(super) fn close(mut self, patience: Duration) {
        if self.begin_to_close(patience) {
            let mut unread = [0; 1 << 16];
            while self.read(&mut unread).is_ok_and(|count| count > 0) {}
        }
    }

    /// Says nothing more, and leaves the other end so much time to end it. Whether it has not ended already.
    pub(super) fn begin_to_close(&mut self, patience: Duration) -> bool {
        self.until = self.clock.now() + patience;
        self.stream.end_writing().is_ok()
    }

    /// Reads away what has come since, without waiting. Whether the other end may still be reading, and has time left.
    pub(super) fn is_closing(&mut self) -> bool {
        let mut unread = [0; 1 << 16];
        for _ in 0..UNREAD_AT_ONCE {
            match wait(&self.stream, PollFlags::IN, Duration::ZERO) {
                Ok(found) if found.is_empty() => return self.clock.now() < self.until,
                Ok(_) if self.stream.read(&mut unread).is_ok_and(|count| count > 0) => {}
                _ => return false,
            }
        }
        self.clock.now() < self.until
    }
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_sub(self.clock.now());
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

/// What of `wanted` happens within `timeout`, and hang-ups.
pub(super) fn wait(descriptor: impl AsFd, wanted: PollFlags, timeout: Duration) -> Result<PollFlags, Errno> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut polled = [PollFd::new(&descriptor, wanted)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error),
    }
}
