//! A daemon's pool, mapped in a client process, and leases of its ranges.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_alloc::{Address, ChunkId};

use super::{DaemonClient, LeaseId, ShareError};
use crate::{AccessMode, CallError, Driver};

/// A daemon's pool, mapped in this process at an address of the process's own choosing.
///
/// All of it may be read at any time, but its bytes mean something only where a lease says so. A range may be written
/// under a [`PoolLease`] of [`AccessMode::ReadWrite`]. The device protects whole chunks: a lease for writing makes each
/// chunk that it touches writable for this process.
///
/// On drop, it waits for the device and unmaps the pool.
pub struct SharedPool {
    client: Arc<DaemonClient>,
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: u64,
    chunks: Vec<AttachedChunk>,
    /// Chunks below this offset are mapped: all of them, once the pool is attached.
    mapped_bytes: u64,
    /// The number of leases that write each chunk.
    writers: Mutex<Vec<u32>>,
}

/// A chunk of the pool, imported into this process.
struct AttachedChunk {
    chunk: ChunkId,
    /// The chunk's range of offsets in the pool.
    range: Range<u64>,
}

impl SharedPool {
    /// Maps the pool of the daemon that `client` is connected to, for reading.
    ///
    /// # Errors
    /// The daemon is gone, has no pool, or has its pool on another device; a driver call failed. Nothing is left
    /// mapped.
    pub fn attach(client: Arc<DaemonClient>, driver: Arc<dyn Driver>) -> Result<Arc<Self>, ShareError> {
        let sizes = client.terms().pool.clone();
        if sizes.is_empty() {
            return Err(ShareError::NoPool { socket: client.path().into() });
        }
        let lies_on = client.terms().uuid;
        let uuid = driver.uuid();
        if lies_on != uuid {
            return Err(ShareError::OtherDevice { device: driver.device(), uuid, lies_on });
        }
        let descriptors = client.attach()?;
        let bytes = client.terms().pool_bytes();
        let address = driver.reserve(bytes)?;
        let writers = Mutex::new(vec![0; sizes.len()]);
        // From here on, dropping the pool undoes what was done.
        let mut pool = Self { client, driver, address, bytes, chunks: Vec::new(), mapped_bytes: 0, writers };
        for (descriptor, bytes) in descriptors.iter().zip(sizes) {
            let chunk = pool.driver.import(descriptor.as_fd(), bytes)?;
            let range = pool.mapped_bytes..pool.mapped_bytes + bytes;
            pool.chunks.push(AttachedChunk { chunk, range: range.clone() });
            pool.driver.map(address + range.start, chunk)?;
            pool.mapped_bytes = range.end;
        }
        pool.driver.set_access(address, bytes, AccessMode::Read)?;
        Ok(Arc::new(pool))
    }

    /// Maps the same pool once more, at another address.
    pub(super) fn map_again(&self) -> Result<Arc<Self>, ShareError> {
        Self::attach(Arc::clone(&self.client), Arc::clone(&self.driver))
    }

    /// Returns the address of the pool's first byte in this process.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the pool's size, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Leases `bytes` bytes from `offset`, for one of any number of readers or for the only writer. Both numbers must
    /// be multiples of the device's granularity.
    ///
    /// # Errors
    /// Another lease on a part of the range forbids it; the range is not inside the pool; the daemon is gone; a driver
    /// call failed.
    pub fn lease(self: &Arc<Self>, offset: u64, bytes: u64, access: AccessMode) -> Result<PoolLease, ShareError> {
        self.lease_in_turn(offset, bytes, access, false)
    }

    /// Does the same as [`lease`](Self::lease). With `waits`, a caller that is refused must ask again soon, and is then
    /// served before callers that asked later.
    pub(super) fn lease_in_turn(
        self: &Arc<Self>,
        offset: u64,
        bytes: u64,
        access: AccessMode,
        waits: bool,
    ) -> Result<PoolLease, ShareError> {
        let id = self.client.lease_pool(offset, bytes, access, waits)?;
        if access == AccessMode::ReadWrite
            && let Err(error) = self.begin_writing(offset, bytes)
        {
            // If the daemon is gone too, there is no lease left to give back.
            let _ = self.client.release(id);
            return Err(error.into());
        }
        Ok(PoolLease { pool: Arc::clone(self), id, offset, bytes, access, ended: false })
    }

