//! An engine on `io_uring`: one thread hands many requests to the kernel at once and collects their results.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::{mem, thread};

use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::engine::{self, Direction, Engine, Request};
use super::staging::{DISK_BLOCK, StagingMemory};

/// The capacity of the submission queue: requests in the kernel at once, including the read that wakes the thread.
const DEPTH: u32 = 256;
/// The number of the read that wakes the thread. Requests are numbered from 0.
const WAKE: u64 = u64::MAX;

/// An engine whose thread hands requests to `io_uring`.
pub(super) struct Ring {
    requests: Option<mpsc::Sender<Request>>,
    wake: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    /// The kernel uses this memory as long as the ring exists.
    _memory: Arc<StagingMemory>,
}

/// A request that the kernel has.
struct Begun {
    request: Request,
    /// Bytes that are done.
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
    is_waiting: bool,
    begun: HashMap<u64, Begun>,
    next: u64,
    /// Whether the chunks' memory is registered with the kernel.
    is_registered: bool,
}

impl Ring {
    /// Starts a ring for chunks of `memory`.
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
            is_waiting: false,
            begun: HashMap::new(),
            next: 0,
            is_registered,
        };
        let thread = thread::Builder::new().name("tenure-disk".into()).spawn(move || state.run())?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread), _memory: Arc::clone(memory) })
    }

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
        self.thread.take().into_iter().for_each(engine::end);
    }
}

impl RingThread {
    fn run(mut self) {
        loop {
            let is_open = self.take();
            if is_open && !self.is_waiting {
                self.wait_for_wake();
            }
            // The sender is dropped before the last wake, so by now the kernel has no request of this thread.
            if !is_open && self.begun.is_empty() && !self.is_waiting {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => thread::yield_now(),
                Err(error) => return self.give_up(&error),
            }
            self.finish();
        }
    }

    /// Begins the requests that have come. Returns whether more may come.
    fn take(&mut self) -> bool {
        while self.begun.len() < DEPTH as usize / 2 {
            match self.requests.try_recv() {
                Ok(request) => self.begin(Begun { request, moved: 0 }),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    fn begin(&mut self, begun: Begun) {
        let Begun { request: Request { direction, file, offset, bytes, chunk, .. }, moved } = &begun;
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
        let number = self.next;
        self.next += 1;
        self.begun.insert(number, begun);
        self.push(&entry.user_data(number));
    }

    fn wait_for_wake(&mut self) {
        let entry = opcode::Read::new(types::Fd(self.wake.as_raw_fd()), (&raw mut *self.woken).cast(), 8).build();
        self.is_waiting = true;
        self.push(&entry.user_data(WAKE));
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the file, the chunk and the target of the wake-up read are kept until the kernel is done with them.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // At most half as many requests are begun as the queue has room for.
        debug_assert!(pushed.is_ok());
    }

    /// Handles completed requests.
    fn finish(&mut self) {
        let done: Vec<(u64, i32)> = self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (number, result) in done {
            if number == WAKE {
                self.is_waiting = false;
            } else if let Some(begun) = self.begun.remove(&number) {
                self.go_on(begun, result);
            }
        }
    }

    fn go_on(&mut self, mut begun: Begun, result: i32) {
        let Ok(moved) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            return if is_passing(&error) { self.begin(begun) } else { begun.request.end(Err(error)) };
        };
        if begun.moved + moved >= begun.request.bytes {
            return begun.request.end(Ok(()));
        }
        // Direct access continues at a whole block.
        let moved = moved / DISK_BLOCK * DISK_BLOCK;
        if moved == 0 {
            let is_read = begun.request.direction == Direction::In;
            let kind = if is_read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
            return begun.request.end(Err(kind.into()));
        }
        begun.moved += moved;
        self.begin(begun);
    }

    /// Ends all requests with an error because the ring itself failed. The kernel may still use their chunks.
    fn give_up(self, error: &io::Error) {
        let Self { woken, begun, requests, .. } = self;
        Box::leak(woken);
        let again = || Err(io::Error::new(error.kind(), error.to_string()));
        for (_, Begun { request: Request { chunk, done, .. }, .. }) in begun {
            // Its memory stays mapped.
            mem::forget(chunk);
            done(None, again());
        }
        for request in requests {
            request.end(again());
        }
    }
}

/// Returns whether the same call may succeed on the next try.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | ResourceBusy | WouldBlock)
}
