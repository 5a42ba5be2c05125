//! Sealed host memory, which one process writes once and any number of processes read: a served model's weights.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};

use crate::{AccessMode, CallError, Driver};

/// The seals of the memory: its size cannot change, and no process, not even its creator, can map it for writing any
/// more.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// An error of sealed memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// The system refused.
    #[error("{bytes} bytes of memory that processes share: {call} failed: {source}")]
    System {
        /// Bytes asked for.
        bytes: u64,
        /// The call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another process sent a descriptor of memory that can still be changed.
    #[error("memory that another process sent can still be changed: only what is sealed is taken")]
    NotSealed,
    /// The driver does not pin the memory.
    #[error(transparent)]
    Driver(#[from] CallError),
}

/// The one mapping through which a range of [`Sealed`] memory can be written. Other processes may read those bytes that
/// they know are written.
pub struct Draft {
    memory: Arc<MmapRaw>,
    range: Range<usize>,
}

/// Memory that can be written through its [`Draft`] only, and not at all once that is dropped. It lives as long as a
/// process holds or maps it.
#[derive(Clone, Debug)]
pub struct Sealed {
    file: Arc<OwnedFd>,
    bytes: u64,
}

/// Sealed memory at an address of this process.
pub struct Reading {
    /// Must not be unmapped while it is registered.
    memory: ManuallyDrop<MmapRaw>,
    /// The driver with which the memory is registered.
    driver: Option<Arc<dyn Driver>>,
}

/// The longest name of sealed memory, in bytes.
const NAME_BYTES: usize = 200;

impl Sealed {
    /// Creates memory of `bytes` bytes, and the right to write it. The system's lists show it as `name`, cut if it is
    /// too long.
    ///
    /// # Errors
    /// [`SealedError::System`].
    pub fn new(name: &str, bytes: u64) -> Result<(Self, Draft), SealedError> {
        let failed = |call| move |source: io::Error| SealedError::System { bytes, call, source };
        // The system accepts no zero in a name.
        let name = name.replace('\0', "");
        let name = &name[..name.floor_char_boundary(NAME_BYTES)];
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = File::from(file.map_err(|error| failed("memfd_create")(error.into()))?);
        // A range of 0 bytes cannot be mapped.
        file.set_len(bytes.max(1)).map_err(failed("ftruncate"))?;
        // SAFETY: no other process has the memory, and none can get it for writing: it is sealed before another process
        // can see it.
        let memory: MmapMut = unsafe { MmapOptions::new().map_mut(&file) }.map_err(failed("mmap"))?;
        // Fewer, larger pages are touched and pinned faster. A system without huge pages ignores the advice.
        let _ = memory.advise(memmap2::Advice::HugePage);
        fcntl_add_seals(&file, SEALS).map_err(|error| failed("fcntl")(error.into()))?;
        let draft = Draft { memory: Arc::new(memory.into()), range: 0..bytes as usize };
        Ok((Self { file: Arc::new(file.into()), bytes }, draft))
    }

    /// Receives sealed memory that another process sent.
    ///
    /// # Errors
    /// [`SealedError::NotSealed`]; the system does not tell the seals or the size.
    pub fn receive(file: OwnedFd) -> Result<Self, SealedError> {
        let failed = |call, error: rustix::io::Errno| SealedError::System { bytes: 0, call, source: error.into() };
        let seals = fcntl_get_seals(&file).map_err(|error| failed("fcntl", error))?;
        if !seals.contains(SEALS) {
            return Err(SealedError::NotSealed);
        }
        let bytes = fstat(&file).map_err(|error| failed("fstat", error))?.st_size as u64;
        Ok(Self { file: Arc::new(file), bytes })
    }

    /// Maps the memory for reading.
    ///
    /// # Errors
    /// [`SealedError::System`].
    pub fn map(&self) -> Result<Reading, SealedError> {
        let memory = MmapOptions::new().len(self.bytes.max(1) as usize).map_raw_read_only(&*self.file);
        let memory = memory.map_err(|source| self.not_mapped(source))?;
        Ok(Reading { memory: ManuallyDrop::new(memory), driver: None })
    }

    /// Maps the memory privately: writes of this process change only its own copy of the pages, which takes additional
    /// memory.
    ///
    /// # Errors
    /// [`SealedError::System`].
    pub fn map_private(&self) -> Result<Reading, SealedError> {
        // SAFETY: the memory cannot shrink, and only its one draft can write it.
        let memory = unsafe { MmapOptions::new().len(self.bytes.max(1) as usize).map_copy(&*self.file) };
        let memory = memory.map_err(|source| self.not_mapped(source))?;
        Ok(Reading { memory: ManuallyDrop::new(memory.into()), driver: None })
    }

    fn not_mapped(&self, source: io::Error) -> SealedError {
        SealedError::System { bytes: self.bytes, call: "mmap", source }
    }

    /// Maps the memory for reading, and registers it with a device's driver: 0.04 to 0.4 s for each GiB.
    ///
    /// # Errors
    /// [`SealedError::System`]; the driver refuses.
    pub fn pin(&self, driver: Arc<dyn Driver>) -> Result<Reading, SealedError> {
        let mut reading = self.map()?;
        let address = reading.memory.as_mut_ptr();
        let bytes = reading.memory.len() as u64;
        // SAFETY: `drop` unmaps the memory only once it is no longer registered.
        unsafe { driver.register_host(address, bytes, AccessMode::Read)? };
        reading.driver = Some(driver);
        Ok(reading)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Draft {
    /// Splits off the first `bytes` bytes as a draft of their own, for another thread to write.
    ///
    /// # Panics
    /// If the draft has fewer bytes.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> Self {
        assert!(bytes <= self.range.len(), "{bytes} bytes of {}", self.range.len());
        let end = self.range.start + bytes;
        let taken = self.range.start..end;
        self.range.start = end;
        Self { memory: Arc::clone(&self.memory), range: taken }
    }
}

impl AsMut<[u8]> for Draft {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for writing, within the mapping, and no other draft covers any of it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(self.range.start), self.range.len()) }
    }
}

