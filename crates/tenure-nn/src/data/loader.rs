//! The data loader: worker threads read batches ahead of their use.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tenure_core::Context;
use tenure_tensor::random::Generator;
use tenure_tensor::{Device, Upload, Uploader};

use super::{Collate, DataError, Dataset, Result, Tensors};
use crate::panics::caught;

/// Settings of a [`DataLoader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// The number of examples in a batch.
    pub batch_size: usize,
    /// The seed for shuffling the examples, in another order in each epoch. `None` keeps the data set's order.
    pub shuffle: Option<u64>,
    /// Whether the last batch of an epoch is dropped if it has fewer than `batch_size` examples.
    pub drop_last: bool,
    /// The number of worker threads that read batches. With 0, the caller's thread reads each batch when it asks for
    /// it.
    pub workers: usize,
    /// The number of batches that each worker may read ahead.
    pub prefetch: usize,
    /// The device of the batches. They are copied to a CUDA device through pinned memory, while it computes.
    pub device: Device,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { batch_size: 1, shuffle: None, drop_last: false, workers: 1, prefetch: 2, device: Device::CPU }
    }
}

/// A loader that makes batches of a data set. PyTorch's `DataLoader`, with threads.
///
/// The examples of a batch depend only on the seed and the epoch: neither on the number of workers nor on earlier
/// reads. So an interrupted run continues with [`epoch`](Self::epoch).
pub struct DataLoader<D> {
    dataset: Arc<D>,
    options: LoaderOptions,
    share: BatchShare,
    uploads: Arc<BatchUploader>,
}

/// The part of each batch that a loader reads: part number `rank` of `of` consecutive parts of nearly equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BatchShare {
    rank: usize,
    of: usize,
}

impl BatchShare {
    const WHOLE: Self = Self { rank: 0, of: 1 };

    /// Returns the range of this part in a batch of `examples` examples. The first parts take the remainder, one
    /// example each.
    fn part(self, examples: usize) -> Range<usize> {
        let least = examples / self.of;
        let over = examples % self.of;
        let begin = self.rank * least + self.rank.min(over);
        begin..begin + least + usize::from(self.rank < over)
    }
}

/// One device's part of a batch.
pub(crate) struct Part<B> {
    /// The examples as a batch; `None` if the part is empty.
    pub(crate) batch: Option<B>,
    /// The number of examples in the part.
    pub(crate) examples: usize,
    /// The number of examples in the whole batch.
    pub(crate) of: usize,
}

impl<B> Part<B> {
    /// Returns the batch, for loaders whose parts are whole batches and so never empty.
    pub(crate) fn whole(self) -> Result<B> {
        self.batch.ok_or_else(|| DataError::Bytes("a batch has no example".into()))
    }
}

impl<D: Dataset + 'static> DataLoader<D> {
    /// Makes a loader of this data set.
    pub fn new(dataset: D, options: LoaderOptions) -> Self {
        Self {
            dataset: Arc::new(dataset),
            share: BatchShare::WHOLE,
            uploads: BatchUploader::new(options.device),
            options,
        }
    }

    /// Makes a loader of one part of each batch, for another device. Its batches may be empty: read them with
    /// [`next_part`](Epoch::next_part).
    pub(crate) fn share(&self, rank: usize, of: usize, device: Device) -> Self {
        let options = LoaderOptions { device, ..self.options };
        Self {
            dataset: Arc::clone(&self.dataset),
            options,
            share: BatchShare { rank, of },
            uploads: BatchUploader::new(device),
        }
    }

    /// Returns the data set.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Returns the number of batches in an epoch.
    pub fn batches(&self) -> usize {
        let examples = self.dataset.len();
        let size = self.options.batch_size.max(1);
        if self.options.drop_last { examples / size } else { examples.div_ceil(size) }
    }

    /// Returns an iterator over the batches of epoch number `epoch`, from batch `first` on. Its workers begin to read
    /// at once, and stop when it is dropped.
    pub fn epoch(&self, epoch: u64, first: usize) -> Epoch<D> {
        let LoaderOptions { batch_size, shuffle, workers, prefetch, .. } = self.options;
        // There is no use in more workers, or more batches read ahead, than there are batches left.
        let left = self.batches().saturating_sub(first);
        let workers = workers.min(left);
        let prefetch = prefetch.min(left);
        let order = order(self.dataset.len(), shuffle.map(|seed| (seed, epoch)));
        let batches = EpochBatches {
            dataset: Arc::clone(&self.dataset),
            epoch,
            order,
            batch_size: batch_size.max(1),
            count: self.batches(),
            share: self.share,
            uploads: Arc::clone(&self.uploads),
        };
        let ahead = first + workers * prefetch.max(1);
        let state = LoaderState { taken: first, ahead, idle: 0, ready: BTreeMap::new(), is_over: false };
        let shared =
            Arc::new(LoaderShared { batches, state: Mutex::new(state), read: Condvar::new(), wanted: Condvar::new() });
        let workers = (0..workers).map(|index| {
            let shared = Arc::clone(&shared);
            let context = Context::capture();
            std::thread::Builder::new().name(format!("tenure-data-{index}")).spawn(move || {
                let _context = context.enter();
                shared.read_ahead();
            })
        });
        // If the system refuses a thread, the other workers read its share; without any worker, the caller reads.
        let workers = workers.filter_map(Result::ok).collect();
        Epoch { shared, workers, next: first }
    }
}

