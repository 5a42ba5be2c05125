//! Models on a device, whose weights are loaded group by group during their computation, and evicted for other models.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_alloc::{Address, Backing, ChunkId, Mark};
use tenure_core::Device;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventKind, Priority, Stream};

use crate::chunk_pool::{ChunkPool, FreeChunk, ModelWindow};
use crate::gate::GroupGate;
use crate::run::Runs;
use crate::{Image, Manifest, SwitchError};

/// Settings of a [`Switch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOptions {
    /// The budget for the weights of all models together, in bytes.
    pub budget_bytes: u64,
    /// The size of a chunk in bytes, a multiple of the device's granularity. A model that is evicted in part keeps
    /// whole chunks.
    pub chunk_bytes: u64,
    /// Whether other processes may [borrow](Model::borrow) models whose weights are still being copied: each group then
    /// has an event that they wait for.
    pub is_lending: bool,
}

impl SwitchOptions {
    /// Returns settings with a budget of `budget_bytes`, and chunks of 16 MiB: mapping one takes a tenth of the time
    /// that filling it does.
    pub fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, chunk_bytes: 16 << 20, is_lending: false }
    }
}

/// The most chunks that are mapped before they are copied as one: copying a chunk takes ten times as long as mapping
/// it.
const PIECE_CHUNKS: u64 = 8;

/// Loads and evicts the weights of models on a device, within a budget. This is a handle: clones share the same switch.
#[derive(Clone)]
pub struct Switch {
    shared: Arc<SwitchShared>,
}

/// The state that all handles and models of a switch share.
struct SwitchShared {
    memory: &'static DeviceMemory,
    /// The stream of all copies.
    copies: Stream,
    chunk_bytes: u64,
    budget_bytes: u64,
    is_lending: bool,
    state: Mutex<SwitchState>,
}

struct SwitchState {
    pool: ChunkPool,
    /// The images of running copies, kept until the device has passed them.
    sources: Vec<(Mark, Arc<Image>)>,
    statistics: SwitchStatistics,
}

/// The total work that a switch did for its models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchStatistics {
    /// The number of loads that copied something.
    pub loads: u64,
    /// The bytes copied for that.
    pub copied_bytes: u64,
    /// The bytes of evicted models.
    pub evicted_bytes: u64,
    /// The bytes of the device that weights take now, in whole chunks. [`Switch::trim`] gives back the chunks that no
    /// model has.
    pub taken_bytes: u64,
    /// The most bytes taken at once: never more than the budget.
    pub peak_bytes: u64,
}

/// A model registered on a device: its weights have addresses there, even while they are evicted. A drop waits for
/// the work that uses them.
pub struct Model {
    shared: Arc<SwitchShared>,
    manifest: Arc<Manifest>,
    address: Address,
    gates: Mutex<Vec<GroupGate>>,
    runs: Runs,
    /// This lock is taken before that of the switch's state.
    residence: Mutex<Residence>,
}

/// The chunks that a model has on the device, and the work that uses them.
pub(crate) struct Residence {
    pub(crate) window: ModelWindow,
    copies: LastCopies,
    /// A mark after the last work that computes with the model.
    pub(crate) used: Option<Mark>,
    /// The number of other processes to which it is lent. A borrowed model counts as lent to this process.
    pub(crate) lent: usize,
}

/// The last copies to a model.
enum LastCopies {
    /// There were none yet.
    None,
    /// They are over: no mark could be made after them, so the host waited for them.
    Over { times: CopyTimes },
    /// They are queued, and `mark` is after them on the copy stream.
    Queued { mark: Mark, times: CopyTimes },
}

impl LastCopies {
    /// Returns a mark after the copies, unless they are over.
    fn mark(&self) -> Option<Mark> {
        match self {
            Self::None | Self::Over { .. } => None,
            Self::Queued { mark, .. } => Some(*mark),
        }
    }

    /// Returns the times of the copies, if they were made.
    fn times(&self) -> Option<&CopyTimes> {
        match self {
            Self::None => None,
            Self::Over { times } | Self::Queued { times, .. } => Some(times).filter(|times| times.ended.id().is_some()),
        }
    }
}

/// Events before the first and after the last copy of a load.
struct CopyTimes {
    begun: Event,
    ended: Event,
}

