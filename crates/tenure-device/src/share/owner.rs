//! The owner's side of a shared cache: allocates the memory and serves it to workers.

use std::path::Path;
use std::sync::Arc;

use super::listener::listen;
use super::store::Store;
use super::{DaemonConfig, MemoryDaemon, ShareError, SharedCacheConfig};
use crate::Driver;

/// A shared cache in the process that owns its memory. After this is dropped, the memory goes back to the device as
/// soon as no process maps it.
pub struct SharedCache {
    memory: CacheMemory,
}

/// The memory of a shared cache.
enum CacheMemory {
    /// It is not sent yet.
    Kept(Store),
    /// A daemon serves it.
    Sent(MemoryDaemon),
    /// The daemon could not be started, and the memory went back to the device.
    Lost,
}

impl SharedCache {
    /// Takes the memory from the device.
    ///
    /// # Errors
    /// The sizes do not fit together, or are no multiples of the device's granularity; the device does not have enough
    /// memory.
    pub fn allocate_shared_cache(driver: Arc<dyn Driver>, config: &SharedCacheConfig) -> Result<Self, ShareError> {
        Ok(Self { memory: CacheMemory::Kept(Store::new(driver, &config.chunks()?)?) })
    }

    /// Serves the memory at `config`'s socket, to all processes that connect now or later. The pool that `config`
    /// describes is not used. One call is enough for all workers: a later call with the same socket does nothing.
    ///
    /// # Errors
    /// The socket is served already, or cannot be made: another call can then serve the cache at another socket. The
    /// cache is already sent at another socket.
    pub fn send_shared_cache(&mut self, config: DaemonConfig) -> Result<(), ShareError> {
        if let Some(socket) = self.socket() {
            let same = socket == config.socket;
            return if same { Ok(()) } else { Err(ShareError::AlreadySent { socket: socket.into() }) };
        }
        let listener = listen(&config.socket, config.uid)?;
        let CacheMemory::Kept(store) = std::mem::replace(&mut self.memory, CacheMemory::Lost) else {
            return Err(ShareError::NoPool { socket: config.socket });
        };
        self.memory = CacheMemory::Sent(MemoryDaemon::spawn(listener, store, config)?);
        Ok(())
    }

    /// Returns the socket at which the cache is sent, if it is.
    pub fn socket(&self) -> Option<&Path> {
        match &self.memory {
            CacheMemory::Sent(daemon) => Some(daemon.socket()),
            CacheMemory::Kept(_) | CacheMemory::Lost => None,
        }
    }
}
