//! A model on a device, computed with by other processes too: PipeSwitch's active worker, and those that stand by.
//!
//! The process that brought a model [lends](Model::lend) it, and sends [terms](Lent::terms) and
//! [descriptors](Lent::descriptors) over a connection of its own to a process that knows the same manifest. That one opens a
//! [`Standby`]: the same bytes at addresses of its own, for reading. Nothing is copied, and no memory is taken.
//!
//! The device's order of work ends with a process, so the connection keeps it between them:
//!
//! - the bytes are there when [`Model::lend`] returns, and stay as long as there is the [`Lent`], which evictions pass by;
//! - the other process says that it is done after it dropped its [`Standby`], which waits for its own work;
//! - then the lender drops the [`Lent`]. It does the same when the connection ends without a word. Whoever died may still
//!   compute for a moment, with bytes that become others; nobody sees what comes of it, and it writes nothing there.
//!
//! If the lender ends first, the bytes stay for the standby: the driver keeps memory until its last mapping is gone. For the same
//! reason, memory that the lender [trims](crate::Switch::trim) comes back to the device when no standby is left.
//!
//! A model that is still being copied is lent [ahead](Model::lend_ahead): the other process [borrows](Model::borrow) it at
//! addresses that stay, and its work waits on the device for each group, by events that both processes see.
//!
//! Reading only is a guard against mistakes: CUDA lets a process change its own access.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure_alloc::{Address, Backing, ChunkId, Mark};
use tenure_core::{DataPtr, Storage};
use tenure_device::memory::DeviceMemory;
use tenure_device::{Access, EventHandle, Stream};

use crate::switch::mark_use;
use crate::{Manifest, Model, SwitchError};

/// A model that another process may use. Until it is dropped, the model stays on the device: [`Model::evict`] takes nothing of
/// it.
pub struct Lent {
    model: Arc<Model>,
    chunks: Vec<ChunkId>,
}

/// A chunk of a [`Lent`], which it does not keep.
pub struct LentChunk {
    memory: &'static DeviceMemory,
    chunk: ChunkId,
}

/// A description of a lent model, for the other process to compare with what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The device, as every process knows it.
    pub device: [u8; 16],
    /// Bytes of a chunk; of each there is a descriptor.
    pub chunk_bytes: u64,
    /// Bytes of the weights.
    pub bytes: u64,
    /// A sum of the tensors' names and places and of the groups: the same where they are.
    pub layout: u64,
}

/// Another process's model, at addresses of this one, for reading. Dropped, it waits for the work that uses it, and unmaps it.
pub struct Standby {
    memory: &'static DeviceMemory,
    manifest: Arc<Manifest>,
    address: Address,
    /// Of address space.
    bytes: u64,
    chunks: Vec<ChunkId>,
    /// From the start. All of them, once it is open.
    mapped_bytes: u64,
    /// When what was computed with it last is done.
    used: Mutex<Option<Mark>>,
}

impl Model {
    /// Lends it to another process: all of it is on the device and stays there. Waits for the copies that bring it. It may be
    /// lent more than once, and computed with meanwhile.
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
    /// drop(standby); // and it says so
    ///
    /// assert_eq!(model.evict(usize::MAX), 0);
    /// drop(lent);
    /// assert_eq!(model.evict(usize::MAX), 32 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SwitchError::NotWhole`]: some of it is not there; a driver call failed. It is not lent then.
    pub fn lend(self: &Arc<Self>) -> Result<Lent, SwitchError> {
        let (chunks, copied) = self.hold()?;
        // From here on, dropping it undoes what was done.
        let lent = Lent { model: Arc::clone(self), chunks };
        copied.map_or(Ok(()), |copied| self.memory().backing().synchronize(copied))?;
        Ok(lent)
    }

    /// The same without waiting: the other process waits for groups by their [signals](Lent::signals). A model whose switch is
    /// not [lending](crate::SwitchOptions::is_lending) has none, and its copies are waited for.
    ///
    /// # Errors
    /// Those of [`lend`](Self::lend).
    pub fn lend_ahead(self: &Arc<Self>) -> Result<Lent, SwitchError> {
        if !self.is_lending() {
            return self.lend();
        }
        let (chunks, _) = self.hold()?;
        Ok(Lent { model: Arc::clone(self), chunks })
    }
}

impl Lent {
    /// The description that the other process needs beside the manifest.
    pub fn terms(&self) -> Terms {
        let (manifest, chunk_bytes) = (self.model.manifest(), self.model.chunk_bytes());
        let device = self.model.memory().driver().uuid();
        Terms { device, chunk_bytes, bytes: manifest.bytes(), layout: layout(manifest) }
    }

    /// A descriptor of each chunk, in their order, made as it is asked for: a large model has more of them than a process may have
    /// open or a message carries. To be closed when it was sent. Each keeps its chunk's memory, whatever becomes of the model.
    ///
    /// # Errors
    /// The driver does not export a chunk.
    pub fn descriptors(&self) -> impl Iterator<Item = Result<OwnedFd, SwitchError>> + '_ {
        self.chunks().map(|chunk| chunk.descriptor())
    }

    /// The chunks, in their order, for a thread that makes descriptors later.
    pub fn chunks(&self) -> impl Iterator<Item = LentChunk> + '_ {
        let memory = self.model.memory();
        self.chunks.iter().map(|chunk| LentChunk { memory, chunk: *chunk })
    }

    /// The events that say when groups are there, by which the other process waits for them. They are the same each time that
    /// this [`Model`] is lent. None if its switch is not [lending](crate::SwitchOptions::is_lending).
    ///
    /// # Errors
    /// The driver does not export an event.
    pub fn signals(&self) -> Result<Vec<EventHandle>, SwitchError> {
        self.model.gates().lock().iter_mut().filter_map(|gate| gate.export().transpose()).collect()
    }
}

