//! Models that several processes compute with, without a copy: PipeSwitch's active worker, and its standby workers.
//!
//! The process that brought a model [lends](Model::lend) it. It sends [terms](Lent::terms) and
//! [descriptors](Lent::descriptors) over a connection of its own to a process that knows the same manifest. That
//! process opens a [`Standby`]: the same bytes at addresses of its own, for reading. Nothing is copied, and no memory
//! is allocated.
//!
//! The device orders work only within a process, so the connection orders it between the two:
//!
//! - the bytes are there when [`Model::lend`] returns, and stay as long as the [`Lent`] lives, since evictions skip the
//!   model;
//! - the other process drops its [`Standby`], which waits for its own work, and then says that it is done;
//! - then the lender drops the [`Lent`]. It also does so when the connection ends without a word. Work of a process
//!   that died may run on for a moment, and read bytes that by then belong to another model. Its results reach no
//!   process, and it writes nothing there.
//!
//! If the lender ends first, the standby keeps the bytes: the driver keeps memory until its last mapping is gone. For
//! the same reason, memory that the lender [trims](crate::Switch::trim) returns to the device only when no standby is
//! left.
//!
//! A model that is still being copied is lent [ahead](Model::lend_ahead): the other process [borrows](Model::borrow) it
//! at addresses that stay, and its work waits on the device for each group, by events that both processes see.
//!
//! Read-only access guards against mistakes alone: CUDA lets a process change its own access.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure_alloc::{Address, Backing, ChunkId, Mark};
use tenure_core::{DataPtr, Storage};
use tenure_device::memory::DeviceMemory;
use tenure_device::{AccessMode, EventHandle, Stream};

use crate::switch::mark_use;
use crate::{Manifest, Model, SwitchError};

/// A model that is lent to another process. The model stays on the device until this is dropped: [`Model::evict`] takes
/// nothing of it.
pub struct Lent {
    model: Arc<Model>,
    chunks: Vec<ChunkId>,
}

/// A chunk of a [`Lent`]. It does not keep the chunk alive.
pub struct LentChunk {
    memory: &'static DeviceMemory,
    chunk: ChunkId,
}

/// A description of a lent model, which the other process compares with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The device's identifier, the same in every process.
    pub device: [u8; 16],
    /// The size of a chunk in bytes. There is one descriptor for each chunk.
    pub chunk_bytes: u64,
    /// The size of the weights in bytes.
    pub bytes: u64,
    /// A checksum of the tensors' names and places and of the groups: equal where these are equal.
    pub layout: u64,
}

/// Another process's model, mapped in this process for reading. A drop waits for the work that uses it, and unmaps it.
pub struct Standby {
    memory: &'static DeviceMemory,
    manifest: Arc<Manifest>,
    address: Address,
    /// The size of the address space in bytes.
    bytes: u64,
    chunks: Vec<ChunkId>,
    /// The bytes mapped, from the start: all of them, once it is open.
    mapped_bytes: u64,
    /// A mark after the last work that uses it.
    used: Mutex<Option<Mark>>,
}

impl Model {
    /// Lends the model to another process: all of it is on the device and stays there. Waits for the copies that bring
    /// it. It may be lent more than once, and used meanwhile.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure_device::memory::{DeviceMemory, MemoryConfig};
    /// # use tenure_device::sim::{SimConfig, SimDriver};
    /// # use tenure_switch::{Entry, Images, Manifest, Origin, Standby, Switch, SwitchOptions};
    /// # let driver = Arc::new(SimDriver::new(SimConfig::default()));
    /// # let memory: &'static DeviceMemory = Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default())?));
    /// # let images = Images::new(64 << 20, Some(Arc::clone(memory.driver())))?;
    /// # let switch = Switch::new(memory, SwitchOptions::new(64 << 20))?;
    /// # let origin = Origin::Made(Arc::new(|bytes: &mut [u8]| bytes.fill(7)));
    /// # let manifest = Arc::new(Manifest::new("m", vec![Entry { name: "t".into(), bytes: 20 << 20, origin }], vec![1])?);
    /// # let model = Arc::new(switch.register(&manifest)?);
    /// model.load(&images.acquire(&manifest)?)?;
    /// let lent = model.lend()?;
    /// let (terms, descriptors) = (lent.terms(), lent.descriptors().collect::<Result<Vec<_>, _>>()?);
    ///
    /// // In another process:
    /// let standby = Standby::open(memory, &manifest, &terms, descriptors)?;
    /// assert_ne!(standby.place(0), model.place(0)); // the same bytes, elsewhere
    /// drop(standby); // then it reports that to the lender
    ///
    /// assert_eq!(model.evict(usize::MAX), 0);
    /// drop(lent);
    /// assert_eq!(model.evict(usize::MAX), 32 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SwitchError::NotWhole`]: some of it is not on the device; a driver call failed. It is not lent then.
    pub fn lend(self: &Arc<Self>) -> Result<Lent, SwitchError> {
        let (chunks, copied) = self.protect()?;
        // From here on, a drop undoes the lending.
        let lent = Lent { model: Arc::clone(self), chunks };
        copied.map_or(Ok(()), |copied| self.memory().backing().synchronize(copied))?;
        Ok(lent)
    }

