//! CUDA graph capture: work is captured once as a graph, and replayed with host numbers that can change from replay to
//! replay.
//!
//! # Note [What varies]
//!
//! A captured kernel has fixed parameters. Numbers that the host computes anew for each step, such as an optimizer's,
//! are therefore read from *words* on the device: the code that launches such a kernel asks for words ([`varying`]) and
//! gives a closure that fills them for each replay. All words of a replay are copied at once, before its launch, from a
//! buffer of its own, so replays can queue up without waiting. The words are allocated before the capture: a block of
//! the graph's own pool may have had another use earlier in the graph, and each replay would overwrite it.
//!
//! Random numbers need no closure. A generator that is used in a capture gets two words, for its seed and offset at the
//! beginning of a replay, and each draw knows its distance from there. The capture itself draws nothing: afterwards the
//! generator is where it was before, and each replay advances it as the work would have, even if the work sets it back.
//! A number that the host draws itself, such as the seed of a fork, keeps its value from the capture.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::{Generation, Purpose, Storage, Tag};
use tenure_device::graph::{Graph, GraphCapture, GraphPool};
use tenure_device::memory;
use tenure_device::pinned::{PinnedConfig, PinnedPool};
use tenure_device::{Event, EventKind, Stream};

use crate::access::Held;
use crate::random::{Generator, GeneratorState};
use crate::{Access, DType, Device, Result, Tensor, TensorError, autocast};

const OP: &str = "Captured";

/// The number of words that one capture can have.
const MOST_WORDS: usize = 1 << 15;
/// The limit of pinned memory, in bytes, for replays that the device has not launched yet. It is more than a driver
/// queues.
const PINNED_BYTES: u64 = 1 << 30;

/// A piece of work on a device, such as an inference or a training step, that is replayed as one launch. It is like
/// PyTorch's `CUDAGraph`, but numbers of the host that change from step to step change in replays too: random numbers,
/// and an optimizer's.
///
/// Each replay overwrites the tensors that the work made. Tensors made outside the work are kept alive, and replays use
/// them at the same addresses.
///
/// ```
/// use tenure_tensor::cuda::Captured;
/// use tenure_tensor::{DType, Device, Tensor, TensorError};
/// # use std::sync::Arc;
/// # use tenure_device::{memory::{self, MemoryConfig}, sim::{SimConfig, SimDriver}};
/// # memory::install(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default())?;
///
/// let x = Tensor::ones(&[1000], DType::F32, Device::cuda(0))?;
/// let (mut captured, y) = Captured::new(x.device(), || Ok::<_, TensorError>(x.mul(2.0)?.dropout(0.5, true)?))?;
/// captured.replay()?;
/// let first = y.to_vec::<f32>()?;
/// captured.replay()?;
/// assert_ne!(y.to_vec::<f32>()?, first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Captured {
    graph: Graph,
    /// The words on the device, or `None` if no number varies.
    words: Option<Tensor>,
    varying: Vec<VaryingWords>,
    generators: Vec<CapturedGenerator>,
    /// The values of the words for the next replay.
    next_words: Vec<u64>,
    pinned: PinnedPool,
    /// The storages made outside the capture that it uses.
    kept: Vec<Storage>,
    /// The tensors made outside the capture that it writes, and the operation that writes each last. Each replay writes
    /// them again.
    written: Vec<(Tensor, &'static str)>,
    /// The stream of the last launch.
    stream: Option<Stream>,
}

/// A range of words, and the functions that fill them.
struct VaryingWords {
    range: Range<usize>,
    fill: WordsFill,
    take_back: Box<dyn FnMut() + Send>,
}

type WordsFill = Box<dyn FnMut(&mut [u64]) -> Result<()> + Send>;

/// A generator that the capture uses.
struct CapturedGenerator {
    /// The [`origin`](GeneratorState) of states that are relative to the generator's state at the capture's beginning.
    id: u64,
    generator: Generator,
    /// The states at the beginning and at the end of the capture.
    before: GeneratorState,
    after: GeneratorState,
    /// The index of its first word.
    first_word: usize,
}

