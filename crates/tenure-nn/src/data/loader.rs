//! Batches, read ahead by threads.

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

/// How a [`DataLoader`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Examples of one batch.
    pub batch_size: usize,
    /// In another order in each epoch, which this seed decides; else in the data set's.
    pub shuffle: Option<u64>,
    /// A last batch that is not full is left out.
    pub drop_last: bool,
    /// Threads that read; with none, whoever asks for a batch reads it.
    pub workers: usize,
    /// Batches that each thread may be ahead.
    pub prefetch: usize,
    /// Where batches are: a CUDA device gets them through pinned memory, while it computes.
    pub device: Device,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { batch_size: 1, shuffle: None, drop_last: false, workers: 1, prefetch: 2, device: Device::CPU }
    }
}

/// Makes batches of a data set. PyTorch's `DataLoader`, with threads.
///
/// Which examples are in which batch depends on the seed and the epoch, and on nothing else: not on how many workers
/// there are, nor on what was read before. So a run that was interrupted goes on with [`epoch`](Self::epoch).
pub struct DataLoader<D> {
    dataset: Arc<D>,
    options: LoaderOptions,
    share: Share,
    bridge: Arc<Bridge>,
}

/// Which part of each batch: one of several of about the same size, that are the batch one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    rank: usize,
    of: usize,
}

impl Share {
    const WHOLE: Self = Self { rank: 0, of: 1 };

    /// Of so many examples. Those that are left over go to the first parts.
    fn part(self, examples: usize) -> Range<usize> {
        let (least, over) = (examples / self.of, examples % self.of);
        let begin = |rank: usize| rank * least + rank.min(over);
        begin(self.rank)..begin(self.rank + 1)
    }
}

/// A part of a batch.
pub(crate) struct Part<B> {
    /// None if it has no example.
    pub(crate) batch: Option<B>,
    /// Its examples.
    pub(crate) examples: usize,
    /// Those of the whole batch.
    pub(crate) of: usize,
}

impl<B> Part<B> {
    /// The batch of a loader of whole ones.
    pub(crate) fn whole(self) -> Result<B> {
        self.batch.ok_or_else(|| DataError::Bytes("a batch has no example".into()))
    }
}

impl<D: Dataset + 'static> DataLoader<D> {
    /// A loader of this data set.
    pub fn new(dataset: D, options: LoaderOptions) -> Self {
        Self { dataset: Arc::new(dataset), share: Share::WHOLE, bridge: Bridge::to(options.device), options }
    }

    /// A loader of a part of each batch, to another device. Such batches may be empty: read them by
    /// [`next_part`](Epoch::next_part).
    pub(crate) fn share(&self, rank: usize, of: usize, device: Device) -> Self {
        let options = LoaderOptions { device, ..self.options };
        Self { dataset: Arc::clone(&self.dataset), options, share: Share { rank, of }, bridge: Bridge::to(device) }
    }

    /// The data set.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> usize {
        let (examples, size) = (self.dataset.len(), self.options.batch_size.max(1));
        if self.options.drop_last { examples / size } else { examples.div_ceil(size) }
    }

    /// The batches of epoch number `epoch`, from batch `first` on. Workers stop when it is dropped.
    pub fn epoch(&self, epoch: u64, first: usize) -> Epoch<D> {
        let LoaderOptions { batch_size, shuffle, workers, prefetch, .. } = self.options;
        // Nobody reads more than there is.
        let left = self.batches().saturating_sub(first);
        let (workers, prefetch) = (workers.min(left), prefetch.min(left));
        let order = order(self.dataset.len(), shuffle.map(|seed| (seed, epoch)));
        let work = Work {
            dataset: Arc::clone(&self.dataset),
            epoch,
            order,
            batch_size: batch_size.max(1),
            batches: self.batches(),
            share: self.share,
            bridge: Arc::clone(&self.bridge),
        };
        let ahead = first + workers * prefetch.max(1);
        let state = State { taken: first, ahead, idle: 0, ready: BTreeMap::new(), is_over: false };
        let shared = Arc::new(Shared { work, state: Mutex::new(state), read: Condvar::new(), wanted: Condvar::new() });
        let worker = |index| {
            let (shared, context) = (Arc::clone(&shared), Context::capture());
            let work = move || {
                let _context = context.enter();
                shared.read_ahead();
            };
            std::thread::Builder::new().name(format!("tenure-data-{index}")).spawn(work)
        };
        // What a thread that the system does not give would have read, the others read; without any, the caller does.
        let workers = (0..workers).filter_map(|index| worker(index).ok()).collect();
        Epoch { shared, workers, next: first }
    }
}

/// The batches of one epoch, in their order.
pub struct Epoch<D: Dataset> {
    shared: Arc<Shared<D>>,
    workers: Vec<JoinHandle<()>>,
    next: usize,
}

impl<D: Dataset> Iterator for Epoch<D> {
    type Item = Result<<D::Item as Collate>::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_part()?.and_then(Part::whole))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.shared.work.batches.saturating_sub(self.next);
        (left, Some(left))
    }
}

impl<D: Dataset> Epoch<D> {
    /// The same as [`next`](Iterator::next), of a loader of parts.
    pub(crate) fn next_part(&mut self) -> Option<Result<Part<<D::Item as Collate>::Batch>>> {
        if self.next >= self.shared.work.batches {
            return None;
        }
        let batch = self.next;
        self.next += 1;
        let read = if self.workers.is_empty() { self.shared.work.read(batch) } else { self.shared.take(batch) };
        let work = &self.shared.work;
        let (of, examples) = (work.examples(batch).len(), work.part(batch).len());
        Some(read.and_then(Ready::arrive).map(|batch| Part { batch, examples, of }))
    }
}