impl LentChunk {
    /// A descriptor of the chunk, to be closed when it was sent. After the model was given back, the chunk may have become
    /// another model's.
    ///
    /// # Errors
    /// The driver does not export it, or it is gone.
    pub fn descriptor(&self) -> Result<OwnedFd, SwitchError> {
        Ok(self.memory.driver().export(self.chunk)?)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.model.let_go();
    }
}

impl Terms {
    /// How many descriptors are to come, if this manifest on this device is what was lent.
    ///
    /// # Errors
    /// [`SwitchError::NotTheSame`]: it is not.
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
    /// Maps a model that another process [lent](Model::lend), for reading. Takes the descriptors one after the other, as they
    /// may come, and closes each.
    ///
    /// # Errors
    /// [`SwitchError::NotTheSame`]: it is another model, or there are fewer descriptors or more; they are of no chunks, or of
    /// chunks of another size; no addresses; a driver call failed. Nothing is left of it then.
    pub fn open(
        memory: &'static DeviceMemory,
        manifest: &Arc<Manifest>,
        terms: &Terms,
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Self, SwitchError> {
        let count = terms.chunks(memory, manifest)?;
        let (driver, bytes) = (memory.driver(), count * terms.chunk_bytes);
        let address = if count > 0 { driver.reserve(bytes)? } else { 0 };
        let (manifest, used) = (Arc::clone(manifest), Mutex::default());
        // From here on, dropping it undoes what was done.
        let mut standby = Self { memory, manifest, address, bytes, chunks: Vec::new(), mapped_bytes: 0, used };
        let mut descriptors = descriptors.into_iter();
        while standby.mapped_bytes < bytes {
            let come = standby.chunks.len();
            let missing = || differs(&standby.manifest, "chunks:", come, count);
            let descriptor = descriptors.next().ok_or_else(missing)?;
            let chunk = driver.import(descriptor.as_fd(), terms.chunk_bytes)?;
            standby.chunks.push(chunk);
            driver.map(address + standby.mapped_bytes, chunk)?;
            standby.mapped_bytes += terms.chunk_bytes;
        }
        if descriptors.next().is_some() {
            return Err(differs(&standby.manifest, "chunks:", "more", count));
        }
        if bytes > 0 {
            driver.set_access(address, bytes, Access::Read)?;
        }
        Ok(standby)
    }

    /// The manifest that it is made of.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Where a tensor of it lies.
    pub fn place(&self, entry: usize) -> Range<Address> {
        let place = self.manifest.place(entry);
        self.address + place.start..self.address + place.end
    }

    /// The bytes of a group as a storage of the device, which keeps the mapping. They are there: nobody waits. It is to be read
    /// only; a write loses the context.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        let range = &self.manifest.groups()[group];
        let (address, bytes) = (self.address + range.start, (range.end - range.start) as usize);
        // A device's address is a number to the host, which never follows it.
        let first = std::ptr::without_provenance_mut(address as usize);
        let kept = Arc::clone(self);
        let data = DataPtr::foreign(first, self.memory.device(), move || drop(kept));
        // SAFETY: mapped as long as there is `kept`, for reading, which is all that may be done with it; the lender brought the
        // bytes before it lent them, and lets nobody write them before it hears that they are not used.
        unsafe { Storage::from_data_ptr(data, bytes, None) }
    }

    /// Says that what is on a stream now uses it: it stays mapped until that is done. To be said after each use, also one that
    /// failed in the middle.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn used_by(&self, stream: &Stream) -> Result<(), SwitchError> {
        mark_use(&mut self.used.lock(), self.memory.backing(), stream)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let (driver, backing) = (self.memory.driver(), self.memory.backing());
        let is_unused = match *self.used.get_mut() {
            Some(used) => backing.synchronize(used).is_ok() || driver.synchronize().is_ok(),
            None => true,
        };
        // What the driver does not take back ends with the process.
        if is_unused && (self.mapped_bytes == 0 || driver.unmap(self.address, self.mapped_bytes).is_ok()) {
            self.chunks.iter().for_each(|chunk| drop(driver.release(*chunk)));
            if self.bytes > 0 {
                let _ = driver.unreserve(self.address, self.bytes);
            }
        }
    }
}

/// FNV-1a of what both processes must agree on.
fn layout(manifest: &Manifest) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|byte| sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    };
    let mut add_range = |name: &str, range: &Range<u64>| {
        add(name.as_bytes());
        // No name has such a byte.
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

fn check<T: ToString>(manifest: &Manifest, what: &'static str, lent: T, known: T) -> Result<(), SwitchError> {
    let (lent, known) = (lent.to_string(), known.to_string());
    if lent == known { Ok(()) } else { Err(differs(manifest, what, lent, known)) }
}

pub(crate) fn differs(
    manifest: &Manifest,
    what: &'static str,
    lent: impl ToString,
    known: impl ToString,
) -> SwitchError {
    let (model, lent, known) = (manifest.name().into(), lent.to_string(), known.to_string());
    SwitchError::NotTheSame { model, what, lent, known }
}
