use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::ShareError;
use super::listener::{Listener, default_socket};
use super::service::Service;
use super::store::Store;
use crate::{Clock, Driver};

/// How a [`MemoryDaemon`] serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Where it listens.
    pub socket: PathBuf,
    /// The pool's chunks, in bytes each, taken when the daemon starts; empty for no pool. A process maps a chunk for
    /// reading or for writing as a whole, and a mapping costs time for each chunk: few and large ones.
    pub pool: Vec<u64>,
    /// The most that leased chunks may come to, in bytes; `None`: what the device has.
    pub chunk_limit_bytes: Option<u64>,
    /// How long after its end a process's work on the device may still run, where the driver does not tell.
    pub grace: Duration,
    /// The user whose processes may connect. A user other than this process's own can be served by root only.
    pub uid: u32,
    /// The most connections at once.
    pub clients: u32,
    /// When there is no place for another, the connection that holds nothing and has been silent for longest, and for
    /// at least so long, is closed.
    pub idle: Duration,
    /// The clock that all of the daemon's time limits are measured by.
    pub clock: Clock,
}

impl Default for DaemonConfig {
    /// Device 0's [default socket](default_socket), no pool, any number of chunks, a grace of 2 s, this user, 256
    /// connections, idle after a minute, by the system's clock.
    fn default() -> Self {
        Self {
            socket: default_socket(0),
            pool: Vec::new(),
            chunk_limit_bytes: None,
            grace: Duration::from_secs(2),
            uid: rustix::process::getuid().as_raw(),
            clients: 256,
            idle: Duration::from_secs(60),
            clock: Clock::default(),
        }
    }
}

/// Owns memory of one device and leases it to other processes. Dropped, it stops.
///
/// It runs on one thread of its own, which waits for no client: a message is there whole or not at all, and a client
/// that does not take its answer is dropped.
pub struct MemoryDaemon {
    socket: PathBuf,
    /// Wakes the thread up, to end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryDaemon {
    /// Takes the pool and begins to serve.
    ///
    /// # Errors
    /// A setting makes no sense; the socket is served already or can not be made; the device has not enough memory.
    pub fn start(driver: Arc<dyn Driver>, config: DaemonConfig) -> Result<Self, ShareError> {
        // The socket first: a second daemon on it takes no memory.
        let listener = Listener::bind(&config.socket, config.uid)?;
        Self::spawn(listener, Store::new(driver, &config.pool)?, config)
    }

    /// Begins to serve `store` at `listener`, which is bound to `config`'s socket.
    pub(super) fn spawn(listener: Listener, store: Store, config: DaemonConfig) -> Result<Self, ShareError> {
        let system = |doing| {
            let path = config.socket.clone();
            move |reason| ShareError::Socket { path, doing, reason }
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|error| system("no event for stopping can be made")(error.into()))?);
        let (socket, failed) = (config.socket.clone(), system("no thread can be started"));
        let service = Service::new(listener, store, config, Arc::clone(&stop));
        let thread = thread::Builder::new().name("tenure-memory".into()).spawn(|| service.run()).map_err(failed)?;
        Ok(Self { socket, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it: the socket is removed, connections are closed, and its memory goes back to the device as soon as nobody
    /// maps it.
    pub fn stop(self) {}
}

impl Drop for MemoryDaemon {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A counter of 64 bits takes a one.
            let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
            // It has said why, if it panicked.
            let _ = thread.join();
        }
    }
}
