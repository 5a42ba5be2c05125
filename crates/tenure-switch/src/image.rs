//! Images: the weights of models in host memory, and manifests, which describe them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{DataPtr, Device, Storage};
use tenure_device::Driver;
use tenure_device::pinned::{Draft, Reading, Sealed};
use tenure_tier::{FilePart, FileReader, SourceFile};

use crate::SwitchError;
use crate::progress::{Arrived, FirstUse, ImageGroup, Progress};

/// The alignment of every tensor in an image, in bytes, so that kernels read it in their widest words.
pub const ALIGNMENT: u64 = 256;

/// A function that writes all of a tensor's bytes.
pub type WriteTensor = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// The origin of a tensor's bytes.
#[derive(Clone)]
pub enum Origin {
    /// A file, and the offset in it.
    File(Arc<SourceFile>, u64),
    /// A function that writes them.
    Made(WriteTensor),
}

/// A tensor of a model.
#[derive(Clone)]
pub struct Entry {
    /// The name, for error messages.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The origin of the bytes.
    pub origin: Origin,
}

/// A description of an image: tensors in the order in which they are needed, in groups. The tensors of a group are read
/// together.
pub struct Manifest {
    /// The name, for error messages.
    name: String,
    entries: Vec<Entry>,
    /// The offset of each tensor in the image, in bytes.
    offsets: Vec<u64>,
    /// The byte range of each group in the image.
    groups: Vec<Range<u64>>,
    /// The index after each group's last tensor.
    ends: Vec<usize>,
}

/// A model's weights in sealed host memory: it is written once, and other processes can map it. It is pinned if devices
/// copy from it. It may still be loading.
pub struct Image {
    manifest: Arc<Manifest>,
    sealed: Sealed,
    reading: Reading,
    is_pinned: bool,
    progress: Arc<Progress>,
}

impl Manifest {
    /// Creates a manifest of tensors in the order in which they are needed; `ends` has the index after each group's
    /// last tensor.
    ///
    /// # Errors
    /// The sum of the sizes is larger than any memory.
    ///
    /// # Panics
    /// If `ends` is not sorted, or does not end with the number of tensors.
    pub fn new(name: &str, entries: Vec<Entry>, ends: Vec<usize>) -> Result<Self, SwitchError> {
        assert!(ends.is_sorted() && ends.last().copied().unwrap_or(0) == entries.len(), "groups are of all tensors");
        let too_large = || SwitchError::TooLarge { model: name.into() };
        let mut offsets = Vec::with_capacity(entries.len());
        let mut end = 0_u64;
        for entry in &entries {
            let begin = end.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
            end = begin.checked_add(entry.bytes).filter(|end| *end <= isize::MAX as u64).ok_or_else(too_large)?;
            offsets.push(begin);
        }
        // A group begins where its first tensor does, and ends where the next group begins.
        let bound = |entry: usize| offsets.get(entry).copied().unwrap_or(end);
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let groups = begins.zip(&ends).map(|(begin, &end)| bound(begin)..bound(end)).collect();
        Ok(Self { name: name.into(), entries, offsets, groups, ends })
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the tensors.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the byte range of a tensor in the image.
    pub fn place(&self, entry: usize) -> Range<u64> {
        self.offsets[entry]..self.offsets[entry] + self.entries[entry].bytes
    }

    /// Returns the byte range of each group, in order and without gaps.
    pub fn groups(&self) -> &[Range<u64>] {
        &self.groups
    }

    /// Returns the group of a tensor.
    pub fn group_of(&self, entry: usize) -> usize {
        self.ends.partition_point(|end| *end <= entry)
    }

    /// Returns the size of the whole image in bytes.
    pub fn bytes(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.end)
    }
}

