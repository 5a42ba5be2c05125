//! Images of models in host memory, within a budget.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_device::Driver;
use tenure_tier::FileReader;

use crate::{Image, Manifest, SwitchError};

/// A cache of images in memory. When other images need room, unused images leave, the least recently used first. Images
/// are never written, so an image that left is loaded again from its origin.
pub struct Images {
    reader: FileReader,
    /// The driver that pins the images.
    driver: Option<Arc<dyn Driver>>,
    budget_bytes: u64,
    cached: Mutex<CachedImages>,
    /// Notified when an image was forgotten.
    freed: Condvar,
}

/// The images of a cache, and their counts.
#[derive(Default)]
struct CachedImages {
    /// The images, by the address of their manifest, which the image keeps.
    images: HashMap<usize, CachedImage>,
    /// The bytes of all images.
    bytes: u64,
    /// The number of calls of [`Images::acquire`], which serves as the clock of last uses.
    uses: u64,
    statistics: ImageStatistics,
}

/// An image, and when it was last acquired.
struct CachedImage {
    image: Arc<Image>,
    /// The number of the last use.
    last_use: u64,
}

/// The counts of images, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStatistics {
    /// The bytes in memory now.
    pub bytes: u64,
    /// The most bytes in memory at once.
    pub peak_bytes: u64,
    /// The bytes of images that were loaded.
    pub loaded_bytes: u64,
    /// The bytes of images that were removed to make room for others.
    pub evicted_bytes: u64,
}

impl Images {
    /// Creates a cache of at most `budget_bytes` bytes of images, pinned by `driver` if there is one. All devices of
    /// this process can copy from memory that one driver pinned.
    ///
    /// # Errors
    /// No threads can be started to read files.
    pub fn new(budget_bytes: u64, driver: Option<Arc<dyn Driver>>) -> Result<Self, SwitchError> {
        let reader = FileReader::start().map_err(|source| SwitchError::Reader { source: Arc::new(source) })?;
        Ok(Self { reader, driver, budget_bytes, cached: Mutex::default(), freed: Condvar::new() })
    }

    /// Returns the image of a model: the one in memory, or a new one, which begins to load. An image stays in memory at
    /// least as long as the caller has it.
    ///
    /// # Errors
    /// [`SwitchError::NoHostRoom`], also if the image is larger than the budget; those of [`Image::load`].
    pub fn acquire(&self, manifest: &Arc<Manifest>) -> Result<Arc<Image>, SwitchError> {
        self.acquire_within(manifest, Duration::ZERO)
    }

    /// Acquires an image, and waits up to `patience` for room that other threads are about to give back by
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire). It does not wait for an image larger than the budget.
    pub fn acquire_within(&self, manifest: &Arc<Manifest>, patience: Duration) -> Result<Arc<Image>, SwitchError> {
        let key = key(manifest);
        let mut cached = self.cached.lock();
        cached.uses += 1;
        let last_use = cached.uses;
        if let Some(used) = cached.images.get_mut(&key).filter(|used| used.image.failure().is_none()) {
            used.last_use = last_use;
            return Ok(Arc::clone(&used.image));
        }
        // An image that could not be read is tried again.
        cached.remove(key);
        let end = Instant::now() + patience;
        while let Err(error) = cached.make_room(manifest, self.budget_bytes) {
            if manifest.bytes() > self.budget_bytes || self.freed.wait_until(&mut cached, end).timed_out() {
                return Err(error);
            }
        }
        let image = Arc::new(Image::load(manifest, &self.reader, self.driver.as_ref())?);
        cached.bytes += manifest.bytes();
        cached.statistics.loaded_bytes += manifest.bytes();
        cached.statistics.peak_bytes = cached.statistics.peak_bytes.max(cached.bytes);
        cached.images.insert(key, CachedImage { image: Arc::clone(&image), last_use });
        Ok(image)
    }

    /// Removes a model's image from the cache. Its memory is freed when its last user drops it.
    pub fn forget(&self, manifest: &Arc<Manifest>) {
        self.cached.lock().remove(key(manifest));
        self.freed.notify_all();
    }

    /// Returns whether a model's image is in memory, or loading.
    pub fn has(&self, manifest: &Arc<Manifest>) -> bool {
        self.cached.lock().images.contains_key(&key(manifest))
    }

    /// Returns the counts of images so far.
    pub fn statistics(&self) -> ImageStatistics {
        let cached = self.cached.lock();
        ImageStatistics { bytes: cached.bytes, ..cached.statistics }
    }
}