    /// Returns whether a process that is still connected may write a part of a range.
    pub(super) fn is_written(&self, offset: u64, bytes: u64) -> Result<bool, ShareError> {
        self.client.is_written(offset, bytes)
    }

    /// Makes the chunks under a range writable: all of them, or none on failure.
    fn begin_writing(&self, offset: u64, bytes: u64) -> Result<(), CallError> {
        let mut writers = self.writers.lock();
        let touched = self.touched(offset, bytes);
        for index in touched.clone() {
            if writers[index] == 0
                && let Err(error) = self.allow(index, AccessMode::ReadWrite)
            {
                // The chunks were readable before; if the driver now refuses to make one read-only, it stays writable.
                for raised in (touched.start..index).filter(|&index| writers[index] == 0) {
                    let _ = self.allow(raised, AccessMode::Read);
                }
                return Err(error);
            }
        }
        touched.for_each(|index| writers[index] += 1);
        Ok(())
    }

    /// Makes the chunks under a range read-only, except those that another lease in this process writes.
    fn end_writing(&self, offset: u64, bytes: u64) -> Result<(), CallError> {
        let mut writers = self.writers.lock();
        let mut result = Ok(());
        for index in self.touched(offset, bytes) {
            writers[index] -= 1;
            if writers[index] == 0 {
                result = result.and(self.allow(index, AccessMode::Read));
            }
        }
        result
    }

    /// Sets this process's access to a chunk.
    fn allow(&self, index: usize, access: AccessMode) -> Result<(), CallError> {
        let range = &self.chunks[index].range;
        self.driver.set_access(self.address + range.start, range.end - range.start, access)
    }

    /// Returns the indices of the chunks under a range.
    fn touched(&self, offset: u64, bytes: u64) -> Range<usize> {
        let first = self.chunks.partition_point(|chunk| chunk.range.end <= offset);
        first..self.chunks.partition_point(|chunk| chunk.range.start < offset + bytes)
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        // Memory under unfinished work must stay. If the driver cannot tell, the memory stays until the process ends.
        if self.mapped_bytes > 0
            && (self.driver.synchronize().is_err() || self.driver.unmap(self.address, self.mapped_bytes).is_err())
        {
            return;
        }
        // Memory that the driver refuses to take back is freed when the process ends.
        for attached in &self.chunks {
            let _ = self.driver.release(attached.chunk);
        }
        let _ = self.driver.unreserve(self.address, self.bytes);
    }
}

/// The right to use a range of a [`SharedPool`]. Dropping it gives the range back.
pub struct PoolLease {
    pool: Arc<SharedPool>,
    id: LeaseId,
    offset: u64,
    bytes: u64,
    access: AccessMode,
    ended: bool,
}

impl PoolLease {
    /// Returns the address of the range's first byte in this process.
    pub fn address(&self) -> Address {
        self.pool.address + self.offset
    }

    /// Returns the offset of the range in the pool, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the range's size, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the range may be read only or also written.
    pub fn access(&self) -> AccessMode {
        self.access
    }

    /// Returns the daemon's name for the lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Waits for the device, then gives the range back.
    ///
    /// # Errors
    /// The context is lost: work may still run, so the lease stays with the process until it exits. The daemon is gone:
    /// no lease is left to give back, and this process can only read it from now on, as after success.
    pub fn release(mut self) -> Result<(), ShareError> {
        self.end()
    }

    /// Waits for the device, then keeps the range for reading only: other processes may read it too from now on, and
    /// none has written it in between.
    ///
    /// # Errors
    /// The context is lost; the daemon is gone; a driver call failed. If only the daemon is gone, this process cannot
    /// write the range any more, as after success.
    pub fn lower(&mut self) -> Result<(), ShareError> {
        if self.access == AccessMode::ReadWrite {
            self.pool.driver.synchronize()?;
            self.pool.end_writing(self.offset, self.bytes)?;
            self.access = AccessMode::Read;
            self.pool.client.lower(self.id)?;
        }
        Ok(())
    }

    /// Waits for the device and gives the range back, if that was not done before.
    fn end(&mut self) -> Result<(), ShareError> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        self.pool.driver.synchronize()?;
        let lowered = match self.access {
            AccessMode::ReadWrite => self.pool.end_writing(self.offset, self.bytes),
            AccessMode::Read => Ok(()),
        };
        self.pool.client.release(self.id)?;
        Ok(lowered?)
    }
}

impl Drop for PoolLease {
    fn drop(&mut self) {
        // A caller that needs the error calls `release`.
        let _ = self.end();
    }
}