impl Image {
    /// Allocates memory for an image, and begins to read it in the order of its groups. Tensors that functions write
    /// are complete when this returns.
    ///
    /// # Errors
    /// There is no memory; the driver does not pin it. If a file cannot be read, [`wait`](Self::wait) reports it.
    pub fn load(
        manifest: &Arc<Manifest>,
        reader: &FileReader,
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
            let progress = Arc::clone(&progress);
            let manifest = Arc::clone(manifest);
            reader.read(&parts, draft, move |_, result| {
                let result =
                    result.map_err(|source| SwitchError::Read { model: manifest.name.clone(), source: source.into() });
                progress.arrived(index, result);
            });
        }
        Ok(Self { manifest: Arc::clone(manifest), sealed, reading, is_pinned: driver.is_some(), progress })
    }

    /// Returns the manifest of the image.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Returns the memory, to send to another process.
    pub fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// Waits until a group is loaded, and returns the address of its first byte.
    ///
    /// # Errors
    /// The group could not be read.
    pub fn wait(&self, group: usize) -> Result<*const u8, SwitchError> {
        self.progress.wait(group)?;
        let begin = self.manifest.groups[group].start as usize;
        Ok(self.reading.as_ptr().wrapping_add(begin))
    }

    /// Waits until the whole image is loaded.
    ///
    /// # Errors
    /// Some of it could not be read.
    pub fn wait_for_all(&self) -> Result<(), SwitchError> {
        (0..self.manifest.groups.len()).try_for_each(|group| self.wait(group).map(drop))
    }

    /// Returns the bytes of a group as a storage of the CPU, which keeps the image. A thread that uses them waits until
    /// they are there. If they could not be read, their contents are arbitrary, and [`wait`](Self::wait) reports the
    /// error. Writes of this process do not reach the image in other processes.
    ///
    /// # Panics
    /// If the image is pinned.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        assert!(!self.is_pinned, "an image that is pinned for devices is not written to");
        let Range { start, end } = self.manifest.groups[group];
        let first = self.reading.as_ptr().wrapping_add(start as usize);
        let image = Arc::clone(self);
        let data = DataPtr::foreign(first.cast_mut(), Device::CPU, move || drop(image));
        // SAFETY: mapped for reading and for this process's own writing as long as the image lives; after a group has
        // arrived, no thread of the reader writes it.
        unsafe { Storage::arriving(data, (end - start) as usize, ImageGroup::new(&self.progress, group)) }
    }

    /// Returns the bytes of a group as a storage of a device, whose kernels read them in place: each read goes over the
    /// link, and the device has no copy. A use of the storage waits until the bytes are there. The storage keeps the
    /// image alive, and is for reading only. All work that uses it must be done before it is dropped.
    ///
    /// # Errors
    /// The driver knows no address of it on the device.
    ///
    /// # Panics
    /// If the image is not pinned.
    pub fn storage_on_device(self: &Arc<Self>, group: usize, driver: &dyn Driver) -> Result<Storage, SwitchError> {
        assert!(self.is_pinned, "an image that is pinned for devices");
        let Range { start, end } = self.manifest.groups[group];
        let first = driver.host_on_device(self.reading.as_ptr().wrapping_add(start as usize))?;
        let image = Arc::clone(self);
        // To the host, a device's address is only a number.
        let first = std::ptr::without_provenance_mut(first as usize);
        let data = DataPtr::foreign(first, driver.device(), move || drop(image));
        // SAFETY: the image lives as long as kernels read it; after a group has arrived, no thread writes it.
        Ok(unsafe { Storage::arriving(data, (end - start) as usize, ImageGroup::new(&self.progress, group)) })
    }

    /// Returns when each group's [storage](Self::storage) was first used.
    pub fn first_uses(&self) -> Vec<Option<FirstUse>> {
        self.progress.first_uses()
    }

    /// Calls `done` when reading is over: at once, or on a thread of the reader, which it must not hold up for long.
    pub fn when_read(&self, done: impl FnOnce(Result<Duration, SwitchError>) + Send + 'static) {
        self.progress.when_over(done);
    }

    /// Calls `watch` for each group whose reading is over, whether it succeeded or failed: for those that are over now,
    /// and later for each other one. `watch` is called under a lock, and must not use the image.
    pub fn watch(&self, watch: impl FnMut(&[Arrived]) + Send + 'static) {
        self.progress.watch(watch);
    }

    /// Returns the time it took until the whole image was loaded, or `None` before that.
    pub fn read_time(&self) -> Option<Duration> {
        self.progress.took()
    }

    /// Returns why some of it could not be read, if so.
    pub fn failure(&self) -> Option<SwitchError> {
        self.progress.error()
    }
}

impl Manifest {
    /// Writes those tensors of a group whose bytes come from functions, and returns the parts whose bytes come from
    /// files.
    fn fill(&self, group: usize, draft: &mut Draft) -> Vec<FilePart> {
        let start = self.groups[group].start;
        let begin = group.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut parts = Vec::new();
        for index in begin..self.ends[group] {
            let place = self.place(index);
            let to = (place.start - start) as usize..(place.end - start) as usize;
            match &self.entries[index].origin {
                Origin::File(source, offset) => {
                    parts.push(FilePart { source: Arc::clone(source), offset: *offset, to })
                }
                Origin::Made(make) => make(&mut draft.as_mut()[to]),
            }
        }
        parts
    }
}