/// The state of this thread's capture.
struct CaptureState {
    words: Tensor,
    /// The generation when the capture began: older storages were made outside it.
    begun: Generation,
    /// The number of words in use.
    used: usize,
    varying: Vec<VaryingWords>,
    generators: Vec<CapturedGenerator>,
    /// The generators that the captured work made. They get no words.
    new_generators: Vec<Generator>,
    /// The storages made outside the capture that it uses.
    kept: BTreeMap<Generation, Storage>,
    /// The tensors made outside the capture that it writes, and the operation that writes each last.
    written: Vec<(Tensor, &'static str)>,
    /// Puts autocast's cache of converted parameters aside during the capture. A replay would not convert a cached
    /// parameter again, and work outside must not use the capture's conversions.
    _autocast_cache: autocast::Aside,
    /// The first error that could not be returned where it happened.
    error: Option<TensorError>,
}

thread_local! {
    static RECORDER: RefCell<Option<CaptureState>> = const { RefCell::new(None) };
}

impl Captured {
    /// Captures the work that `work` puts on the thread's current stream of a device, without running it. The same work
    /// must have run before: state that is prepared at first use, such as an optimizer's, cannot be made in a capture.
    /// `work` must not wait for the device or read from it. It may differentiate only tensors that it made itself: the
    /// graph of a view that was made outside, for example of a parameter, leads to streams that are not captured.
    ///
    /// Waits for the device once, to give back cached memory: the work has memory of its own.
    ///
    /// # Errors
    /// An error of `work`; an operation that cannot be captured; a failed driver call. Then there is no graph.
    pub fn new<T, E: From<TensorError>>(device: Device, work: impl FnOnce() -> Result<T, E>) -> Result<(Self, T), E> {
        if device.is_cpu() {
            return Err(TensorError::argument(OP, "work on a CUDA device is captured, not on the CPU").into());
        }
        let memory = memory::device(device.index()).map_err(|error| TensorError::memory(OP, error))?;
        Self::new_in(&GraphPool::new(memory).map_err(|error| TensorError::memory(OP, error))?, work)
    }

    /// Captures as [`new`](Self::new) does, in memory shared by captures that never run at the same time: see
    /// [`Graph::capture_in`] for the conditions.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn new_in<T, E: From<TensorError>>(
        pool: &GraphPool,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let capture = Capture::begin(pool, None)?;
        let made = work()?;
        Ok((capture.end()?, made))
    }

    /// Launches all of the work on the thread's current stream, with the current values of the numbers that vary. It
    /// does not wait.
    ///
    /// # Errors
    /// An error of an earlier operation on the device; a number that cannot be given, such as a learning rate below 0;
    /// a failed driver call. Then nothing is launched, and the numbers' functions undo the step.
    pub fn replay(&mut self) -> Result<()> {
        if is_capturing() {
            return Err(TensorError::argument(OP, "a replay cannot be captured itself"));
        }
        let memory = self.graph.memory();
        super::check_earlier_errors(OP, memory.device())?;
        let begun: Vec<GeneratorState> = self.generators.iter().map(|origin| origin.generator.state()).collect();
        for (origin, state) in self.generators.iter().zip(&begun) {
            self.next_words[origin.first_word..origin.first_word + 2].copy_from_slice(&[state.seed, state.offset]);
        }
        let mut filled = 0;
        if let Err(error) = self.fill(&mut filled).and_then(|()| self.launch()) {
            self.varying[..filled].iter_mut().rev().for_each(|varying| (varying.take_back)());
            return Err(error);
        }
        for origin in &self.generators {
            origin.generator.set_state(self.resolve(origin.after, &begun));
        }
        self.written.iter().for_each(|(tensor, op)| tensor.bump_version(op));
        Ok(())
    }

    /// Returns the graph, whose pool owns the memory allocated in the capture.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Sets the words for the next replay. `filled` counts the functions that have succeeded.
    fn fill(&mut self, filled: &mut usize) -> Result<()> {
        self.varying.iter_mut().try_for_each(|varying| {
            (varying.fill)(&mut self.next_words[varying.range.clone()])?;
            *filled += 1;
            Ok(())
        })
    }

    /// Copies the words to the device and launches the graph.
    fn launch(&mut self) -> Result<()> {
        let stream = self.graph.memory().streams().current();
        self.upload(&stream)?;
        self.stream = Some(stream);
        self.graph.launch().map_err(|error| TensorError::memory(OP, error))
    }

