//! An engine on `io_uring`: one thread submits many requests to the kernel at once and handles their completions.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::{mem, thread};

use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::engine::{self, Direction, Engine, Request};
use super::staging::{DISK_BLOCK, StagingMemory};

/// The capacity of the submission queue. At most half as many requests, and the read that wakes the thread, are in the
/// kernel at once.
const DEPTH: u32 = 256;
/// The number (`user_data`) of the read that wakes the thread. Requests are numbered from 0.
const WAKE_NUMBER: u64 = u64::MAX;

/// An engine whose thread submits requests to `io_uring`.
pub(super) struct Ring {
    requests: Option<mpsc::Sender<Request>>,
    /// The event file descriptor that wakes the thread when it is written.
    wake: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    /// The kernel uses this memory as long as the ring exists.
    _memory: Arc<StagingMemory>,
}

/// A request that has been submitted to the kernel.
struct Submitted {
    request: Request,
    /// The bytes read or written so far.
    moved: usize,
}

/// The state of the engine's thread.
struct RingThread {
    ring: IoUring,
    requests: mpsc::Receiver<Request>,
    wake: Arc<OwnedFd>,
    /// The target of the kernel's reads from `wake`.
    woken: Box<u64>,
    /// Whether the kernel has a read from `wake`.
    has_wake_read: bool,
    /// The requests in the kernel, by number.
    submitted: HashMap<u64, Submitted>,
    /// The number of the next request.
    next_number: u64,
    /// Whether the chunks' memory is registered with the kernel.
    is_registered: bool,
}

impl Ring {
    /// Starts the engine, for requests whose chunks are part of `memory`.
    ///
    /// # Errors
    /// The system has no `io_uring`, or does not let this process use it.
    pub(super) fn start(memory: &Arc<StagingMemory>) -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if ![opcode::ReadFixed::CODE, opcode::WriteFixed::CODE, opcode::Read::CODE]
            .iter()
            .all(|code| probe.is_supported(*code))
        {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (start, bytes) = memory.range();
        let buffers = [libc::iovec { iov_base: start.cast(), iov_len: bytes }];
        // SAFETY: the memory outlives the ring: chunks are part of it, and requests have them.
        let is_registered = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (requests, queue) = mpsc::channel();
        let state = RingThread {
            ring,
            requests: queue,
            wake: Arc::clone(&wake),
            woken: Box::new(0),
            has_wake_read: false,
            submitted: HashMap::new(),
            next_number: 0,
            is_registered,
        };
        let thread = thread::Builder::new().name("tenure-disk".into()).spawn(move || state.run())?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread), _memory: Arc::clone(memory) })
    }

    /// Makes the thread look at the channel.
    fn wake(&self) {
        // If the write fails because the counter is full, the thread wakes all the same.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Engine for Ring {
    fn begin(&self, request: Request) -> Result<(), Box<Request>> {
        engine::send(&self.requests, request)?;
        self.wake();
        Ok(())
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        self.thread.take().into_iter().for_each(engine::join_unless_current);
    }
}

impl RingThread {
    /// Submits requests and handles completions until the channel is closed and all requests are done.
    fn run(mut self) {
        loop {
            let is_open = self.submit_queued();
            if is_open && !self.has_wake_read {
                self.submit_wake_read();
            }
            // The sender is dropped before the last wake, so by now the kernel has no request of this thread.
            if !is_open && self.submitted.is_empty() && !self.has_wake_read {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_temporary(&error) => thread::yield_now(),
                Err(error) => return self.fail_all(&error),
            }
            self.handle_completions();
        }
    }

    /// Submits the requests that wait in the channel. Returns `false` if the channel is closed.
    fn submit_queued(&mut self) -> bool {
        while self.submitted.len() < DEPTH as usize / 2 {
            match self.requests.try_recv() {
                Ok(request) => self.submit(Submitted { request, moved: 0 }),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Submits the rest of a request.
    fn submit(&mut self, submitted: Submitted) {
        let Submitted { request: Request { direction, file, offset, bytes, chunk, .. }, moved } = &submitted;
        let file = types::Fd(file.descriptor());
        let offset = offset + *moved as u64;
        let start = chunk.as_ptr().wrapping_add(*moved);
        // A chunk's length fits in 32 bits.
        let length = (bytes - moved) as u32;
        let entry = match (direction, self.is_registered) {
            (Direction::In, true) => opcode::ReadFixed::new(file, start, length, 0).offset(offset).build(),
            (Direction::In, false) => opcode::Read::new(file, start, length).offset(offset).build(),
            (Direction::Out, true) => opcode::WriteFixed::new(file, start, length, 0).offset(offset).build(),
            (Direction::Out, false) => opcode::Write::new(file, start, length).offset(offset).build(),
        };
        let number = self.next_number;
        self.next_number += 1;
        self.submitted.insert(number, submitted);
        self.push(&entry.user_data(number));
    }

    /// Submits a read that completes when another thread wakes this one.
    fn submit_wake_read(&mut self) {
        let entry = opcode::Read::new(types::Fd(self.wake.as_raw_fd()), (&raw mut *self.woken).cast(), 8).build();
        self.has_wake_read = true;
        self.push(&entry.user_data(WAKE_NUMBER));
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the file, the chunk and the target of the wake-up read are kept until the kernel is done with them.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // There are at most half as many requests at a time as the queue has room for.
        debug_assert!(pushed.is_ok());
    }

    /// Handles the completions that the kernel has posted.
    fn handle_completions(&mut self) {
        let done: Vec<(u64, i32)> = self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (number, result) in done {
            if number == WAKE_NUMBER {
                self.has_wake_read = false;
            } else if let Some(submitted) = self.submitted.remove(&number) {
                self.handle_completion(submitted, result);
            }
        }
    }

    /// Ends a request that is complete or has failed, or submits the rest of it.
    fn handle_completion(&mut self, mut submitted: Submitted, result: i32) {
        let Ok(moved) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            return if is_temporary(&error) { self.submit(submitted) } else { submitted.request.end(Err(error)) };
        };
        if submitted.moved + moved >= submitted.request.bytes {
            return submitted.request.end(Ok(()));
        }
        // Direct access continues at a whole block.
        let moved = moved / DISK_BLOCK * DISK_BLOCK;
        if moved == 0 {
            let is_read = submitted.request.direction == Direction::In;
            let kind = if is_read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
            return submitted.request.end(Err(kind.into()));
        }
        submitted.moved += moved;
        self.submit(submitted);
    }

    /// Ends all requests with an error because the ring itself failed. The kernel may still use their chunks.
    fn fail_all(self, error: &io::Error) {
        let Self { woken, submitted, requests, .. } = self;
        Box::leak(woken);
        let failure = || Err(io::Error::new(error.kind(), error.to_string()));
        for (_, Submitted { request: Request { chunk, done, .. }, .. }) in submitted {
            // The leaked chunk keeps the staging memory mapped.
            mem::forget(chunk);
            done(None, failure());
        }
        for request in requests {
            request.end(failure());
        }
    }
}

/// Returns whether the same call may succeed when it is repeated.
fn is_temporary(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | ResourceBusy | WouldBlock)
}