impl CopyTimes {
    fn new(memory: &DeviceMemory) -> Self {
        let event = || Event::new(Arc::clone(memory.driver()), EventKind::Timing);
        Self { begun: event(), ended: event() }
    }
}

/// The places of a model's window that a load fills, and the chunks that it took for them.
struct Filled<'a, I: Iterator<Item = FreeChunk>> {
    window: &'a mut ModelWindow,
    missing: &'a [usize],
    taken: Peekable<I>,
}

/// The copies that a load made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The bytes that were missing, and were copied.
    pub copied_bytes: u64,
    /// The number of copies.
    pub copies: u64,
}

impl Switch {
    /// Creates a switch that keeps weights in a device's memory. Allocates nothing yet.
    ///
    /// # Errors
    /// No stream can be created.
    ///
    /// # Panics
    /// If chunks are not a multiple of the device's granularity.
    pub fn new(memory: &'static DeviceMemory, options: SwitchOptions) -> Result<Self, SwitchError> {
        let SwitchOptions { budget_bytes, chunk_bytes, is_lending } = options;
        let granularity = memory.driver().granularity();
        assert!(chunk_bytes > 0 && chunk_bytes.is_multiple_of(granularity), "chunks are multiples of {granularity}");
        let copies = memory.streams().pooled(Priority::High)?;
        let pool = ChunkPool::new(memory, chunk_bytes, budget_bytes);
        let state = Mutex::new(SwitchState { pool, sources: Vec::new(), statistics: SwitchStatistics::default() });
        Ok(Self { shared: Arc::new(SwitchShared { memory, copies, chunk_bytes, budget_bytes, is_lending, state }) })
    }

    /// Registers a model, which gets addresses on the device.
    ///
    /// # Errors
    /// [`SwitchError::NoDeviceRoom`], if it is larger than the budget; there are no addresses or events left.
    pub fn register(&self, manifest: &Arc<Manifest>) -> Result<Model, SwitchError> {
        let state = self.shared.state.lock();
        let needed = manifest.bytes().next_multiple_of(self.shared.chunk_bytes);
        if needed > self.shared.budget_bytes {
            return Err(self.shared.no_room(manifest, needed, &state.pool));
        }
        let SwitchShared { memory, is_lending, .. } = &*self.shared;
        let gates = manifest.groups().iter().map(|_| GroupGate::new(memory, *is_lending)).collect::<Result<_, _>>()?;
        let window = state.pool.reserve(manifest.bytes())?;
        let shared = Arc::clone(&self.shared);
        let manifest = Arc::clone(manifest);
        let address = window.address;
        let residence = Mutex::new(Residence { window, copies: LastCopies::None, used: None, lent: 0 });
        Ok(Model { shared, manifest, address, gates: Mutex::new(gates), runs: Runs::default(), residence })
    }

    /// Calls `done` when all copies that are queued now are done, with the time from now until then, or with `None` if
    /// the driver does not tell. The call comes on a thread of the driver's, and must not use the device.
    pub fn when_copied(&self, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        let done = Arc::new(Mutex::new(Some(done)));
        let begun = Instant::now();
        let call = move |took: Option<Duration>| {
            let done = done.lock().take();
            if let Some(done) = done {
                done(took);
            }
        };
        let copied = call.clone();
        let report = Box::new(move || copied(Some(begun.elapsed())));
        if self.shared.memory.driver().host_function(self.shared.copies.id(), report).is_err() {
            call(None);
        }
    }

    /// Returns the bytes that a model can have without an eviction.
    pub fn free_bytes(&self) -> u64 {
        self.shared.state.lock().pool.free_chunks() as u64 * self.shared.chunk_bytes
    }

    /// Returns the size of a chunk in bytes: models come and go in whole chunks.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.chunk_bytes
    }

    /// Returns the stream of all copies, for callers that measure them.
    pub fn copies(&self) -> &Stream {
        &self.shared.copies
    }

    /// Returns the total work so far.
    pub fn statistics(&self) -> SwitchStatistics {
        let state = self.shared.state.lock();
        let (taken_bytes, peak_bytes) = state.pool.taken_bytes();
        SwitchStatistics { taken_bytes, peak_bytes, ..state.statistics }
    }

    /// Waits until all queued copies are done, and drops the images that were kept for them.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn settle(&self) -> Result<(), SwitchError> {
        let backing = self.shared.memory.backing();
        let mark = backing.record(self.shared.copies.id())?;
        backing.synchronize(mark)?;
        self.shared.state.lock().tidy(backing)
    }

    /// Frees the chunks that no model has, so that the device's other users can have the memory. Waits for the work
    /// that used them.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn trim(&self) -> Result<(), SwitchError> {
        self.shared.state.lock().pool.trim()
    }
}