    /// Copies the words to the device.
    fn upload(&self, stream: &Stream) -> Result<()> {
        let memory = self.graph.memory();
        if let Some(last) = self.stream.as_ref().filter(|last| last.id() != stream.id()) {
            // The previous replay, on another stream, reads the words until it is done.
            let mut done = Event::new(memory.driver().clone(), EventKind::Order);
            let ordered = done.record(last).and_then(|()| done.wait(stream));
            ordered.map_err(|error| TensorError::memory(OP, error.into()))?;
        }
        let Some(words) = &self.words else { return Ok(()) };
        let target = Access::new(OP, &[words], &[])?.write_word(0);
        memory.record_use(target, stream.id()).map_err(|error| TensorError::memory(OP, error))?;
        let bytes = self.next_words.len() * size_of::<u64>();
        let mut buffer = self.pinned.allocate(bytes).map_err(|error| TensorError::memory(OP, error.into()))?;
        for (to, word) in buffer.chunks_exact_mut(size_of::<u64>()).zip(&self.next_words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        // SAFETY: the buffer is dropped unchanged, and the pool does not reuse it before the stream has passed the
        // copy.
        let copied =
            unsafe { memory.driver().copy_to_device_async(target, buffer.as_ptr(), bytes as u64, stream.id()) };
        copied.map_err(|error| TensorError::device(OP, error))?;
        buffer.record_stream(stream.id());
        Ok(())
    }

    /// Translates a generator's state in the capture to its state in a replay, at whose beginning the generators had
    /// the states `begun`.
    fn resolve(&self, state: GeneratorState, begun: &[GeneratorState]) -> GeneratorState {
        let origin = self.generators.iter().zip(begun).find(|(origin, _)| origin.id == state.origin);
        origin.map_or(state, |(origin, begun)| begun.advanced(state.offset.wrapping_sub(origin.before.offset)))
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let Some(last) = &self.stream else { return };
        let device = self.graph.memory().device();
        for storage in self.kept.iter().filter(|storage| storage.device() == device) {
            // An error means that the stream cannot be used any more: then nothing can be launched on it either.
            let _ = memory::record_stream(storage, last.id());
        }
    }
}

/// A capture that goes on: for callers whose work does not fit in the closure of [`Captured::new`]. It ends on the
/// thread that it began on; a drop ends it without a graph.
pub struct Capture {
    // The graph's capture is dropped before the recording.
    graph: GraphCapture,
    recording: CaptureGuard,
    pinned: PinnedPool,
}

impl Capture {
    /// Begins to capture the operations of this thread, on `stream` or on a stream that no other code uses. The stream
    /// is the thread's current one until the end. Waits for the device once, to give back cached memory.
    ///
    /// # Errors
    /// This thread captures already; `stream` is the null stream; an error of an earlier operation on the device; a
    /// failed driver call.
    pub fn begin(pool: &GraphPool, stream: Option<&Stream>) -> Result<Self> {
        let memory = pool.memory();
        let device = memory.device();
        super::check_earlier_errors(OP, device)?;
        let pinned = PinnedConfig { user: "graphs", ..PinnedConfig::new(PINNED_BYTES) };
        let pinned = PinnedPool::new(memory.driver().clone(), pinned);
        let recording = CaptureGuard::begin(device)?;
        memory.allocator().release_cached().map_err(|error| TensorError::memory(OP, error.into()))?;
        let graph = GraphCapture::begin(pool, stream).map_err(|error| TensorError::memory(OP, error))?;
        Ok(Self { graph, recording, pinned })
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// An operation that cannot be captured; a failed driver call. Then there is no graph.
    pub fn end(self) -> Result<Captured> {
        let Self { graph, recording, pinned } = self;
        let graph = graph.end();
        let CaptureState { words, used, varying, generators, kept, written, error, .. } = recording.end();
        let graph = graph.map_err(|error| TensorError::memory(OP, error))?;
        error.map_or(Ok(()), Err)?;
        let kept = kept.into_values().collect();
        let words = (used > 0).then_some(words);
        let next_words = vec![0; used];
        Ok(Captured { graph, words, varying, generators, next_words, pinned, kept, written, stream: None })
    }
}

/// Returns whether this thread captures: operations are then recorded to run in each replay, and do not run now.
pub fn is_capturing() -> bool {
    RECORDER.with_borrow(Option::is_some)
}

/// Reserves `count` words on the device, as `int64`, for kernels of this thread's capture to read. Each replay calls
/// `fill` to set them; the functions of several calls run in the order of the calls. If the replay then cannot be
/// launched, it calls `take_back`, which must undo the effects of `fill`. Returns `None` if this thread does not
/// capture.
///
/// # Errors
/// The capture has too many words.
pub fn varying(
    count: usize,
    fill: impl FnMut(&mut [u64]) -> Result<()> + Send + 'static,
    take_back: impl FnMut() + Send + 'static,
) -> Result<Option<Tensor>> {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return Ok(None) };
        let range = recorder.reserve_words(count)?;
        let words = recorder.words.narrow(0, range.start, count)?;
        recorder.varying.push(VaryingWords { range, fill: Box::new(fill), take_back: Box::new(take_back) });
        Ok(Some(words))
    })
}