impl CachedImages {
    /// Removes an image, and returns its bytes if there was one.
    fn remove(&mut self, key: usize) -> Option<u64> {
        let bytes = self.images.remove(&key)?.image.manifest().bytes();
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Removes unused images, the least recently used first, until an image of this manifest fits in the budget.
    fn make_room(&mut self, manifest: &Manifest, budget: u64) -> Result<(), SwitchError> {
        let needed = manifest.bytes();
        let mut idle: Vec<_> = self.images.iter().filter(|(_, used)| Arc::strong_count(&used.image) == 1).collect();
        let idle_bytes: u64 = idle.iter().map(|(_, used)| used.image.manifest().bytes()).sum();
        let held = self.bytes - idle_bytes;
        if needed > budget.saturating_sub(held) {
            return Err(SwitchError::NoHostRoom { model: manifest.name().into(), needed, budget, held });
        }
        idle.sort_unstable_by_key(|(_, used)| used.last_use);
        let leaving: Vec<usize> = idle.into_iter().map(|(key, _)| *key).collect();
        for key in leaving {
            if needed <= budget - self.bytes {
                break;
            }
            self.statistics.evicted_bytes += self.remove(key).unwrap_or(0);
        }
        Ok(())
    }
}

/// Returns the key of a model's image.
fn key(manifest: &Arc<Manifest>) -> usize {
    Arc::as_ptr(manifest).addr()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;

    use tenure_core::Storage;
    use tenure_device::sim::{SimConfig, SimDriver};
    use tenure_tier::SourceFile;

    use super::*;
    use crate::{Entry, Origin};

    const MIB: u64 = 1 << 20;

    fn made(name: &str, bytes: u64, value: u8) -> Arc<Manifest> {
        let origin = Origin::Made(Arc::new(move |bytes: &mut [u8]| bytes.fill(value)));
        let entries = vec![Entry { name: "weight".into(), bytes, origin }];
        Arc::new(Manifest::new(name, entries, vec![1]).unwrap())
    }

    fn in_file(path: &Path, contents: &[u8], ends: Vec<usize>) -> Arc<Manifest> {
        fs::write(path, contents).unwrap();
        let source = Arc::new(SourceFile::open(path).unwrap());
        // In a different order than in the file.
        let entry = |begin: usize, end: usize| {
            let origin = Origin::File(Arc::clone(&source), begin as u64);
            Entry { name: format!("{begin}"), bytes: (end - begin) as u64, origin }
        };
        let half = contents.len() / 2 + 3;
        let entries = vec![entry(half, contents.len()), entry(0, 0), entry(0, half)];
        Arc::new(Manifest::new("in_file", entries, ends).unwrap())
    }

    fn read(image: &Image, entry: usize) -> Vec<u8> {
        let manifest = image.manifest();
        let group = image.manifest().group_of(entry);
        let start = image.wait(group).unwrap();
        let place = manifest.place(entry);
        let begin = (place.start - manifest.groups()[group].start) as usize;
        // SAFETY: the group is there, and no thread writes it.
        unsafe { std::slice::from_raw_parts(start.add(begin), (place.end - place.start) as usize) }.to_vec()
    }

    #[test]
    fn images_have_what_files_have_in_the_order_that_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..3_000_007_u32).map(|byte| ((byte * 31) >> 3) as u8).collect();
        let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
        for (driver, ends) in [(None, vec![3]), (Some(driver), vec![1, 1, 3])] {
            let images = Images::new(8 * MIB, driver).unwrap();
            let manifest = in_file(&folder.path().join("weights"), &contents, ends);
            let image = images.acquire(&manifest).unwrap();
            let half = contents.len() / 2 + 3;
            assert!(read(&image, 0) == contents[half..] && read(&image, 1).is_empty());
            assert!(read(&image, 2) == contents[..half]);
            assert!(Arc::ptr_eq(&image, &images.acquire(&manifest).unwrap()));
        }
    }

    #[test]
    fn a_storage_is_a_group_that_is_waited_for_when_it_is_used_and_is_this_processs_own() {
        let folder = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..3_000_007_u32).map(|byte| (byte >> 5) as u8).collect();
        let manifest = in_file(&folder.path().join("weights"), &contents, vec![1, 3]);
        let images = Images::new(8 * MIB, None).unwrap();
        let image = images.acquire(&manifest).unwrap();
        let storages = [0, 1].map(|group| image.storage(group));
        let bytes = |storage: &Storage| {
            let guard = storage.lock();
            // SAFETY: the guard waited for the group, and no thread writes it.
            unsafe { guard.as_slice() }.to_vec()
        };
        assert!(bytes(&storages[1])[..contents.len() / 2 + 3] == contents[..contents.len() / 2 + 3]);
        let (told, outcome) = mpsc::channel();
        image.when_read(move |outcome| told.send(outcome.unwrap()).unwrap());
        assert_eq!(Some(outcome.recv().unwrap()), image.read_time());
        image.wait_for_all().unwrap();
        let [first, second] = image.first_uses()[..] else { panic!("two groups") };
        assert!(first.is_none() && second.is_some());
        // SAFETY: no other code uses it.
        unsafe { storages[0].lock_exclusive().as_ptr().write(!contents[contents.len() / 2 + 3]) };
        assert_ne!(bytes(&storages[0])[0], contents[contents.len() / 2 + 3]);
        drop((image, images));
        assert!(bytes(&storages[1])[..3] == contents[..3]);
    }

    #[test]
    fn a_group_that_cannot_be_read_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let contents = vec![5; 2 << 20];
        let manifest = in_file(&path, &contents, vec![1, 3]);
        fs::File::options().write(true).open(&path).unwrap().set_len(17).unwrap();
        let image = Images::new(8 * MIB, None).unwrap().acquire(&manifest).unwrap();
        for group in [0, 1] {
            drop(image.storage(group).lock());
        }
        let (told, outcome) = mpsc::channel();
        image.when_read(move |outcome| told.send(outcome.is_err()).unwrap());
        assert!(outcome.recv().unwrap());
        assert!(image.wait_for_all().is_err() && image.read_time().is_none());
    }

    #[test]
    fn unused_images_leave_and_the_budget_is_kept() {
        let images = Images::new(3 * MIB, None).unwrap();
        let models: Vec<_> = (0..4).map(|value| made(&format!("m{value}"), MIB, value)).collect();
        let first = images.acquire(&models[0]).unwrap();
        for model in &models[1..3] {
            drop(images.acquire(model).unwrap());
        }
        drop(images.acquire(&models[1]).unwrap());
        // Of the unused images, 2 was used longest ago.
        assert!(read(&images.acquire(&models[3]).unwrap(), 0)[0] == 3);
        assert_eq!(
            images.statistics(),
            ImageStatistics { bytes: 3 * MIB, peak_bytes: 3 * MIB, loaded_bytes: 4 * MIB, evicted_bytes: MIB }
        );
        let said = images.acquire(&made("large", 2 * MIB + 1, 0)).err().unwrap().to_string();
        assert!(said.contains("large") && said.contains("1048576 are in use"), "{said}");
        assert_eq!(images.statistics().bytes, 3 * MIB, "nothing left for one that has no room");
        drop(first);
        assert!(images.acquire(&made("large", 2 * MIB + 1, 0)).is_ok());
        images.forget(&models[0]);
    }

    #[test]
    fn room_that_others_give_back_is_waited_for() {
        let images = Images::new(MIB, None).unwrap();
        let [first, second] = ["first", "second"].map(|name| made(name, MIB, 1));
        let image = images.acquire(&first).unwrap();
        assert!(matches!(images.acquire(&second), Err(SwitchError::NoHostRoom { .. })));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| images.acquire_within(&second, Duration::from_secs(300)));
            drop(image);
            images.forget(&first);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert!(images.acquire_within(&made("large", MIB + 1, 0), Duration::from_secs(1 << 20)).is_err());
    }

    #[test]
    fn an_image_that_cannot_be_read_is_reported_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let contents = vec![5; 2 << 20];
        let manifest = in_file(&path, &contents, vec![1, 3]);
        let images = Images::new(8 * MIB, None).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(MIB + 17).unwrap();
        let image = images.acquire(&manifest).unwrap();
        let said = image.wait_for_all().unwrap_err().to_string();
        assert!(said.contains("in_file: its weights cannot be read") && said.contains("it was cut"), "{said}");
        drop(image);
        fs::write(&path, &contents).unwrap();
        let image = images.acquire(&manifest).unwrap();
        image.wait_for_all().unwrap();
        assert_eq!(images.statistics().bytes, manifest.bytes());
    }
}
