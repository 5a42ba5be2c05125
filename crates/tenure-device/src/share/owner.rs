//! The owner's side of a shared cache: allocates the memory and serves it to workers.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::listener::listen;
use super::store::Store;
use super::{DaemonConfig, MemoryDaemon, ShareError};
use crate::Driver;

/// Sizes of a shared cache, in bytes.
///
/// Parameters come first, then the memory for computation, then the rest. Each part is a chunk of its own, so that a
/// worker that may write one part cannot write another by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedCacheConfig {
    /// The size of the whole cache, in bytes.
    pub pool_bytes: u64,
    /// The size of the range for parameters, in bytes.
    pub parameter_bytes: u64,
    /// The size of the range for computation, in bytes.
    pub computation_bytes: u64,
}

impl Default for SharedCacheConfig {
    /// PipeSwitch's sizes: 1 GiB for parameters, 11 GiB for computation.
    fn default() -> Self {
        Self { pool_bytes: 12 << 30, parameter_bytes: 1 << 30, computation_bytes: 11 << 30 }
    }
}

impl SharedCacheConfig {
    /// Returns the chunks of a pool of these sizes. A worker can tell from them how the pool is divided.
    ///
    /// # Errors
    /// The two ranges are larger than the whole, or one of the two has size 0.
    pub fn chunks(&self) -> Result<Vec<u64>, ShareError> {
        for (setting, bytes) in
            [("parameter_bytes", self.parameter_bytes), ("computation_bytes", self.computation_bytes)]
        {
            if bytes == 0 {
                let expected = "more than 0: a cache has a range for both".to_owned();
                return Err(ShareError::InvalidSetting { setting, value: bytes.to_string(), expected });
            }
        }
        let chunks = [self.parameter_bytes, self.computation_bytes, self.rest_bytes()?];
        Ok(chunks.into_iter().filter(|&bytes| bytes > 0).collect())
    }

    /// Checks that the parameters end where a chunk ends. A device protects whole chunks: if one chunk held parameters
    /// and a part of the range for computation, a worker that may write that range could also write parameters.
    pub(super) fn check_border(&self, chunks: &[u64]) -> Result<(), ShareError> {
        let mut ends = chunks.iter().scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        if ends.any(|end| end == self.parameter_bytes) {
            return Ok(());
        }
        let parameters = self.parameter_bytes;
        let others = self.pool_bytes - self.parameter_bytes;
        let expected = format!(
            "one of the daemon's chunks would hold parameters and memory that others write: serve them as chunks of their \
             own, with `tenure memory daemon --chunks {parameters},{others}`"
        );
        Err(ShareError::InvalidSetting { setting: "parameter_bytes", value: parameters.to_string(), expected })
    }

    /// Returns how many bytes belong to neither range. Fails if the two ranges are larger than the whole.
    pub(super) fn rest_bytes(&self) -> Result<u64, ShareError> {
        let rest = self.pool_bytes.checked_sub(self.parameter_bytes);
        rest.and_then(|bytes| bytes.checked_sub(self.computation_bytes)).ok_or_else(|| ShareError::InvalidSetting {
            setting: "pool_bytes",
            value: self.pool_bytes.to_string(),
            expected: format!(
                "room for parameter_bytes = {} and computation_bytes = {}",
                self.parameter_bytes, self.computation_bytes
            ),
        })
    }
}

/// A shared cache in the process that owns its memory. After this is dropped, the memory goes back to the device as
/// soon as no process maps it.
pub struct SharedCache {
    /// The memory, until it is sent.
    store: Option<Store>,
    /// The daemon that serves the memory, once it is sent.
    daemon: Option<MemoryDaemon>,
}

impl SharedCache {
    /// Takes the memory from the device.
    ///
    /// # Errors
    /// The sizes do not fit together, or are no multiples of the device's granularity; the device does not have enough
    /// memory.
    pub fn allocate_shared_cache(driver: Arc<dyn Driver>, config: &SharedCacheConfig) -> Result<Self, ShareError> {
        Ok(Self { store: Some(Store::new(driver, &config.chunks()?)?), daemon: None })
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
        let store = self.store.take().ok_or_else(|| ShareError::NoPool { socket: config.socket.clone() })?;
        self.daemon = Some(MemoryDaemon::spawn(listener, store, config)?);
        Ok(())
    }

    /// Returns the socket at which the cache is sent, if it is.
    pub fn socket(&self) -> Option<&Path> {
        self.daemon.as_ref().map(MemoryDaemon::socket)
    }
}
