//! The thread that serves a socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// A thread that serves until this is dropped.
pub(super) struct ServerThread {
    /// The process that has the thread: a forked child does not.
    pub(super) pid: u32,
    /// Wakes up the thread so that it ends.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts a thread that runs `serve`, which is to return when the descriptor that it gets becomes readable.
    pub(super) fn start(name: &str, serve: impl FnOnce(&OwnedFd) + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name(name.into()).spawn(move || serve(&stopped))?;
        Ok(Self { pid: std::process::id(), stop, thread: Some(thread) })
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && self.pid == std::process::id()
        {
            // The counter has 64 bits, so this write cannot block.
            let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
            // A thread that panicked has printed its reason already.
            let _ = thread.join();
        }
    }
}