/// Records in this thread's capture, if any, that a generator was made.
pub(crate) fn made(generator: &Generator) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            recorder.new_generators.push(generator.clone());
        }
    });
}

/// Keeps a storage that this thread's capture uses alive, if it was made outside the capture.
pub(crate) fn keep(held: &Held<'_>) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder.as_mut().filter(|recorder| held.generation < recorder.begun) {
            recorder.kept.entry(held.generation).or_insert_with(|| held.storage.clone());
        }
    });
}

/// Records in this thread's capture, if any, that `op` writes in place to a tensor made outside the capture.
pub(crate) fn note_write(tensor: &Tensor, op: &'static str) {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return };
        if tensor.storage().generation() >= recorder.begun {
            return;
        }
        match recorder.written.iter_mut().find(|(written, _)| written.shares_version(tensor)) {
            Some((_, last)) => *last = op,
            None => recorder.written.push((tensor.detach(), op)),
        }
    });
}

/// Gives a generator words in this thread's capture, if any, before its first use there. `state`, the generator's
/// state, becomes relative to its state at the beginning of a replay.
#[inline]
pub(crate) fn join(generator: &Generator, state: &mut GeneratorState) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            recorder.join(generator, state);
        }
    });
}

/// Returns, for a draw in this thread's capture that begins at `state`, the distance of `state` from its generator's
/// state at the beginning of a replay, and the words that will hold that state. `None` outside a capture.
pub(crate) fn origin(state: GeneratorState) -> Result<Option<(GeneratorState, Tensor)>> {
    RECORDER.with_borrow(|recorder| {
        let Some(recorder) = recorder else { return Ok(None) };
        let Some(origin) = recorder.generators.iter().find(|origin| origin.id == state.origin) else { return Ok(None) };
        let distance = GeneratorState::new(0, state.offset.wrapping_sub(origin.before.offset));
        Ok(Some((distance, recorder.words.narrow(0, origin.first_word, 2)?)))
    })
}

/// Returns the state at `distance` from the state in `words`.
pub(crate) fn placed(distance: GeneratorState, words: &Tensor) -> Result<GeneratorState> {
    let words = words.to_vec::<i64>()?;
    Ok(GeneratorState::new(words[0] as u64, words[1] as u64).advanced(distance.offset))
}

impl CaptureState {
    /// Reserves the next `count` words.
    fn reserve_words(&mut self, count: usize) -> Result<Range<usize>> {
        let at = self.used..self.used + count;
        if at.end > MOST_WORDS {
            let reason = format!("more than {MOST_WORDS} words vary: capture less at once");
            return Err(TensorError::argument(OP, reason));
        }
        self.used = at.end;
        Ok(at)
    }

    fn join(&mut self, generator: &Generator, state: &mut GeneratorState) {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let mut seen = self.generators.iter().map(|origin| &origin.generator).chain(&self.new_generators);
        if seen.any(|seen| seen.is(generator)) {
            return;
        }
        match self.reserve_words(2) {
            Ok(words) => {
                let id = IDS.fetch_add(1, Ordering::Relaxed);
                let before = *state;
                state.origin = id;
                self.generators.push(CapturedGenerator {
                    id,
                    generator: generator.clone(),
                    before,
                    after: before,
                    first_word: words.start,
                });
            }
            Err(error) => _ = self.error.get_or_insert(error),
        }
    }
}

/// A guard during whose life its thread captures.
struct CaptureGuard;

impl CaptureGuard {
    fn begin(device: Device) -> Result<Self> {
        if is_capturing() {
            return Err(TensorError::argument(OP, "this thread captures already"));
        }
        let _purpose = Purpose::enter(Tag::Workspace, Purpose::current().1);
        let words = Tensor::empty(&[MOST_WORDS], DType::I64, device)?;
        let begun = words.storage().generation();
        RECORDER.set(Some(CaptureState {
            words,
            begun,
            used: 0,
            varying: Vec::new(),
            generators: Vec::new(),
            new_generators: Vec::new(),
            kept: BTreeMap::new(),
            written: Vec::new(),
            _autocast_cache: autocast::Aside::put(),
            error: None,
        }));
        Ok(Self)
    }

    fn end(self) -> CaptureState {
        Self::stop().expect("it lives")
    }

    /// Ends the capture, and sets its generators back to where they were.
    fn stop() -> Option<CaptureState> {
        let mut recorder = RECORDER.take()?;
        for origin in &mut recorder.generators {
            origin.after = origin.generator.state();
            origin.generator.set_state(origin.before);
        }
        Some(recorder)
    }
}

impl Drop for CaptureGuard {
    fn drop(&mut self) {
        Self::stop();
    }
}
