//! The memory daemon: its settings, how it starts and how it stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_ipc::Listener;

use super::ShareError;
use super::listener::{default_socket, listen};
use super::server_thread::ServerThread;
use super::service::Service;
use super::store::Store;
use crate::{Clock, Driver};

/// Settings of a [`MemoryDaemon`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The path of the socket that the daemon listens on.
    pub socket: PathBuf,
    /// The sizes of the pool's chunks, in bytes, taken when the daemon starts; empty for no pool. A process maps a
    /// chunk as a whole, for reading or for writing. Each mapping costs time, so prefer a few large chunks.
    pub pool: Vec<u64>,
    /// The limit on the sum of all leased chunks, in bytes; `None`: as much as the device has.
    pub chunk_limit_bytes: Option<u64>,
    /// How long a process's work on the device may still run after the process has exited, where the driver does not
    /// tell.
    pub grace: Duration,
    /// The user whose processes may connect. Only root can serve a user other than this process's own.
    pub uid: u32,
    /// The limit on connections at one time.
    pub clients: u32,
    /// How long a connection must be silent before the daemon may close it to make place for another. It closes the
    /// connection that has been silent for longest among those that hold nothing.
    pub idle: Duration,
    /// The clock that measures all of the daemon's time limits.
    pub clock: Clock,
}

impl Default for DaemonConfig {
    /// Device 0's [default socket](default_socket), no pool, no limit on chunks, a grace of 2 s, this process's user,
    /// 256 connections, idle after a minute, measured by the system's clock.
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

/// The daemon that owns memory of one device and leases it to other processes. It stops when dropped.
///
/// It runs on one thread of its own. The thread waits for no client: a message arrives whole or not at all, and a
/// client that does not take its answer is disconnected.
pub struct MemoryDaemon {
    socket: PathBuf,
    _thread: ServerThread,
}

impl MemoryDaemon {
    /// Takes the pool's memory and begins to serve.
    ///
    /// # Errors
    /// A setting makes no sense; the socket is served already or cannot be made; the device does not have enough
    /// memory.
    pub fn start(driver: Arc<dyn Driver>, config: DaemonConfig) -> Result<Self, ShareError> {
        // Bind the socket first: a second daemon on the same socket then takes no memory.
        let listener = listen(&config.socket, config.uid)?;
        Self::spawn(listener, Store::new(driver, &config.pool)?, config)
    }

    /// Begins to serve `store` at `listener`, which is bound to `config`'s socket.
    pub(super) fn spawn(listener: Listener, store: Store, config: DaemonConfig) -> Result<Self, ShareError> {
        let socket = config.socket.clone();
        let service = Service::new(listener, store, config);
        match ServerThread::start("tenure-memory", |stop| service.run(stop)) {
            Ok(thread) => Ok(Self { socket, _thread: thread }),
            Err(reason) => Err(ShareError::Socket { path: socket, doing: "no thread can be started", reason }),
        }
    }

    /// Returns the path of the socket that the daemon listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops the daemon: it removes the socket and closes the connections. The memory goes back to the device as soon
    /// as no process maps it.
    pub fn stop(self) {}
}
