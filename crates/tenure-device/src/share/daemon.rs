//! The memory daemon: how it starts and how it stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_ipc::Listener;

use super::ShareError;
use super::config::DaemonConfig;
use super::listener::listen;
use super::server_thread::ServerThread;
use super::service::Service;
use super::store::Store;
use crate::Driver;

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