/// An iterator over the batches of one epoch, in order.
pub struct Epoch<D: Dataset> {
    shared: Arc<LoaderShared<D>>,
    workers: Vec<JoinHandle<()>>,
    next: usize,
}

impl<D: Dataset> Iterator for Epoch<D> {
    type Item = Result<<D::Item as Collate>::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_part()?.and_then(Part::whole))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.shared.batches.count.saturating_sub(self.next);
        (left, Some(left))
    }
}

impl<D: Dataset> Epoch<D> {
    /// Returns the next batch, as [`next`](Iterator::next) does, for a loader of parts.
    pub(crate) fn next_part(&mut self) -> Option<Result<Part<<D::Item as Collate>::Batch>>> {
        if self.next >= self.shared.batches.count {
            return None;
        }
        let batch = self.next;
        self.next += 1;
        let read = if self.workers.is_empty() { self.shared.batches.read(batch) } else { self.shared.take(batch) };
        let batches = &self.shared.batches;
        let of = batches.examples(batch).len();
        let examples = batches.part(batch).len();
        Some(read.and_then(ReadyBatch::wait).map(|batch| Part { batch, examples, of }))
    }
}

impl<D: Dataset> Drop for Epoch<D> {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.wanted.notify_all();
        // Workers do not panic: a panic of the data set becomes an error of its batch.
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

/// The description of an epoch's batches, with which they are read.
struct EpochBatches<D> {
    dataset: Arc<D>,
    epoch: u64,
    /// The indices of the examples in the epoch's order.
    order: Vec<usize>,
    batch_size: usize,
    /// The number of batches.
    count: usize,
    share: BatchShare,
    uploads: Arc<BatchUploader>,
}

/// The transfer of batches to their device.
struct BatchUploader {
    device: Device,
    /// The uploader, made with the first batch.
    uploader: OnceLock<Uploader>,
}

/// The limit in bytes of pinned memory for batches in transfer.
const PINNED_BYTES: u64 = 4 << 30;

impl BatchUploader {
    fn new(device: Device) -> Arc<Self> {
        Arc::new(Self { device, uploader: OnceLock::new() })
    }

    /// Begins to copy a batch to the device.
    fn start<B: Tensors>(&self, mut batch: B) -> Result<ReadyBatch<B>> {
        let mut uploads = Vec::new();
        if !self.device.is_cpu() {
            let uploader = match self.uploader.get() {
                Some(uploader) => uploader,
                None => {
                    let made = Uploader::new(self.device, PINNED_BYTES)?;
                    // If another worker made one in the meantime, that one is used.
                    self.uploader.get_or_init(|| made)
                }
            };
            batch.change(&mut |tensor| {
                let upload = uploader.upload(tensor)?;
                *tensor = upload.tensor().clone();
                uploads.push(upload);
                Ok(())
            })?;
        }
        Ok(ReadyBatch { batch: Some(batch), uploads })
    }
}

/// A batch that was read and may still be in transfer.
struct ReadyBatch<B> {
    /// The batch; `None` if it has no example.
    batch: Option<B>,
    uploads: Vec<Upload>,
}

impl<B> ReadyBatch<B> {
    /// Makes the calling thread's stream wait for the transfers, and returns the batch.
    fn wait(self) -> Result<Option<B>> {
        self.uploads.into_iter().try_for_each(|upload| upload.take().map(drop))?;
        Ok(self.batch)
    }
}

impl<D: Dataset> EpochBatches<D> {
    /// Returns the examples of a whole batch.
    fn examples(&self, batch: usize) -> &[usize] {
        let end = self.order.len().min((batch + 1) * self.batch_size);
        &self.order[batch * self.batch_size..end]
    }

    /// Returns the part of a batch's examples that this loader reads.
    fn part(&self, batch: usize) -> &[usize] {
        let examples = self.examples(batch);
        &examples[self.share.part(examples.len())]
    }

