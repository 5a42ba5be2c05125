//! A model's weights in the host's memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{DataPtr, Device, Storage};
use tenure_device::Driver;
use tenure_device::pinned::{Draft, Reading, Sealed};
use tenure_tier::{Part, Reader, Source};

use crate::SwitchError;
use crate::progress::{Arrived, Coming, FirstUse, Progress};

/// What every tensor of an image begins at a multiple of, so that kernels read it in their widest words.
pub const ALIGNMENT: u64 = 256;

/// Writes all of a tensor's bytes.
pub type Make = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Where a tensor's bytes come from.
#[derive(Clone)]
pub enum Origin {
    /// A file has them, from a byte on.
    File(Arc<Source>, u64),
    /// A function writes them.
    Made(Make),
}

/// A tensor of a model.
#[derive(Clone)]
pub struct Entry {
    /// For errors.
    pub name: String,
    /// How many.
    pub bytes: u64,
    /// Where they come from.
    pub origin: Origin,
}

/// What an image is made of: tensors in the order in which they are needed, in groups that are brought together.
pub struct Manifest {
    /// For errors.
    name: String,
    entries: Vec<Entry>,
    /// Where each begins in the image.
    offsets: Vec<u64>,
    /// Of the image.
    groups: Vec<Range<u64>>,
    /// The entry behind each group's last.
    ends: Vec<usize>,
}

/// A model's weights, once, for good: in memory that is sealed, pinned if devices are to have them. It may be on its way there.
pub struct Image {
    manifest: Arc<Manifest>,
    sealed: Sealed,
    reading: Reading,
    is_pinned: bool,
    progress: Arc<Progress>,
}

impl Manifest {
    /// Tensors in the order in which they are needed; `ends` has the tensor behind each group's last.
    ///
    /// # Errors
    /// Sizes whose sum no memory has.
    ///
    /// # Panics
    /// `ends` does not divide the tensors.
    pub fn new(name: &str, entries: Vec<Entry>, ends: Vec<usize>) -> Result<Self, SwitchError> {
        assert!(ends.is_sorted() && ends.last().copied().unwrap_or(0) == entries.len(), "groups are of all tensors");
        let too_large = || SwitchError::TooLarge { model: name.into() };
        let (mut offsets, mut end) = (Vec::with_capacity(entries.len()), 0_u64);
        for entry in &entries {
            let begin = end.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
            end = begin.checked_add(entry.bytes).filter(|end| *end <= isize::MAX as u64).ok_or_else(too_large)?;
            offsets.push(begin);
        }
        let bound = |entry: usize| offsets.get(entry).copied().unwrap_or(end);
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let groups = begins.zip(&ends).map(|(begin, &end)| bound(begin)..bound(end)).collect();
        Ok(Self { name: name.into(), entries, offsets, groups, ends })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensors.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Where a tensor lies in the image.
    pub fn place(&self, entry: usize) -> Range<u64> {
        self.offsets[entry]..self.offsets[entry] + self.entries[entry].bytes
    }

    /// Bytes of the image that come together, in their order, without a gap.
    pub fn groups(&self) -> &[Range<u64>] {
        &self.groups
    }

    /// The group that a tensor is in.
    pub fn group_of(&self, entry: usize) -> usize {
        self.ends.partition_point(|end| *end <= entry)
    }

    /// Bytes of the whole image.
    pub fn bytes(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.end)
    }
}

impl Image {
    /// Takes memory for an image, and begins to read it, in the order of its groups. Functions have written theirs when this
    /// returns.
    ///
    /// # Errors
    /// No memory; the driver does not pin it. That a file cannot be read is told by [`wait`](Self::wait).
    pub fn load(
        manifest: &Arc<Manifest>,
        reader: &Reader,
        driver: Option<&Arc<dyn Driver>>,
    ) -> Result<Self, SwitchError> {
        let (sealed, mut draft) = Sealed::new(&manifest.name, manifest.bytes())?;
        let reading = match driver {
            Some(driver) => sealed.pin(Arc::clone(driver))?,
            None => sealed.map_private()?,
        };
        let progress = Arc::new(Progress::new(manifest.groups.len()));
        for (index, group) in manifest.groups.iter().enumerate() {
            let mut draft = draft.take((group.end - group.start) as usize);
            let parts = manifest.fill(index, &mut draft);
            let (progress, manifest) = (Arc::clone(&progress), Arc::clone(manifest));
            reader.read(&parts, draft, move |_, result| {
                let result =
                    result.map_err(|source| SwitchError::Read { model: manifest.name.clone(), source: source.into() });
                progress.arrived(index, result);
            });
        }
        Ok(Self { manifest: Arc::clone(manifest), sealed, reading, is_pinned: driver.is_some(), progress })
    }

