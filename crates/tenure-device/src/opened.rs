//! Device memory of another process, opened by its handle.

use std::sync::Arc;

use tenure_alloc::Address;

use crate::check_warn;
use crate::{Call, Driver, DriverError, ErrorKind, MemoryHandle, Priority};

/// A device allocation of another process, opened by its handle. Blocking copies read and write it.
///
/// The other process must keep the allocation until this is dropped. Copies of one value run in the order of its
/// stream.
pub struct OpenedMemory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: u64,
    stream: tenure_core::StreamId,
}

impl OpenedMemory {
    /// Opens the whole allocation that contains the memory of the handle.
    ///
    /// # Errors
    /// The handle names nothing, or memory of this process; a driver call failed.
    #[track_caller]
    pub fn open(driver: Arc<dyn Driver>, handle: &MemoryHandle) -> Result<Self, DriverError> {
        let stream = driver.create_stream(Priority::Default)?;
        match driver.open_memory(handle) {
            Ok((address, bytes)) => Ok(Self { driver, address, bytes, stream }),
            Err(error) => {
                // The caller needs the first error.
                check_warn(driver.destroy_stream(stream));
                Err(error.into())
            }
        }
    }

    /// Returns the allocation's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads `target.len()` bytes from `offset` on, and waits until they are read.
    ///
    /// # Errors
    /// The bytes are not all inside the allocation ([`ErrorKind::OutsideMemory`]); a driver call failed.
    #[track_caller]
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), DriverError> {
        let source = self.address_of(Call::CopyFromDevice, offset, target.len())?;
        Ok(self.driver.copy_from_device(target, source, self.stream)?)
    }

    /// Writes `source` from `offset` on, and waits until it is written.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    #[track_caller]
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), DriverError> {
        let target = self.address_of(Call::CopyToDevice, offset, source.len())?;
        Ok(self.driver.copy_to_device(target, source, self.stream)?)
    }

    /// Returns the address of `len` bytes at an offset, which must lie inside the allocation.
    #[track_caller]
    fn address_of(&self, call: Call, offset: u64, len: usize) -> Result<Address, DriverError> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.bytes);
        let outside = ErrorKind::OutsideMemory { offset, len: len as u64, bytes: self.bytes };
        end.map(|_| self.address + offset).ok_or_else(|| DriverError::new(call, outside))
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        // The copies have completed. If the context is lost, both are gone with it.
        check_warn(self.driver.close_memory(self.address));
        check_warn(self.driver.destroy_stream(self.stream));
    }
}