impl Reading {
    /// Returns the address of the first byte. Bytes that a [`Draft`] is still writing must not be read; only [private
    /// mappings](Sealed::map_private) may be written.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }
}

impl Drop for Reading {
    /// Unmaps the memory. If the driver does not unregister it, it stays mapped.
    fn drop(&mut self) {
        let address = self.memory.as_mut_ptr();
        if self.driver.take().is_none_or(|driver| driver.unregister_host(address).is_ok()) {
            // SAFETY: dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, SimDriver};

    fn read(reading: &Reading, bytes: usize) -> Vec<u8> {
        // SAFETY: `bytes` bytes are mapped, and no thread writes them meanwhile.
        unsafe { std::slice::from_raw_parts(reading.as_ptr(), bytes) }.to_vec()
    }

    #[test]
    fn every_mapping_reads_the_draft_and_none_writes() {
        let (sealed, mut draft) = Sealed::new("model", 5000).unwrap();
        let early = sealed.map().unwrap();
        assert_eq!(draft.take(4000).as_mut(), [0; 4000]);
        draft.as_mut()[999] = 7;
        assert_eq!(read(&early, 5000)[4999], 7);
        drop(draft);
        let late = Sealed::receive(sealed.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((late.bytes(), read(&late.map().unwrap(), 5000)[4999]), (5000, 7));
        // SAFETY: the mapping is refused.
        let writing = unsafe { MmapOptions::new().map_mut(&*sealed.file) };
        assert!(writing.is_err(), "it is not mapped for writing again");
        assert!(File::from(sealed.as_fd().try_clone_to_owned().unwrap()).set_len(1).is_err());
        // It lives as long as it is mapped.
        drop((sealed, late));
        assert_eq!(read(&early, 5000)[4999], 7);
    }

    #[test]
    fn a_write_to_a_private_mapping_stays_there() {
        let (sealed, mut draft) = Sealed::new("model", 5000).unwrap();
        let private = sealed.map_private().unwrap();
        let other = sealed.map().unwrap();
        draft.as_mut().fill(3);
        assert_eq!(read(&private, 5000), [3; 5000]);
        // SAFETY: mapped for writing, and no thread reads it meanwhile.
        unsafe { private.as_ptr().cast_mut().write(7) };
        assert_eq!((read(&private, 2), read(&other, 2)), (vec![7, 3], vec![3, 3]));
    }

    #[test]
    fn an_unsealed_file_is_not_taken() {
        let file = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(Sealed::receive(file), Err(SealedError::NotSealed)));
        let file = tempfile::tempfile().unwrap();
        assert!(Sealed::receive(file.into()).is_err());
    }

    #[test]
    fn a_driver_that_pins_it_lets_go_of_it() {
        let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
        let (sealed, mut draft) = Sealed::new("model", 1 << 20).unwrap();
        draft.as_mut().fill(3);
        let pinned = [sealed.pin(Arc::clone(&driver)).unwrap(), sealed.pin(Arc::clone(&driver)).unwrap()];
        let target = driver.malloc(1 << 20).unwrap();
        let stream = tenure_core::StreamId::NULL;
        // SAFETY: it stays mapped, and no thread writes it, until the device has passed the copy.
        unsafe { driver.copy_to_device_async(target, pinned[0].as_ptr(), 1 << 20, stream).unwrap() };
        driver.synchronize().unwrap();
        let address = pinned[0].as_ptr().cast_mut();
        drop(pinned);
        assert!(driver.unregister_host(address).is_err(), "it is not registered any more");
        let mut back = [0; 16];
        driver.copy_from_device(&mut back, target, stream).unwrap();
        assert_eq!(back, [3; 16]);
    }
}