    /// What it is made of.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The memory, to be sent to another process.
    pub fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// Waits until a group is there, and returns its first byte.
    ///
    /// # Errors
    /// It could not be read.
    pub fn wait(&self, group: usize) -> Result<*const u8, SwitchError> {
        self.progress.wait(group)?;
        let begin = self.manifest.groups[group].start as usize;
        Ok(self.reading.as_ptr().wrapping_add(begin))
    }

    /// Waits until all of it is there.
    ///
    /// # Errors
    /// It could not be read.
    pub fn wait_for_all(&self) -> Result<(), SwitchError> {
        (0..self.manifest.groups.len()).try_for_each(|group| self.wait(group).map(drop))
    }

    /// The bytes of a group as a storage of the CPU, which keeps the image. Whoever uses them waits until they are there; if they
    /// could not be read, they are any bytes, and [`wait`](Self::wait) says why. What this process writes to them, the image
    /// of no other has.
    ///
    /// # Panics
    /// The image is pinned.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        assert!(!self.is_pinned, "an image that is pinned for devices is not written to");
        let Range { start, end } = self.manifest.groups[group];
        let (first, image) = (self.reading.as_ptr().wrapping_add(start as usize), Arc::clone(self));
        let data = DataPtr::foreign(first.cast_mut(), Device::CPU, move || drop(image));
        // SAFETY: mapped for reading and writing of this process's own as long as there is the image; what has arrived, nobody
        // writes any more.
        unsafe { Storage::arriving(data, (end - start) as usize, Coming::new(&self.progress, group)) }
    }

    /// The bytes of a group as a storage of a device, whose kernels read them in place: over the link, a read at a time, with no
    /// copy on the device. Its use waits until they are there. It keeps the image, and is to be read only; what was launched
    /// with it must be done when it goes.
    ///
    /// # Errors
    /// The driver knows no address of it.
    ///
    /// # Panics
    /// The image is not pinned.
    pub fn storage_on_device(self: &Arc<Self>, group: usize, driver: &dyn Driver) -> Result<Storage, SwitchError> {
        assert!(self.is_pinned, "an image that is pinned for devices");
        let Range { start, end } = self.manifest.groups[group];
        let first = driver.host_on_device(self.reading.as_ptr().wrapping_add(start as usize))?;
        let image = Arc::clone(self);
        // A device's address is a number to the host, which never follows it.
        let first = std::ptr::without_provenance_mut(first as usize);
        let data = DataPtr::foreign(first, driver.device(), move || drop(image));
        // SAFETY: kernels read it as long as there is the image; what has arrived, nobody writes any more.
        Ok(unsafe { Storage::arriving(data, (end - start) as usize, Coming::new(&self.progress, group)) })
    }

    /// When each group's [storage](Self::storage) was used first.
    pub fn first_uses(&self) -> Vec<Option<FirstUse>> {
        self.progress.first_uses()
    }

    /// Calls `done` when nothing more of it is read: at once, or on a thread of the reader, which it should not keep for long.
    pub fn when_read(&self, done: impl FnOnce(Result<Duration, SwitchError>) + Send + 'static) {
        self.progress.when_over(done);
    }

    /// Tells of groups that come no more: of those that do not now, and later of each other one. `watch` is called under a lock,
    /// and must not use the image.
    pub fn watch(&self, watch: impl FnMut(&[Arrived]) + Send + 'static) {
        self.progress.watch(watch);
    }

    /// How long it took until all of it was there; nothing before.
    pub fn read_time(&self) -> Option<Duration> {
        self.progress.took()
    }

    /// Why some of it could not be read, if that is so.
    pub fn failure(&self) -> Option<SwitchError> {
        self.progress.error()
    }
}

impl Manifest {
    /// Writes what functions make of a group, and returns what files have of it.
    fn fill(&self, group: usize, draft: &mut Draft) -> Vec<Part> {
        let start = self.groups[group].start;
        let begin = group.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut parts = Vec::new();
        for index in begin..self.ends[group] {
            let place = self.place(index);
            let to = (place.start - start) as usize..(place.end - start) as usize;
            match &self.entries[index].origin {
                Origin::File(source, offset) => parts.push(Part { source: Arc::clone(source), offset: *offset, to }),
                Origin::Made(make) => make(&mut draft.as_mut()[to]),
            }
        }
        parts
    }
}
