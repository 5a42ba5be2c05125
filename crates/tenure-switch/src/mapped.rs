//! Another process's image, mapped in this process.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tenure_core::{DataPtr, Device, Storage};
use tenure_device::pinned::{Reading, Sealed};

use crate::SwitchError;
use crate::progress::{Arrived, FirstUse, ImageGroup, Progress};

/// The memory of another process's [`Image`](crate::Image), mapped here. That process reports which groups are there.
pub struct Mapped {
    /// The model's name, for error messages.
    model: String,
    reading: Reading,
    groups: Vec<Range<u64>>,
    progress: Arc<Progress>,
}

impl Mapped {
    /// Maps the memory of an [`Image::sealed`](crate::Image::sealed), whose manifest has these groups. No group counts
    /// as arrived yet.
    ///
    /// # Errors
    /// The memory is not sealed, or does not cover all groups; there are no addresses.
    pub fn receive(model: &str, memory: OwnedFd, groups: Vec<Range<u64>>) -> Result<Self, SwitchError> {
        let sealed = Sealed::receive(memory)?;
        if !groups.iter().all(|group| group.start <= group.end && group.end <= sealed.bytes()) {
            return Err(SwitchError::TooLarge { model: model.into() });
        }
        let progress = Arc::new(Progress::new(groups.len()));
        Ok(Self { model: model.into(), reading: sealed.map_private()?, groups, progress })
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Records that the other process reported a group's arrival, or its failure.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn arrived(&self, Arrived { group, is_there }: Arrived) {
        self.progress
            .arrived(group, is_there.then_some(()).ok_or_else(|| SwitchError::NotSent { model: self.model.clone() }));
    }

    /// Returns the bytes of a group as a storage of the CPU, as [`Image::storage`](crate::Image::storage) does.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        let Range { start, end } = self.groups[group];
        let first = self.reading.as_ptr().wrapping_add(start as usize);
        let mapped = Arc::clone(self);
        let data = DataPtr::foreign(first.cast_mut(), Device::CPU, move || drop(mapped));
        // SAFETY: within memory that is mapped for reading and for this process's own writing as long as `mapped`
        // lives; a group that has arrived is no longer written, as its image's process promises.
        unsafe { Storage::arriving(data, (end - start) as usize, ImageGroup::new(&self.progress, group)) }
    }

    /// Returns when each group's storage was first used.
    pub fn first_uses(&self) -> Vec<Option<FirstUse>> {
        self.progress.first_uses()
    }

    /// Returns why some of it did not arrive, if so.
    pub fn failure(&self) -> Option<SwitchError> {
        self.progress.error()
    }

    /// Stops uses: a thread that uses a storage from now on, or waits for one, unwinds with
    /// [`Stopped`](crate::Stopped), without a message. So its computation ends at the next weight that it needs.
    pub fn stop(&self) {
        self.progress.set_stopped(true);
    }

    /// Allows storages to be used again.
    pub fn go_on(&self) {
        self.progress.set_stopped(false);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::{Entry, Images, Manifest, Origin, Stopped};

    fn entry(value: u8) -> Entry {
        Entry { name: "t".into(), bytes: 5000, origin: Origin::Made(Arc::new(move |bytes| bytes.fill(value))) }
    }

    /// Returns an image of two groups, and its memory as another process maps it.
    fn mapped() -> (Arc<crate::Image>, Arc<Mapped>) {
        let manifest = Arc::new(Manifest::new("model", vec![entry(1), entry(2)], vec![1, 2]).unwrap());
        let image = Images::new(1 << 20, None).unwrap().acquire(&manifest).unwrap();
        let memory = std::os::fd::AsFd::as_fd(image.sealed()).try_clone_to_owned().unwrap();
        let mapped = Arc::new(Mapped::receive("model", memory, manifest.groups().to_vec()).unwrap());
        (image, mapped)
    }

    fn first(storage: &Storage) -> u8 {
        // SAFETY: the guard waited for the group, and no thread writes it.
        unsafe { storage.lock().as_slice()[0] }
    }

    #[test]
    fn a_group_is_used_when_the_other_process_says_that_it_is_there() {
        let (image, mapped) = mapped();
        let (told, groups) = mpsc::channel();
        image.watch(move |arrived| arrived.iter().for_each(|arrived| told.send(*arrived).unwrap()));
        let storage = mapped.storage(1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| first(&storage));
            groups.iter().for_each(|arrived| mapped.arrived(arrived));
            assert_eq!(waiting.join().unwrap(), 2);
        });
        drop(image);
        assert_eq!((first(&mapped.storage(0)), mapped.failure().is_none()), (1, true));
        assert!(mapped.first_uses().iter().all(Option::is_some));
    }

    #[test]
    fn failed_groups_are_not_waited_for_and_stopped_threads_unwind() {
        let (_, mapped) = mapped();
        mapped.arrived(Arrived { group: 0, is_there: false });
        first(&mapped.storage(0));
        assert!(mapped.failure().is_some());
        let storage = mapped.storage(1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| catch_unwind(AssertUnwindSafe(|| first(&storage))));
            mapped.stop();
            assert!(waiting.join().unwrap().unwrap_err().is::<Stopped>());
        });
        mapped.go_on();
        mapped.arrived(Arrived { group: 1, is_there: true });
        assert_eq!(first(&storage), 2);
    }

    #[test]
    fn groups_beyond_the_memory_are_refused() {
        let (image, _) = mapped();
        let memory = || std::os::fd::AsFd::as_fd(image.sealed()).try_clone_to_owned().unwrap();
        for group in [0..1 << 20, Range { start: 5000, end: 4000 }] {
            assert!(Mapped::receive("model", memory(), vec![group]).is_err());
        }
    }
}