impl<D: Dataset> Drop for Epoch<D> {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.wanted.notify_all();
        // A worker does not panic: what a data set panics with is an error of its batch.
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

/// What is to be read.
struct Work<D> {
    dataset: Arc<D>,
    epoch: u64,
    order: Vec<usize>,
    batch_size: usize,
    batches: usize,
    share: Share,
    bridge: Arc<Bridge>,
}

/// The way to where batches are wanted.
struct Bridge {
    device: Device,
    /// Made with the first batch.
    uploader: OnceLock<Uploader>,
}

/// Bytes that batches on their way may pin.
const PINNED_BYTES: u64 = 4 << 30;

impl Bridge {
    fn to(device: Device) -> Arc<Self> {
        Arc::new(Self { device, uploader: OnceLock::new() })
    }

    fn send<B: Tensors>(&self, mut batch: B) -> Result<Ready<B>> {
        let mut uploads = Vec::new();
        if !self.device.is_cpu() {
            let uploader = match self.uploader.get() {
                Some(uploader) => uploader,
                None => {
                    let made = Uploader::new(self.device, PINNED_BYTES)?;
                    // Another worker's, if that was faster.
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
        Ok(Ready { batch: Some(batch), uploads })
    }
}

/// A batch that was read, and is on its way.
struct Ready<B> {
    /// None of no examples.
    batch: Option<B>,
    uploads: Vec<Upload>,
}

impl<B> Ready<B> {
    /// For the calling thread's stream, which waits for it.
    fn arrive(self) -> Result<Option<B>> {
        self.uploads.into_iter().try_for_each(|upload| upload.take().map(drop))?;
        Ok(self.batch)
    }
}

impl<D: Dataset> Work<D> {
    /// Those of a whole batch.
    fn examples(&self, batch: usize) -> &[usize] {
        let end = self.order.len().min((batch + 1) * self.batch_size);
        &self.order[batch * self.batch_size..end]
    }

    /// Those that are read of it.
    fn part(&self, batch: usize) -> &[usize] {
        let examples = self.examples(batch);
        &examples[self.share.part(examples.len())]
    }

    fn read(&self, batch: usize) -> Result<Ready<<D::Item as Collate>::Batch>> {
        let part = self.part(batch);
        if part.is_empty() {
            return Ok(Ready { batch: None, uploads: Vec::new() });
        }
        let examples = part.iter().map(|index| self.dataset.item_of_epoch(*index, self.epoch));
        let examples = examples.collect::<Result<Vec<_>>>()?;
        self.bridge.send(D::Item::collate(examples)?)
    }

    /// The same by a worker, which goes on after a panic.
    fn read_caught(&self, batch: usize) -> Result<Ready<<D::Item as Collate>::Batch>> {
        caught(|| self.read(batch)).unwrap_or_else(|message| Err(DataError::Panicked { batch, message }))
    }
}

struct Shared<D: Dataset> {
    work: Work<D>,
    state: Mutex<State<<D::Item as Collate>::Batch>>,
    /// A batch is ready.
    read: Condvar,
    /// A batch may be read, or none any more.
    wanted: Condvar,
}

struct State<B> {
    /// The first batch that no worker has begun.
    taken: usize,
    /// The first batch that none may begin yet.
    ahead: usize,
    /// Workers that wait until a batch may be read.
    idle: usize,
    ready: BTreeMap<usize, Result<Ready<B>>>,
    is_over: bool,
}

impl<D: Dataset> Shared<D> {
    /// What a worker does.
    fn read_ahead(&self) {
        let mut state = self.state.lock();
        while !state.is_over && state.taken < self.work.batches {
            if state.taken >= state.ahead {
                state.idle += 1;
                self.wanted.wait(&mut state);
                state.idle -= 1;
                continue;
            }
            let batch = state.taken;
            state.taken += 1;
            drop(state);
            let result = self.work.read_caught(batch);
            state = self.state.lock();
            state.ready.insert(batch, result);
            self.read.notify_all();
        }
    }

    /// Waits for a batch that a worker reads.
    fn take(&self, batch: usize) -> Result<Ready<<D::Item as Collate>::Batch>> {
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

/// The order of `count` examples: shuffled by Fisher and Yates with the numbers of a seed and an epoch.
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

/// Draws what differs from epoch to epoch. The seed of the epoch is far from those of others, also of other runs.
pub(super) fn generator(seed: u64, epoch: u64) -> Generator {
    Generator::new(seed ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A number below `end`.
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

    /// Says how many of its examples were read.
    struct Counted(Arc<AtomicUsize>);

    impl Dataset for Counted {
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
        let loader = DataLoader::new(Counted(Arc::clone(&read)), options);
        let mut epoch = loader.epoch(0, 0);
        let ahead = WORKERS * 2;
        for taken in 1..=5 {
            epoch.next().unwrap().unwrap();
            let begun = Instant::now();
            let is_idle = || {
                let state = epoch.shared.state.lock();
                // One that was woken counts as idle until it runs, and may then read a batch that nobody has begun.
                state.idle == WORKERS && state.taken >= state.ahead
            };
            while !is_idle() {
                assert!(begun.elapsed() < Duration::from_secs(300), "workers do not end: {read:?}");
                thread::yield_now();
            }
            assert_eq!(read.load(Ordering::SeqCst), 4 * (taken + ahead));
        }
        drop(epoch);
        assert_eq!(read.load(Ordering::SeqCst), 4 * (5 + ahead));
    }
}
