//! Settings of a memory daemon, and of a shared cache.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ShareError;
use super::listener::default_socket;
use crate::Clock;

/// Settings of a [`MemoryDaemon`](super::MemoryDaemon).
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