    /// Lends the model without a wait: the other process waits for groups by their [signals](Lent::signals). If the
    /// model's switch is not [lending](crate::SwitchOptions::is_lending), there are no signals, and this waits for the
    /// copies.
    ///
    /// # Errors
    /// The errors of [`lend`](Self::lend).
    pub fn lend_ahead(self: &Arc<Self>) -> Result<Lent, SwitchError> {
        if !self.is_lending() {
            return self.lend();
        }
        let (chunks, _) = self.protect()?;
        Ok(Lent { model: Arc::clone(self), chunks })
    }
}

impl Lent {
    /// Returns the description that the other process needs beside the manifest.
    pub fn terms(&self) -> Terms {
        let manifest = self.model.manifest();
        let chunk_bytes = self.model.chunk_bytes();
        let device = self.model.memory().driver().uuid();
        Terms { device, chunk_bytes, bytes: manifest.bytes(), layout: layout(manifest) }
    }

    /// Returns a descriptor of each chunk, in order. Each one is made when the iterator reaches it: a large model has
    /// more of them than a process may have open or a message can carry. Close each after it was sent. It keeps its
    /// chunk's memory, whatever becomes of the model.
    ///
    /// # Errors
    /// The driver does not export a chunk.
    pub fn descriptors(&self) -> impl Iterator<Item = Result<OwnedFd, SwitchError>> + '_ {
        self.chunks().map(|chunk| chunk.descriptor())
    }

    /// Returns the chunks, in order, for a thread that makes descriptors later.
    pub fn chunks(&self) -> impl Iterator<Item = LentChunk> + '_ {
        let memory = self.model.memory();
        self.chunks.iter().map(|chunk| LentChunk { memory, chunk: *chunk })
    }

    /// Returns the events that tell when groups are there, by which the other process waits for them. They are the same
    /// each time that this [`Model`] is lent. There are none if its switch is not
    /// [lending](crate::SwitchOptions::is_lending).
    ///
    /// # Errors
    /// The driver does not export an event.
    pub fn signals(&self) -> Result<Vec<EventHandle>, SwitchError> {
        self.model.gates().lock().iter_mut().filter_map(|gate| gate.export().transpose()).collect()
    }
}

impl LentChunk {
    /// Returns a descriptor of the chunk. Close it after it was sent. Once the model is no longer lent, the chunk may
    /// belong to another model.
    ///
    /// # Errors
    /// The driver does not export the chunk, or it is gone.
    pub fn descriptor(&self) -> Result<OwnedFd, SwitchError> {
        Ok(self.memory.driver().export(self.chunk)?)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.model.unprotect();
    }
}

impl Terms {
    /// Returns the number of descriptors to expect, if the lent model is this manifest on this device.
    ///
    /// # Errors
    /// [`SwitchError::NotTheSame`]: it is another model or device.
    pub fn chunks(&self, memory: &DeviceMemory, manifest: &Manifest) -> Result<u64, SwitchError> {
        let driver = memory.driver();
        let [lent, known] = [self.device, driver.uuid()].map(|uuid| format!("{:032x}", u128::from_be_bytes(uuid)));
        check(manifest, "of device", lent, known)?;
        check(manifest, "bytes:", self.bytes, manifest.bytes())?;
        check(manifest, "the layout", self.layout, layout(manifest))?;
        let granularity = driver.granularity();
        let is_size = self.chunk_bytes > 0 && self.chunk_bytes.is_multiple_of(granularity);
        match self.bytes.checked_next_multiple_of(self.chunk_bytes).filter(|_| is_size) {
            Some(bytes) => Ok(bytes / self.chunk_bytes),
            None => Err(differs(manifest, "chunks of", self.chunk_bytes, format_args!("a multiple of {granularity}"))),
        }
    }
}

