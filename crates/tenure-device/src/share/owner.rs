//! Who takes a shared cache and hands it out.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::listener::Listener;
use super::store::Store;
use super::{DaemonConfig, MemoryDaemon, ShareError};
use crate::Driver;

/// Sizes of a shared cache, in bytes.
///
/// Parameters come first, then the memory for computation, then the rest. Each is a chunk of its own, so that who may
/// write one can not write another by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedCacheConfig {
    /// In all.
    pub pool_bytes: u64,
    /// For parameters.
    pub parameter_bytes: u64,
    /// For computation.
    pub computation_bytes: u64,
}

impl Default for SharedCacheConfig {
    /// PipeSwitch's: 1 GiB for parameters, 11 GiB for computation.
    fn default() -> Self {
        Self { pool_bytes: 12 << 30, parameter_bytes: 1 << 30, computation_bytes: 11 << 30 }
    }
}

impl SharedCacheConfig {
    /// The chunks of a pool of these sizes. A worker can tell from them how the pool is divided.
    ///
    /// # Errors
    /// The parts are larger than the whole, or one of them is nothing.
    pub fn chunks(&self) -> Result<Vec<u64>, ShareError> {
        for (setting, bytes) in
            [("parameter_bytes", self.parameter_bytes), ("computation_bytes", self.computation_bytes)]
        {
            if bytes == 0 {
                let expected = "more than 0: a cache has a range for both".to_owned();
                return Err(ShareError::InvalidSetting { setting, value: bytes.to_string(), expected });
            }
        }
        let chunks = [self.parameter_bytes, self.computation_bytes, self.rest()?];
        Ok(chunks.into_iter().filter(|&bytes| bytes > 0).collect())
    }

    /// That the parameters end where a chunk does. A device protects whole chunks: who writes the range for computation
    /// could write the parameters in a chunk of both.
    pub(super) fn check_border(&self, chunks: &[u64]) -> Result<(), ShareError> {
        let mut ends = chunks.iter().scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        if ends.any(|end| end == self.parameter_bytes) {
            return Ok(());
        }
        let (parameters, others) = (self.parameter_bytes, self.pool_bytes - self.parameter_bytes);
        let expected = format!(
            "one of the daemon's chunks would hold parameters and memory that others write: serve them as chunks of their \
             own, with `tenure memory daemon --chunks {parameters},{others}`"
        );
        Err(ShareError::InvalidSetting { setting: "parameter_bytes", value: parameters.to_string(), expected })
    }

    /// What is left for neither.
    pub(super) fn rest(&self) -> Result<u64, ShareError> {
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

/// Device memory taken for workers, in the process that owns it. Dropped, it goes back to the device as soon as nobody
/// maps it.
pub struct SharedCache {
    /// Until it is sent.
    store: Option<Store>,
    /// From then on.
    daemon: Option<MemoryDaemon>,
}

impl SharedCache {
    /// Takes the memory.
    ///
    /// # Errors
    /// The sizes do not fit together, or are no multiples of the device's granularity; the device has not enough.
    pub fn allocate_shared_cache(driver: Arc<dyn Driver>, config: &SharedCacheConfig) -> Result<Self, ShareError> {
        Ok(Self { store: Some(Store::new(driver, &config.chunks()?)?), daemon: None })
    }

    /// Hands it to whoever asks at `config`'s socket, now and later. `config`'s pool is not used. Once is enough for all
    /// workers; calls after the first change nothing.
    ///
    /// # Errors
    /// The socket is served already, or can not be made: then the cache can be sent at another. The cache is sent at
    /// another socket already.
    pub fn send_shared_cache(&mut self, config: DaemonConfig) -> Result<(), ShareError> {
        if let Some(socket) = self.socket() {
            let same = socket == config.socket;
            return if same { Ok(()) } else { Err(ShareError::AlreadySent { socket: socket.into() }) };
        }
        let listener = Listener::bind(&config.socket, config.uid)?;
        let store = self.store.take().ok_or_else(|| ShareError::NoPool { socket: config.socket.clone() })?;
        self.daemon = Some(MemoryDaemon::spawn(listener, store, config)?);
        Ok(())
    }

    /// Where it is sent, if it is.
    pub fn socket(&self) -> Option<&Path> {
        self.daemon.as_ref().map(MemoryDaemon::socket)
    }
}
