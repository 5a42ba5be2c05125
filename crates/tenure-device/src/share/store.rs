//! The physical memory of a daemon.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tenure_alloc::ChunkId;

use super::wire::DESCRIPTORS;
use super::{DaemonRefusal, LeaseId, ShareError};
use crate::{CallError, DeviceProcess, Driver, ErrorKind};

/// The chunks that a daemon has created on its device. On drop, it releases all of them; a process that has mapped one
/// keeps its memory.
pub(super) struct Store {
    driver: Arc<dyn Driver>,
    pool: Vec<PoolChunk>,
    /// The leased chunks outside the pool.
    leased: BTreeMap<LeaseId, ChunkId>,
    /// Chunks that the driver refused to take back.
    unreleased: Vec<ChunkId>,
}

/// A chunk of the pool, exported once for all clients.
struct PoolChunk {
    chunk: ChunkId,
    bytes: u64,
    descriptor: OwnedFd,
}

impl Store {
    /// Creates a pool of chunks of these sizes, in bytes.
    pub(super) fn new(driver: Arc<dyn Driver>, pool: &[u64]) -> Result<Self, ShareError> {
        check_pool(pool, driver.granularity())?;
        let mut store = Self { driver, pool: Vec::new(), leased: BTreeMap::new(), unreleased: Vec::new() };
        for &bytes in pool {
            let (chunk, descriptor) = store.create_exported(bytes)?;
            store.pool.push(PoolChunk { chunk, bytes, descriptor });
        }
        Ok(store)
    }

    /// Returns the sizes of the pool's chunks, in bytes.
    pub(super) fn pool(&self) -> Vec<u64> {
        self.pool.iter().map(|chunk| chunk.bytes).collect()
    }

    pub(super) fn pool_bytes(&self) -> u64 {
        self.pool.iter().map(|chunk| chunk.bytes).sum()
    }

    pub(super) fn pool_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.pool.iter().map(|chunk| chunk.descriptor.as_fd()).collect()
    }

    /// Returns whether `offset` and `bytes` describe a range of the pool in whole granules.
    pub(super) fn is_range(&self, offset: u64, bytes: u64) -> bool {
        let granularity = self.driver.granularity();
        let aligned = offset.is_multiple_of(granularity) && bytes.is_multiple_of(granularity);
        aligned && bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= self.pool_bytes())
    }

    /// Creates a chunk and a descriptor of it. The caller hands the chunk to [`record_lease`](Self::record_lease) or to
    /// [`give_back`](Self::give_back).
    pub(super) fn create(&mut self, bytes: u64) -> Result<(ChunkId, OwnedFd), DaemonRefusal> {
        self.create_exported(bytes).map_err(|error| match error.kind {
            ErrorKind::OutOfMemory { requested, free } => DaemonRefusal::Full { requested, available: free },
            _ => DaemonRefusal::Driver(error.to_string()),
        })
    }

    /// Records that `lease` covers `chunk`, until [`end_lease`](Self::end_lease).
    pub(super) fn record_lease(&mut self, lease: LeaseId, chunk: ChunkId) {
        self.leased.insert(lease, chunk);
    }

    /// Releases the chunk of a lease that has ended, if it is a lease of a chunk. The chunk is never leased again.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        if let Some(chunk) = self.leased.remove(&lease) {
            self.give_back(chunk);
        }
    }

    /// Releases a chunk, or keeps it for [`retry_releases`](Self::retry_releases) if the driver refuses.
    pub(super) fn give_back(&mut self, chunk: ChunkId) {
        if self.driver.release(chunk).is_err() {
            self.unreleased.push(chunk);
        }
    }

    /// Asks the driver again to take back the chunks that it refused.
    pub(super) fn retry_releases(&mut self) {
        for chunk in std::mem::take(&mut self.unreleased) {
            self.give_back(chunk);
        }
    }

    pub(super) fn unreleased(&self) -> usize {
        self.unreleased.len()
    }

    /// Returns the processes that the driver lists.
    pub(super) fn processes(&self) -> Option<Vec<DeviceProcess>> {
        self.driver.processes()
    }

    /// Returns how many bytes the device has free; 0 if the driver does not say.
    pub(super) fn free(&self) -> u64 {
        self.driver.memory_info().map_or(0, |info| info.free)
    }

    /// Returns the device's name.
    pub(super) fn device(&self) -> String {
        self.driver.device().to_string()
    }

    /// Returns the UUID of the device, the same in every process.
    pub(super) fn uuid(&self) -> [u8; 16] {
        self.driver.uuid()
    }

    /// Creates a chunk and exports a descriptor of it.
    fn create_exported(&mut self, bytes: u64) -> Result<(ChunkId, OwnedFd), CallError> {
        let chunk = self.driver.create(bytes)?;
        match self.driver.export(chunk) {
            Ok(descriptor) => Ok((chunk, descriptor)),
            Err(error) => {
                self.give_back(chunk);
                Err(error)
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let pool = self.pool.drain(..).map(|chunk| chunk.chunk);
        let chunks: Vec<_> = pool.chain(std::mem::take(&mut self.leased).into_values()).collect();
        for chunk in chunks {
            self.give_back(chunk);
        }
        self.retry_releases();
    }
}

fn invalid_pool(value: String, expected: String) -> Result<(), ShareError> {
    Err(ShareError::InvalidSetting { setting: "pool", value, expected })
}

/// Checks that a pool can have chunks of these sizes: not too many, whole granules, and a sum that fits in 64 bits.
fn check_pool(pool: &[u64], granularity: u64) -> Result<(), ShareError> {
    if pool.len() > DESCRIPTORS {
        return invalid_pool(
            format!("{} chunks", pool.len()),
            format!("at most {DESCRIPTORS} chunks: use larger ones"),
        );
    }
    if let Some(bytes) = pool.iter().find(|&&bytes| bytes == 0 || !bytes.is_multiple_of(granularity)) {
        return invalid_pool(format!("a chunk of {bytes} bytes"), format!("multiples of {granularity} bytes"));
    }
    if pool.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes)).is_none() {
        return invalid_pool("more than 2^64 bytes".into(), "less than the device has".into());
    }
    Ok(())
}

/// Returns whether process `pid` still holds memory of the device, by the driver's list. `None` if the list proves
/// nothing: there is no list, or it lacks even this process (`own`), as in some containers.
pub(super) fn is_listed(processes: Option<&[DeviceProcess]>, own: u32, pid: u32) -> Option<bool> {
    let lists = |pid| processes.map(|processes| processes.iter().any(|process| process.pid == pid));
    lists(own).filter(|&trusted| trusted).and_then(|_| lists(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_this_process_proves_nothing() {
        let process = |pid| DeviceProcess { pid, bytes: None };
        assert_eq!(is_listed(None, 1, 2), None);
        assert_eq!(is_listed(Some(&[]), 1, 2), None);
        assert_eq!(is_listed(Some(&[process(2)]), 1, 2), None);
        assert_eq!(is_listed(Some(&[process(1)]), 1, 2), Some(false));
        assert_eq!(is_listed(Some(&[process(1), process(2)]), 1, 2), Some(true));
    }
}