impl Standby {
    /// Maps a model that another process [lent](Model::lend), for reading. Takes the descriptors one after the other,
    /// as they arrive, and closes each.
    ///
    /// # Errors
    /// [`SwitchError::NotTheSame`]: it is another model, or there are too few descriptors or too many; a descriptor is
    /// not of a chunk, or of a chunk of another size; there are no addresses; a driver call failed. Nothing stays
    /// mapped then.
    pub fn open(
        memory: &'static DeviceMemory,
        manifest: &Arc<Manifest>,
        terms: &Terms,
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Self, SwitchError> {
        let count = terms.chunks(memory, manifest)?;
        let driver = memory.driver();
        let bytes = count * terms.chunk_bytes;
        let address = if count > 0 { driver.reserve(bytes)? } else { 0 };
        let manifest = Arc::clone(manifest);
        let used = Mutex::default();
        // From here on, a drop undoes the mapping.
        let mut standby = Self { memory, manifest, address, bytes, chunks: Vec::new(), mapped_bytes: 0, used };
        let mut descriptors = descriptors.into_iter();
        while standby.mapped_bytes < bytes {
            let index = standby.chunks.len();
            let descriptor = descriptors.next().ok_or_else(|| differs(&standby.manifest, "chunks:", index, count))?;
            let chunk = driver.import(descriptor.as_fd(), terms.chunk_bytes)?;
            standby.chunks.push(chunk);
            driver.map(address + standby.mapped_bytes, chunk)?;
            standby.mapped_bytes += terms.chunk_bytes;
        }
        if descriptors.next().is_some() {
            return Err(differs(&standby.manifest, "chunks:", "more", count));
        }
        if bytes > 0 {
            driver.set_access(address, bytes, AccessMode::Read)?;
        }
        Ok(standby)
    }

    /// Returns the manifest of the model.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Returns the addresses of a tensor.
    pub fn place(&self, entry: usize) -> Range<Address> {
        let place = self.manifest.place(entry);
        self.address + place.start..self.address + place.end
    }

    /// Returns the bytes of a group as a storage of the device, which keeps the mapping. The bytes are there, so no use
    /// waits. The storage is for reading only; a write loses the context.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        let range = &self.manifest.groups()[group];
        let address = self.address + range.start;
        let bytes = (range.end - range.start) as usize;
        // To the host, a device's address is only a number.
        let first = std::ptr::without_provenance_mut(address as usize);
        let kept = Arc::clone(self);
        let data = DataPtr::foreign(first, self.memory.device(), move || drop(kept));
        // SAFETY: mapped for reading as long as `kept` lives, and only reads are allowed; the lender brought the bytes
        // before it lent them, and does not let them be written before it hears that they are no longer used.
        unsafe { Storage::from_data_ptr(data, bytes, None) }
    }

    /// Marks that the work now on a stream uses the model: it stays mapped until that work is done. Call it after each
    /// use, even one that failed midway.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn used_by(&self, stream: &Stream) -> Result<(), SwitchError> {
        mark_use(&mut self.used.lock(), self.memory.backing(), stream)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let driver = self.memory.driver();
        let backing = self.memory.backing();
        let is_unused = match *self.used.get_mut() {
            Some(used) => backing.synchronize(used).is_ok() || driver.synchronize().is_ok(),
            None => true,
        };
        // Chunks that the driver does not take back are freed when the process ends.
        if is_unused && (self.mapped_bytes == 0 || driver.unmap(self.address, self.mapped_bytes).is_ok()) {
            for chunk in &self.chunks {
                let _ = driver.release(*chunk);
            }
            if self.bytes > 0 {
                let _ = driver.unreserve(self.address, self.bytes);
            }
        }
    }
}

/// Returns a checksum (FNV-1a) of the properties that both processes must agree on.
fn layout(manifest: &Manifest) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|byte| sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    };
    let mut add_range = |name: &str, range: &Range<u64>| {
        add(name.as_bytes());
        // No name contains this byte.
        add(&[0xff]);
        add(&range.start.to_le_bytes());
        add(&range.end.to_le_bytes());
    };
    for (index, entry) in manifest.entries().iter().enumerate() {
        add_range(&entry.name, &manifest.place(index));
    }
    manifest.groups().iter().for_each(|group| add_range("", group));
    sum
}

/// Checks that a property of the lent model equals this process's.
fn check<T: ToString>(manifest: &Manifest, what: &'static str, lent: T, known: T) -> Result<(), SwitchError> {
    let lent = lent.to_string();
    let known = known.to_string();
    if lent == known { Ok(()) } else { Err(differs(manifest, what, lent, known)) }
}

/// Returns the error for a property of the lent model that differs from this process's.
pub(crate) fn differs(
    manifest: &Manifest,
    what: &'static str,
    lent: impl ToString,
    known: impl ToString,
) -> SwitchError {
    let model = manifest.name().into();
    let lent = lent.to_string();
    let known = known.to_string();
    SwitchError::NotTheSame { model, what, lent, known }
}
