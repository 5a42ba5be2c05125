//! A model that another process lends, mapped at the same addresses each time: so graphs that were captured with these
//! addresses stay valid.
//!
//! The borrower's [`Switch`](crate::Switch) allocates no memory of its own for it. It registers the model as the lender
//! does, and maps the lender's chunks at its addresses, for reading.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tenure_alloc::{Backing, ChunkId};
use tenure_core::{DataPtr, Storage};
use tenure_device::pinned::{Reading, Sealed};
use tenure_device::{AccessMode, Driver, EventHandle};

use crate::standby::differs;
use crate::{Model, SwitchError, Terms};

/// A model whose memory is [borrowed](Model::borrow) from another process. Dropping this waits for the work that uses
/// the model, and unmaps it.
pub struct Borrowed {
    model: Arc<Model>,
    chunks: Vec<ChunkId>,
    /// The number of chunks mapped, from the start of the model: all of them, once it is borrowed.
    mapped: usize,
}

/// The memory of another process's complete image, pinned here, so that kernels of this process read it in place: for
/// tables of which only rows are used.
pub struct PinnedTables {
    driver: Arc<dyn Driver>,
    reading: Reading,
    groups: Vec<Range<u64>>,
}

impl Model {
    /// Maps a model that another process [lent](Model::lend_ahead) and may still be copying: work waits for each group
    /// as if it were copied here. Takes the descriptors one after the other, as they arrive, and closes each. A model
    /// has the same signals each time.
    ///
    /// # Errors
    /// [`SwitchError::NotTheSame`]: it is another model, it is there already, its chunks have another size than those
    /// of the switch, or there are too few descriptors, signals or chunks; a driver call failed. Nothing stays mapped
    /// then.
    pub fn borrow(
        self: &Arc<Self>,
        terms: &Terms,
        signals: &[EventHandle],
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Borrowed, SwitchError> {
        let manifest = self.manifest();
        let count = terms.chunks(self.memory(), manifest)?;
        if terms.chunk_bytes != self.chunk_bytes() {
            return Err(differs(manifest, "chunks of", terms.chunk_bytes, self.chunk_bytes()));
        }
        let groups = manifest.groups().len();
        if !signals.is_empty() && signals.len() != groups {
            return Err(differs(manifest, "signals:", signals.len(), groups));
        }
        {
            let mut residence = self.residence().lock();
            if residence.lent > 0 || residence.window.chunks.iter().any(Option::is_some) {
                return Err(differs(manifest, "chunks:", count, "there already"));
            }
            residence.lent += 1;
        }
        // From here on, a drop undoes the mapping.
        let mut borrowed = Borrowed { model: Arc::clone(self), chunks: Vec::new(), mapped: 0 };
        let mut descriptors = descriptors.into_iter();
        for index in 0..count {
            let descriptor = descriptors.next().ok_or_else(|| differs(manifest, "chunks:", index, count))?;
            borrowed.map(&descriptor)?;
        }
        if count > 0 {
            self.memory().driver().set_access(self.address(), count * self.chunk_bytes(), AccessMode::Read)?;
        }
        let mut gates = self.gates().lock();
        gates.iter_mut().zip(signals).try_for_each(|(gate, signal)| gate.follow(signal, self.copies()))?;
        Ok(borrowed)
    }
}

impl Borrowed {
    /// Maps the next chunk.
    fn map(&mut self, descriptor: &OwnedFd) -> Result<(), SwitchError> {
        let driver = self.model.memory().driver();
        let chunk_bytes = self.model.chunk_bytes();
        let chunk = driver.import(descriptor.as_fd(), chunk_bytes)?;
        self.chunks.push(chunk);
        driver.map(self.model.address() + self.mapped as u64 * chunk_bytes, chunk)?;
        self.model.residence().lock().window.chunks[self.mapped] = Some(chunk);
        self.mapped += 1;
        Ok(())
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let memory = self.model.memory();
        let mut residence = self.model.residence().lock();
        let driver = memory.driver();
        let is_unused = match residence.used.take() {
            Some(used) => memory.backing().synchronize(used).is_ok() || driver.synchronize().is_ok(),
            None => true,
        };
        let mapped_bytes = self.mapped as u64 * self.model.chunk_bytes();
        // Chunks that the driver does not take back are freed when the process ends, and the model is not borrowed
        // again.
        if is_unused && (mapped_bytes == 0 || driver.unmap(self.model.address(), mapped_bytes).is_ok()) {
            for chunk in &self.chunks {
                let _ = driver.release(*chunk);
            }
            residence.window.chunks.fill(None);
            residence.lent -= 1;
        }
    }
}

impl PinnedTables {
    /// Maps and pins the memory of an [`Image::sealed`](crate::Image::sealed) that is complete. `groups` are its
    /// manifest's.
    ///
    /// # Errors
    /// The memory is not sealed, or has no room for the groups; the driver does not pin it.
    pub fn receive(
        model: &str,
        memory: OwnedFd,
        groups: Vec<Range<u64>>,
        driver: &Arc<dyn Driver>,
    ) -> Result<Self, SwitchError> {
        let sealed = Sealed::receive(memory)?;
        if !groups.iter().all(|group| group.start <= group.end && group.end <= sealed.bytes()) {
            return Err(SwitchError::TooLarge { model: model.into() });
        }
        Ok(Self { driver: Arc::clone(driver), reading: sealed.pin(Arc::clone(driver))?, groups })
    }

    /// Returns the bytes of a group as a storage of the device, as
    /// [`Image::storage_on_device`](crate::Image::storage_on_device) does.
    ///
    /// # Errors
    /// The driver does not tell the memory's address on the device.
    pub fn storage(self: &Arc<Self>, group: usize) -> Result<Storage, SwitchError> {
        let Range { start, end } = self.groups[group];
        let first = self.driver.host_on_device(self.reading.as_ptr().wrapping_add(start as usize))?;
        let kept = Arc::clone(self);
        // To the host, a device's address is only a number.
        let first = std::ptr::without_provenance_mut(first as usize);
        let data = DataPtr::foreign(first, self.driver.device(), move || drop(kept));
        // SAFETY: `kept` lives as long as kernels read the bytes; all of them are there, and sealed memory is no longer
        // written.
        Ok(unsafe { Storage::from_data_ptr(data, (end - start) as usize, None) })
    }
}

impl Drop for PinnedTables {
    fn drop(&mut self) {
        // Kernels that read the memory must be done before it is unpinned. A device that does not answer reads nothing.
        let _ = self.driver.synchronize();
    }
}
