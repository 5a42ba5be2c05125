//! The interface of engines, which read and write files, and an engine of threads.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

use super::file::ExtentFile;
use super::staging::Chunk;

/// The direction of a transfer: into memory or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// A part of a file to read into a chunk or to write from it.
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) file: Arc<ExtentFile>,
    pub(super) offset: u64,
    /// The size in bytes, a multiple of [`DISK_BLOCK`](super::DISK_BLOCK).
    pub(super) bytes: usize,
    pub(super) chunk: Chunk,
    /// Called once, on a thread of the engine, which it must not block for long.
    pub(super) done: Done,
}

impl Request {
    /// Returns the chunk and the result to the caller of [`Engine::begin`].
    pub(super) fn end(self, result: io::Result<()>) {
        (self.done)(Some(self.chunk), result);
    }
}

/// The function to call at the end of a request. It gets the chunk back, or `None` if the kernel may still use it.
pub(super) type Done = Box<dyn FnOnce(Option<Chunk>, io::Result<()>) + Send>;

/// An engine: carries out requests, several at once, in any order. Dropping it waits for all of them.
pub(super) trait Engine: Send + Sync {
    /// Begins to carry out a request.
    ///
    /// # Errors
    /// Returns the request if the engine has stopped.
    fn begin(&self, request: Request) -> Result<(), Box<Request>>;

    /// Returns the engine's name for reports.
    fn name(&self) -> &'static str;
}

/// An engine of threads that each carry out one request after the other, for systems without `io_uring`.
pub(super) struct ThreadEngine {
    requests: Option<mpsc::Sender<Request>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl ThreadEngine {
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let (requests, queue) = mpsc::channel::<Request>();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..count)
            .map(|number| {
                let queue = Arc::clone(&queue);
                thread::Builder::new().name(format!("tenure-disk-{number}")).spawn(move || carry_out_all(&queue))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { requests: Some(requests), threads })
    }
}

/// Carries out the requests of a queue until its sender is dropped.
fn carry_out_all(queue: &Mutex<mpsc::Receiver<Request>>) {
    loop {
        // Unlocked again when this statement ends, so that the other threads take requests meanwhile.
        let request = queue.lock().recv();
        let Ok(request) = request else { return };
        carry_out(request);
    }
}

/// Reads or writes with a system call, and ends the request.
pub(super) fn carry_out(mut request: Request) {
    let Request { direction, file, offset, bytes, chunk, .. } = &mut request;
    let carried_out = match direction {
        Direction::In => file.file.read_exact_at(&mut chunk.bytes_mut()[..*bytes], *offset),
        Direction::Out => file.file.write_all_at(&chunk.bytes()[..*bytes], *offset),
    };
    request.end(carried_out);
}

impl Engine for ThreadEngine {
    fn begin(&self, request: Request) -> Result<(), Box<Request>> {
        send(&self.requests, request)
    }

    fn name(&self) -> &'static str {
        "pread and pwrite"
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.requests = None;
        self.threads.drain(..).for_each(join_unless_current);
    }
}

/// Sends a request to the engine's threads. Returns it if they have ended.
pub(super) fn send(requests: &Option<mpsc::Sender<Request>>, request: Request) -> Result<(), Box<Request>> {
    match requests {
        Some(requests) => requests.send(request).map_err(|refused| Box::new(refused.0)),
        None => Err(Box::new(request)),
    }
}

/// Waits until a thread has ended, unless it is the current one: a request that ends on an engine's thread may drop the
/// engine.
pub(crate) fn join_unless_current(thread: thread::JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        // A panic has already been printed.
        let _ = thread.join();
    }
}