impl SwitchShared {
    /// Returns the error for a model that needs more bytes than are free.
    fn no_room(&self, manifest: &Manifest, needed: u64, pool: &ChunkPool) -> SwitchError {
        let free = pool.free_chunks() as u64 * self.chunk_bytes;
        SwitchError::NoDeviceRoom { model: manifest.name().into(), needed, free, budget: self.budget_bytes }
    }
}

impl SwitchState {
    /// Drops the images whose copies the device has passed, and removes old mappings.
    fn tidy(&mut self, backing: &impl Backing) -> Result<(), SwitchError> {
        let mut result = Ok(());
        self.sources.retain(|(mark, _)| match backing.completed(*mark) {
            Ok(is_over) => !is_over,
            Err(error) => {
                result = Err(error.into());
                true
            }
        });
        result.and(self.pool.tidy())
    }
}

impl Model {
    /// Returns the manifest of the model.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn device(&self) -> Device {
        self.shared.memory.device()
    }

    pub(crate) fn memory(&self) -> &'static DeviceMemory {
        self.shared.memory
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(crate) fn gates(&self) -> &Mutex<Vec<GroupGate>> {
        &self.gates
    }

    pub(crate) fn copies(&self) -> &Stream {
        &self.shared.copies
    }

    pub(crate) fn residence(&self) -> &Mutex<Residence> {
        &self.residence
    }

    /// Returns the addresses of a tensor, which hold its bytes while they are on the device.
    pub fn place(&self, entry: usize) -> Range<Address> {
        let place = self.manifest.place(entry);
        self.address + place.start..self.address + place.end
    }

    /// Returns the bytes of the model that are on the device, in whole chunks.
    pub fn resident_bytes(&self) -> u64 {
        let there = self.residence.lock().window.chunks.iter().flatten().count() as u64;
        there * self.shared.chunk_bytes
    }

    /// Returns the bytes that must be free to load the rest of the model, in whole chunks.
    pub fn missing_bytes(&self) -> u64 {
        self.manifest.bytes().next_multiple_of(self.shared.chunk_bytes) - self.resident_bytes()
    }

    /// Loads the missing weights from an image. When this returns, all copies are queued. Work that waits for a group,
    /// and launches of graphs that do, wait on the device. The call itself waits only while the image is still read.
    ///
    /// # Errors
    /// [`SwitchError::NoDeviceRoom`]: evict other models; the image cannot be read; a driver call failed. Weights that
    /// were missing are then still missing.
    ///
    /// # Panics
    /// If the image is another model's.
    pub fn load(&self, image: &Arc<Image>) -> Result<Loaded, SwitchError> {
        self.load_groups(image, self.manifest.groups())
    }

    /// Loads the missing weights from a complete image with as few copies as possible, not group by group: at the speed
    /// of the link.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    ///
    /// # Panics
    /// If the image is another model's.
    pub fn load_at_once(&self, image: &Arc<Image>) -> Result<Loaded, SwitchError> {
        image.wait_for_all()?;
        let all = 0..self.manifest.bytes();
        let loaded = self.load_groups(image, std::slice::from_ref(&all))?;
        self.gates.lock().iter_mut().try_for_each(|gate| gate.record(&self.shared.copies))?;
        Ok(loaded)
    }

    /// Loads the missing weights, range by range. If this fails, none of the missing chunks stay mapped.
    fn load_groups(&self, image: &Arc<Image>, groups: &[Range<u64>]) -> Result<Loaded, SwitchError> {
        assert!(Arc::ptr_eq(image.manifest(), &self.manifest), "an image of the same model");
        let mut residence = self.residence.lock();
        let mut gates = self.gates.lock();
        let missing: Vec<usize> =
            (0..residence.window.chunks.len()).filter(|slot| residence.window.chunks[*slot].is_none()).collect();
        if missing.is_empty() {
            return Ok(Loaded::default());
        }
        let taken = {
            let mut state = self.shared.state.lock();
            // A caller that lends its models never calls `used_by`, which tidies too.
            let _ = state.tidy(self.shared.memory.backing());
            if missing.len() > state.pool.free_chunks() {
                let needed = missing.len() as u64 * self.shared.chunk_bytes;
                return Err(self.shared.no_room(&self.manifest, needed, &state.pool));
            }
            state.pool.take(&residence.window, &missing)?
        };
        let mut times = CopyTimes::new(self.shared.memory);
        let window = &mut residence.window;
        let mut filled = Filled { window, missing: &missing, taken: taken.into_iter().peekable() };
        let result = self.map_and_copy(image, groups, &mut filled, &mut times, &mut gates);
        let taken = filled.taken;
        let mut state = self.shared.state.lock();
        // The mark also covers copies that are already under way.
        let marked = match self.shared.memory.backing().record(self.shared.copies.id()) {
            Ok(mark) => {
                residence.copies = LastCopies::Queued { mark, times };
                state.sources.push((mark, Arc::clone(image)));
                Ok(())
            }
            // If no mark can be made, the copies are waited for.
            Err(_) => {
                residence.copies = LastCopies::Over { times };
                self.shared.memory.driver().synchronize_stream(self.shared.copies.id())
            }
        };
        let loaded = result.and_then(|loaded| Ok(marked.map(|()| loaded)?)).inspect_err(|_| {
            let Residence { window, copies, used, .. } = &mut *residence;
            missing.iter().for_each(|slot| state.pool.release(window, *slot, copies.mark(), *used));
            state.pool.give_back(taken);
        })?;
        state.statistics.loads += 1;
        state.statistics.copied_bytes += loaded.copied_bytes;
        Ok(loaded)
    }

    /// Maps the taken chunks and copies weights to them, group by group, in order. In a large group, pieces are copied
    /// while later ones are mapped. The first pieces are small, so that the device does not wait for the host.
    fn map_and_copy(
        &self,
        image: &Image,
        groups: &[Range<u64>],
        filled: &mut Filled<'_, impl Iterator<Item = FreeChunk>>,
        times: &mut CopyTimes,
        gates: &mut [GroupGate],
    ) -> Result<Loaded, SwitchError> {
        let Filled { window, missing, taken } = filled;
        let SwitchShared { memory, copies, chunk_bytes, .. } = &*self.shared;
        let mut loaded = Loaded::default();
        let mut slots = missing.iter().copied().peekable();
        let mut piece_chunks = 1;
        for (index, group) in groups.iter().enumerate() {
            let copies_before = loaded.copies;
            let mut begin = group.start;
            while begin < group.end {
                let end = group.end.min((begin / chunk_bytes + piece_chunks) * chunk_bytes);
                while let Some(slot) = slots.next_if(|slot| *slot as u64 * chunk_bytes < end) {
                    let free = taken.peek().expect("one was taken for each place");
                    window.map(slot, free, *chunk_bytes, memory.backing(), copies.id())?;
                    taken.next();
                }
                for run in runs(missing, *chunk_bytes, &(begin..end)) {
                    let source = image.wait(index)?.wrapping_add((run.start - group.start) as usize);
                    let bytes = run.end - run.start;
                    let target = self.address + run.start;
                    if loaded.copies == 0 {
                        times.begun.record(copies)?;
                    }
                    // SAFETY: the group is there, and no thread writes it; the image is kept until the device has
                    // passed a mark after the copy.
                    unsafe { memory.driver().copy_to_device_async(target, source, bytes, copies.id())? };
                    loaded.copied_bytes += bytes;
                    loaded.copies += 1;
                }
                if end.is_multiple_of(*chunk_bytes) {
                    piece_chunks = (piece_chunks * 2).min(PIECE_CHUNKS);
                }
                begin = end;
            }
            if loaded.copies > copies_before {
                gates[index].record(copies)?;
            }
        }
        times.ended.record(copies)?;
        Ok(loaded)
    }

    /// Returns the time that the last copies took, from the begin of the first to the end of the last, after a wait for
    /// them. Returns `None` if there were none.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        let residence = self.residence.lock();
        let Some(CopyTimes { begun, ended }) = residence.copies.times() else { return Ok(None) };
        ended.synchronize()?;
        Ok(Some(Duration::from_secs_f64(begun.elapsed_us(ended)? / 1e6)))
    }

    /// Waits until the queued copies to this model are done. Other threads may use the model meanwhile.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn settle(&self) -> Result<(), SwitchError> {
        let copied = self.residence.lock().copies.mark();
        Ok(copied.map_or(Ok(()), |copied| self.shared.memory.backing().synchronize(copied))?)
    }

    /// Makes later work of a stream wait until a group is on the device; if the stream is captured, each launch of the
    /// graph waits.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn wait(&self, group: usize, stream: &Stream) -> Result<(), SwitchError> {
        self.gates.lock()[group].wait(stream)
    }

    /// Marks that the work now on a stream uses the model: no other model gets its memory before that work is done.
    /// Call it after each use, even one that failed midway.
    ///
    /// # Errors
    /// A driver call failed.
    pub fn used_by(&self, stream: &Stream) -> Result<(), SwitchError> {
        let backing = self.shared.memory.backing();
        mark_use(&mut self.residence.lock().used, backing, stream)?;
        // This costs no time here, since the device computes. If it fails, the next call tries again.
        let _ = self.shared.state.lock().tidy(backing);
        Ok(())
    }

    /// Frees `chunks` chunks of the model's memory for other models, from its end, which is needed last when it comes
    /// back. Copies nothing, and does not wait. Returns the bytes that this freed: 0 while the model is
    /// [lent](Self::lend).
    pub fn evict(&self, chunks: usize) -> u64 {
        let mut residence = self.residence.lock();
        if residence.lent > 0 {
            return 0;
        }
        let mut state = self.shared.state.lock();
        let Residence { window, copies, used, .. } = &mut *residence;
        let resident = (0..window.chunks.len()).rev().filter(|slot| window.chunks[*slot].is_some());
        let leaving: Vec<usize> = resident.take(chunks).collect();
        leaving.iter().for_each(|slot| state.pool.release(window, *slot, copies.mark(), *used));
        let bytes = leaving.len() as u64 * self.shared.chunk_bytes;
        state.statistics.evicted_bytes += bytes;
        bytes
    }

    /// Returns whether the model is [lent](Self::lend) to another process, and so cannot be evicted.
    pub fn is_lent(&self) -> bool {
        self.residence.lock().lent > 0
    }

    /// Protects the model, which must be complete, from eviction until [`unprotect`](Self::unprotect) was called once
    /// for each call. Returns its chunks, and a mark after the copies to them.
    pub(crate) fn protect(&self) -> Result<(Vec<ChunkId>, Option<Mark>), SwitchError> {
        let mut residence = self.residence.lock();
        let chunks: Vec<ChunkId> = residence.window.chunks.iter().flatten().copied().collect();
        let missing = residence.window.chunks.len() - chunks.len();
        if missing > 0 {
            let missing = missing as u64 * self.shared.chunk_bytes;
            return Err(SwitchError::NotWhole { model: self.manifest.name().into(), missing });
        }
        residence.lent += 1;
        Ok((chunks, residence.copies.mark()))
    }

    /// Undoes one [`protect`](Self::protect).
    pub(crate) fn unprotect(&self) {
        self.residence.lock().lent -= 1;
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.shared.chunk_bytes
    }

    pub(crate) fn is_lending(&self) -> bool {
        self.shared.is_lending
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.evict(usize::MAX);
        let residence = self.residence.get_mut();
        let mut state = self.shared.state.lock();
        // Addresses that the driver does not take back are never used again.
        let _ = state.pool.unreserve(&residence.window);
    }
}

/// Replaces a mark by one after the work now on a stream. Work that the old mark covered is covered by the new one.
pub(crate) fn mark_use(used: &mut Option<Mark>, backing: &impl Backing, stream: &Stream) -> Result<(), SwitchError> {
    let waited = used.map_or(Ok(()), |used| backing.wait(stream.id(), used));
    match waited.and_then(|()| backing.record(stream.id())) {
        Ok(mark) => *used = Some(mark),
        // If no mark can be made, the stream is waited for.
        Err(_) => stream.synchronize()?,
    }
    Ok(())
}

/// Returns the parts of a range that lie in missing chunks, as few pieces as possible.
fn runs(missing: &[usize], chunk_bytes: u64, range: &Range<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for slot in missing {
        let begin = (*slot as u64 * chunk_bytes).max(range.start);
        let end = ((*slot as u64 + 1) * chunk_bytes).min(range.end);
        match runs.last_mut() {
            _ if begin >= end => {}
            Some(last) if last.end == begin => last.end = end,
            _ => runs.push(begin..end),
        }
    }
    runs
}