    /// Reads a batch, and begins to copy it to the device.
    fn read(&self, batch: usize) -> Result<ReadyBatch<<D::Item as Collate>::Batch>> {
        let part = self.part(batch);
        if part.is_empty() {
            return Ok(ReadyBatch { batch: None, uploads: Vec::new() });
        }
        let examples = part.iter().map(|index| self.dataset.item_of_epoch(*index, self.epoch));
        let examples = examples.collect::<Result<Vec<_>>>()?;
        self.uploads.start(D::Item::collate(examples)?)
    }

    /// Reads a batch, and converts a panic into an error, so that the worker continues.
    fn read_caught(&self, batch: usize) -> Result<ReadyBatch<<D::Item as Collate>::Batch>> {
        caught(|| self.read(batch)).unwrap_or_else(|message| Err(DataError::Panicked { batch, message }))
    }
}

/// The state that an epoch shares with its workers.
struct LoaderShared<D: Dataset> {
    batches: EpochBatches<D>,
    state: Mutex<LoaderState<<D::Item as Collate>::Batch>>,
    /// Signals that a batch is ready.
    read: Condvar,
    /// Signals that another batch may be read, or that the epoch is over.
    wanted: Condvar,
}

struct LoaderState<B> {
    /// The first batch that no worker has begun.
    taken: usize,
    /// The first batch that no worker may begin yet.
    ahead: usize,
    /// The number of workers that wait until they may read a batch.
    idle: usize,
    /// The batches that were read and not yet returned.
    ready: BTreeMap<usize, Result<ReadyBatch<B>>>,
    is_over: bool,
}

impl<D: Dataset> LoaderShared<D> {
    /// Runs a worker: reads batches until none is left or the epoch is over.
    fn read_ahead(&self) {
        let mut state = self.state.lock();
        while !state.is_over && state.taken < self.batches.count {
            if state.taken >= state.ahead {
                state.idle += 1;
                self.wanted.wait(&mut state);
                state.idle -= 1;
                continue;
            }
            let batch = state.taken;
            state.taken += 1;
            drop(state);
            let result = self.batches.read_caught(batch);
            state = self.state.lock();
            state.ready.insert(batch, result);
            self.read.notify_all();
        }
    }

    /// Waits until a worker has read this batch, and returns it.
    fn take(&self, batch: usize) -> Result<ReadyBatch<<D::Item as Collate>::Batch>> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.ready.remove(&batch) {
                state.ahead += 1;
                self.wanted.notify_one();
                return result;
            }
            self.read.wait(&mut state);
        }
    }
}

/// Returns the order of `count` examples, shuffled by the Fisher-Yates algorithm if there are a seed and
/// an epoch.
fn order(count: usize, shuffle: Option<(u64, u64)>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if let Some((seed, epoch)) = shuffle {
        let generator = generator(seed, epoch);
        for last in (1..count).rev() {
            order.swap(last, below(&generator, last + 1));
        }
    }
    order
}

/// Makes the generator of an epoch. Its seed differs from those of other epochs, also of runs with nearby seeds.
pub(super) fn generator(seed: u64, epoch: u64) -> Generator {
    Generator::new(seed ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Draws a random number below `end`.
pub(super) fn below(generator: &Generator, end: usize) -> usize {
    ((u128::from(generator.next_u64()) * end as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// A data set that counts the examples that were read.
    struct CountingSet(Arc<AtomicUsize>);

    impl Dataset for CountingSet {
        type Item = i64;

        fn len(&self) -> usize {
            1_000_000
        }

        fn item(&self, index: usize) -> Result<i64> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(index as i64)
        }
    }

    #[test]
    fn workers_read_as_far_ahead_as_they_may_and_end_with_the_epoch() {
        const WORKERS: usize = 3;
        let read = Arc::new(AtomicUsize::new(0));
        let options = LoaderOptions { batch_size: 4, workers: WORKERS, prefetch: 2, ..LoaderOptions::default() };
        let loader = DataLoader::new(CountingSet(Arc::clone(&read)), options);
        let mut epoch = loader.epoch(0, 0);
        let ahead = WORKERS * 2;
        for taken in 1..=5 {
            epoch.next().unwrap().unwrap();
            let begun = Instant::now();
            loop {
                let state = epoch.shared.state.lock();
                // A woken worker counts as idle until it runs, and may then read a batch that no worker has begun.
                if state.idle == WORKERS && state.taken >= state.ahead {
                    break;
                }
                drop(state);
                assert!(begun.elapsed() < Duration::from_secs(300), "workers do not end: {read:?}");
                thread::yield_now();
            }
            assert_eq!(read.load(Ordering::SeqCst), 4 * (taken + ahead));
        }
        drop(epoch);
        assert_eq!(read.load(Ordering::SeqCst), 4 * (5 + ahead));
    }
}
