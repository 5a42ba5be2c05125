//! Training steps within a memory budget: the bridge from `tenure.torch.budget` and autograd's hooks to the offload
//! engine.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tenure::core::{Device, Purpose, Storage};
use tenure::offload::{self, Engine, Memory, OffloadError, Pass, Recomputation, SavedBytesId, Setup, Signature};
use tenure::plan::Planner;
use tenure::plan::planner::{self, Evolutionary, FlashNeuron, Scheduled};
use tenure::tier::Disk;
use tenure::tier::codec::{Choice, UnknownCodec};
use tenure_device::host::OnHostMemory;
use tenure_device::{Stream, exchange};

use crate::errors::complaint;
use crate::operations::{Bytes, Call, Listen, OperationRecorder, SavedFacts, SavedTensor, Shim, Tensor};
use crate::purpose::module_of_key;
use crate::recipe::{Ingredient, Recipe};

/// The number of first steps that are measured: two, as the first compiles kernels and creates the optimizer's state.
const PASSES: u64 = 2;

/// The number of signatures that are remembered. If there are more, all are forgotten and measured again.
const MOST_KINDS: usize = 1 << 16;

thread_local! {
    /// The budget (by its address) that this thread's operations belong to, and whether they are recorded now.
    static LISTENING: Cell<Option<(usize, bool)>> = const { Cell::new(None) };
}

/// A tensor that autograd has saved: either whole, or with its bytes in the engine's care.
#[pyclass(frozen, module = "tenure._native", name = "Packed")]
pub(crate) struct PackedTensor {
    tensor: SavedTensor,
    held: Option<Arc<offload::SavedHandle>>,
    /// The mark of the step's first saved tensor, if this is it.
    _first: Option<FirstSaved>,
}

/// The phase of a step. Python knows its numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// No step is open. The next begins where a tensor is saved or the model is called.
    Between,
    Watched,
    Unwatched,
}

/// A mark on the first tensor that a step saves: when backward frees it, the step is over.
struct FirstSaved {
    inner: Arc<BudgetInner>,
    step: u64,
}

impl Drop for FirstSaved {
    fn drop(&mut self) {
        if self.inner.steps.load(Ordering::Relaxed) == self.step {
            self.inner.enter(Phase::Between);
        }
    }
}

/// A budget of one device's memory, or of the host's.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Budget {
    inner: Arc<BudgetInner>,
    shim: Shim,
    recorder: OperationRecorder,
    /// Whether backward needed a saved tensor since the step began.
    is_needed: AtomicBool,
    /// A weak reference to Python's budget.
    owner: Arc<OnceLock<Py<PyAny>>>,
}

/// The part of a budget that its recorder's listener shares.
struct BudgetInner {
    engine: Engine,
    device: Device,
    state: Mutex<BudgetState>,
    /// A [`Phase`].
    phase: AtomicU8,
    /// The number of steps begun.
    steps: AtomicU64,
    /// Whether the step's first saved tensor is marked, or need not be because the end of the step is reported.
    has_first: AtomicBool,
}

#[derive(Default)]
struct BudgetState {
    /// The budget in percent of the plain peak, while that is not known.
    percent: Option<f64>,
    plain_bytes: u64,
    step: Option<OpenStep>,
    /// Facts about steps, by signature.
    kinds: HashMap<u64, StepFacts>,
    passes: u64,
    /// The recipe of each result of the step.
    book: HashMap<SavedBytesId, Arc<Recipe>>,
    /// Saved tensors that backward has used: autograd saves them again where backward itself is differentiated, and
    /// where a reentrant checkpoint recomputes.
    given: HashMap<SavedBytesId, Weak<offload::SavedHandle>>,
    on_host: Option<OnHostMemory>,
}

/// The step that is running.
struct OpenStep {
    step: offload::OffloadStep,
    pass: Pass,
    /// The step's signature, if the step counts as measured.
    measures: Option<u64>,
}

/// Facts about the steps of one signature.
#[derive(Default)]
struct StepFacts {
    /// The number of times they were measured.
    passes: u64,
    /// The number of times their measurements became useless. Each time they get another signature in the engine.
    renewals: u64,
    /// The bytes allocated at the beginning of the measured step.
    held_bytes: u64,
}

/// The report on a step, a dictionary in Python.
#[derive(IntoPyObject)]
pub(crate) struct StepReport {
    budget_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    spilled_bytes: u64,
    fetched_bytes: u64,
    recomputed_bytes: u64,
    recomputed_us: u64,
    stalled_us: u64,
    unplanned: u64,
    is_planned: bool,
    predicted_us: Option<u64>,
    codec: String,
}

#[pymethods]
impl Budget {
    /// Makes a budget of CUDA device number `device`, or of the host's memory. `spill` is the folders to spill to,
    /// their capacity in bytes, and how many bytes may be written to them a day. `operations` is the address of the
    /// function table of the shim that reports PyTorch's operations.
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<u16>,
        spill: (Vec<PathBuf>, Option<u64>, Option<u64>),
        host_bytes: Option<u64>,
        planner: &str,
        operations: usize,
    ) -> PyResult<Self> {
        // SAFETY: the package has loaded the shim, which is never unloaded.
        let shim = unsafe { Shim::at(operations) }?;
        let device = device.map_or(Device::CPU, |index| Device::cuda(index as _));
        let planner = planner_of(planner)?;
        let Some(memory) = Memory::of(device) else {
            return Err(complaint(format!("Tenure does not manage the memory of {device}")));
        };
        let ((mut folders, disk_bytes, daily_bytes), pinned_bytes) = (spill, host_bytes);
        if folders.is_empty() && device.is_cpu() {
            folders.push(Setup::default_folder());
        }
        let setup = Setup { folders, disk_bytes, daily_bytes, pinned_bytes, planner, ..Setup::default() };
        let engine = py.detach(|| setup.engine(memory).map_err(|error| error.to_string())).map_err(complaint)?;
        engine.set_strict();
        let on_host = device.is_cpu().then(OnHostMemory::enter).flatten();
        let state = Mutex::new(BudgetState { on_host, ..BudgetState::default() });
        let (phase, steps, has_first) = Default::default();
        let inner = Arc::new(BudgetInner { engine, device, state, phase, steps, has_first });
        let recorder = OperationRecorder::new(shim, device, Arc::clone(&inner) as Arc<dyn Listen>)?;
        Ok(Self { inner, shim, recorder, is_needed: AtomicBool::new(false), owner: Arc::default() })
    }

    /// Sets `owner`, a weak reference to Python's budget. It is called where a tensor is saved between steps, and where
    /// a step that was not watched finds no room.
    fn attach(&self, owner: Py<PyAny>) {
        let _ = self.owner.set(owner);
        let inner = Arc::downgrade(&self.inner);
        let owner = Arc::clone(&self.owner);
        self.inner.engine.on_wake(move || {
            let Some(inner) = inner.upgrade() else { return };
            Python::attach(|py| {
                let wakes = owner_of(&owner, py).and_then(|owner| {
                    let Some(owner) = owner else { return Ok(false) };
                    owner.call_method0(intern!(py, "_wake"))?.extract()
                });
                // An error cannot be reported to the code that allocates. Without its hooks, the step has the room
                // there is.
                if wakes.unwrap_or(false) {
                    inner.enter(Phase::Watched);
                }
            });
        });
    }

    /// Enforces the budget from now on, if it is known.
    fn enforce(&self, py: Python<'_>) -> PyResult<()> {
        let engine = &self.inner.engine;
        if engine.budget_bytes().is_none() {
            return Ok(());
        }
        py.detach(|| engine.enforce()).map_err(told)
    }

    /// Returns whether a folder is itself in memory (such as tmpfs).
    #[staticmethod]
    fn is_in_memory(folder: PathBuf) -> bool {
        Disk::is_in_memory(&folder)
    }

    /// Sets the budget.
    fn set_bytes(&self, bytes: u64) {
        self.inner.engine.set_budget(bytes);
    }

    /// Sets the codec of bytes that are written to a disk.
    fn set_codec(&self, codec: &str) -> PyResult<()> {
        let codec: Choice = codec.parse().map_err(|error: UnknownCodec| complaint(error.to_string()))?;
        self.inner.engine.set_codec(codec);
        Ok(())
    }

    /// Makes measured steps move all that they save. For tests.
    fn move_all(&self) {
        self.inner.engine.move_all();
    }

    /// Sets the budget in percent of a step's plain peak. It takes effect when that peak is known.
    fn set_percent(&self, percent: f64) {
        self.inner.state().percent = Some(percent);
    }

    /// The budget in bytes, if it is known.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.inner.engine.budget_bytes()
    }

    /// The highest peak in bytes of a step without a budget, if one was measured.
    #[getter]
    fn plain_bytes(&self) -> Option<u64> {
        Some(self.inner.state().plain_bytes).filter(|bytes| *bytes > 0)
    }

    /// The smallest budget in bytes that the measured steps can keep to, if any was measured.
    #[getter]
    fn least_bytes(&self) -> Option<u64> {
        self.inner.engine.least_budget_bytes()
    }

    /// The phase of the step, as a number.
    #[getter]
    fn phase(&self) -> u8 {
        self.inner.phase.load(Ordering::Relaxed)
    }

    /// Whether backward needed a saved tensor since the last step began or ended.
    #[getter]
    fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// Begins a step. `signature` is its identity, its kind, and the bytes of its inputs. Unless its end `is_told`, the
    /// step is over when backward has freed the first tensor that it saved. Returns whether the step runs unwatched.
    fn begin(&self, py: Python<'_>, signature: (u64, u64, u64), is_told: bool) -> PyResult<bool> {
        self.is_needed.store(false, Ordering::Relaxed);
        let (id, kind, input_bytes) = signature;
        let signature = Signature { id, kind, input_bytes };
        let is_unwatched = py.detach(|| self.inner.begin_step(signature)).map_err(told)?;
        self.inner.steps.fetch_add(1, Ordering::Relaxed);
        self.inner.has_first.store(is_told, Ordering::Relaxed);
        self.inner.enter(if is_unwatched { Phase::Unwatched } else { Phase::Watched });
        Ok(is_unwatched)
    }

    /// Returns the effort of the last plan as a line for logs, once for each plan.
    fn take_planning(&self) -> Option<String> {
        self.inner.engine.take_planning().map(|planning| planning.to_string())
    }

    /// Keeps storages at these addresses in memory from now on.
    fn stay(&self, staying: Vec<usize>) {
        self.recorder.begin(&staying);
    }

    /// Ends the step, if one is open, and returns its report.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<StepReport>> {
        let is_needed = self.is_needed.swap(false, Ordering::Relaxed);
        if !is_needed && !self.inner.is_unwatched() {
            // No backward pass ran: the step tells nothing about steps that train.
            py.detach(|| self.inner.interrupt());
            return self.inner.engine.take_failure().map_or(Ok(None), |error| Err(told(error)));
        }
        let Some(OpenStep { step, pass, .. }) = self.inner.end() else { return Ok(None) };
        let report = py.detach(|| step.finish()).map_err(told)?;
        let passes = {
            let mut state = self.inner.state();
            if pass == Pass::Plain {
                state.plain_bytes = state.plain_bytes.max(report.peak_bytes.unwrap_or(0));
            }
            state.passes
        };
        // After only one step, an optimizer's state is still missing.
        if pass == Pass::Budgeted && report.peak_bytes.is_some() && passes >= PASSES {
            py.detach(|| self.inner.engine.check()).map_err(told)?;
        }
        Ok(Some(self.inner.report(&report, pass)))
    }

    /// Ends the step, which has failed, without learning from it. Returns the engine's reason, if it has one.
    fn abandon(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| {
            self.inner.interrupt();
            self.inner.engine.take_cause().map(|error| error.to_string())
        })
    }

    /// Ends the step without learning from it. Its error, if any, is reported later.
    fn interrupt(&self, py: Python<'_>) {
        py.detach(|| self.inner.interrupt());
    }

    /// Writes the problem that the planner of the last step solved. Returns whether there was one.
    fn write_problem(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let Some(problem) = py.detach(|| self.inner.engine.problem()).map_err(told)? else {
            return Ok(false);
        };
        problem.write(path).map_err(|error| complaint(error.to_string()))?;
        Ok(true)
    }

    /// Lifts the budget. Saved tensors can still be fetched.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            drop(self.inner.end());
            drop(self.inner.state().on_host.take());
            self.inner.engine.remove_budget()
        })
        .map_err(told)
    }

    /// Starts or stops the recording of this thread's operations. They are recorded only where the engine may recompute
    /// them.
    fn listen(&self, on: bool) {
        let is_noted = on && self.inner.engine.listens();
        self.recorder.listen(is_noted);
        LISTENING.set(on.then_some((Arc::as_ptr(&self.inner).addr(), is_noted)));
    }

    /// Saves a tensor for backward, in the engine's care if the budget gains by it.
    fn pack(&self, tensor: &Bound<'_, PyAny>) -> PyResult<PackedTensor> {
        let py = tensor.py();
        if self.inner.is(Phase::Between)
            && let Some(owner) = owner_of(&self.owner, py)?
        {
            owner.call_method1(intern!(py, "_begin_by_saving"), (tensor,))?;
        }
        // A subclass of `torch.Tensor` may hold more than its bytes.
        let is_plain = tensor.get_type().is(type_of_tensors(py)?);
        let tensor = Tensor::of(tensor)?;
        let look = if self.inner.is(Phase::Watched) { self.recorder.look(tensor) } else { SavedFacts::default() };
        let held = if is_plain && look.may_go && look.bytes.bytes as u64 >= self.inner.engine.min_tensor_bytes() {
            let name = || {
                let module = module_of_key(Purpose::current().1.to_raw());
                format!("{module} {}", tensor.name(self.shim)).trim_start().to_owned()
            };
            let name = if self.inner.engine.has_name() { String::new() } else { name() };
            let stream = self.shim.stream(self.inner.device);
            let held = py.detach(|| self.inner.save(look, stream, name)).map_err(told)?;
            self.listen_again();
            held
        } else {
            None
        };
        Ok(PackedTensor { tensor: SavedTensor::new(self.shim, tensor, held.is_some())?, held, _first: self.first() })
    }

    /// Returns a saved tensor to backward.
    fn unpack<'py>(&self, py: Python<'py>, packed: &PackedTensor) -> PyResult<Bound<'py, PyAny>> {
        self.is_needed.store(true, Ordering::Relaxed);
        if let Some(words) = packed.tensor.modified() {
            return Err(PyRuntimeError::new_err(words));
        }
        let stream = self.shim.stream(self.inner.device);
        let need = |held| py.detach(|| self.inner.need(held, stream)).map_err(told);
        packed.tensor.restored(py, packed.held.as_ref().map(need).transpose()?)
    }
}

impl Budget {
    /// Updates this thread's recording, if it listens, to whether the engine may recompute the operations that follow.
    fn listen_again(&self) {
        let Some((inner, is_noted)) = LISTENING.get() else { return };
        if inner == Arc::as_ptr(&self.inner).addr() && is_noted != self.inner.engine.listens() {
            self.listen(true);
        }
    }

    /// Returns the mark for a step's first saved tensor, unless another tensor has it.
    fn first(&self) -> Option<FirstSaved> {
        let inner = &self.inner;
        if inner.is(Phase::Between) || inner.has_first.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(FirstSaved { inner: Arc::clone(inner), step: inner.steps.load(Ordering::Relaxed) })
    }
}

impl BudgetInner {
    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the open step and returns it.
    fn end(&self) -> Option<OpenStep> {
        self.enter(Phase::Between);
        let mut state = self.state();
        // Recipes and what they keep are freed with no lock held: PyTorch may need the GIL for it.
        let book = std::mem::take(&mut state.book);
        let step = state.step.take();
        drop(state);
        drop(book);
        step
    }

    /// Ends the open step without learning from it.
    fn interrupt(&self) {
        let Some(OpenStep { step, measures, .. }) = self.end() else { return };
        drop(step);
        let Some(signature) = measures else { return };
        let mut state = self.state();
        state.passes -= 1;
        if let Some(kind) = state.kinds.get_mut(&signature) {
            kind.passes -= 1;
        }
    }

    /// Returns whether the open step runs unwatched.
    fn is_unwatched(&self) -> bool {
        self.state().step.as_ref().is_some_and(|open| open.step.is_unwatched())
    }

    /// Saves a tensor's bytes. Returns `None` if they stay in memory: moving them gains nothing, or they are not
    /// Tenure's.
    fn save(
        &self,
        look: SavedFacts,
        stream: usize,
        name: String,
    ) -> Result<Option<Arc<offload::SavedHandle>>, OffloadError> {
        let Bytes { address, bytes, version } = look.bytes;
        let stream = self.stream(stream);
        if stream.as_ref().is_some_and(is_captured) {
            // A CUDA graph's memory stays at the address where it was captured.
            return Ok(None);
        }
        // SAFETY: the caller owns the storage.
        let Some(storage) = (unsafe { exchange::share(self.device, address, bytes) }) else { return Ok(None) };
        let (given, recipe) = {
            let state = self.state();
            let generation = storage.generation();
            (state.given.get(&(generation, 0)).cloned(), state.book.get(&(generation, version)).cloned())
        };
        if let Some(given) = given {
            // If the saved tensor is gone, or was written to, these bytes are no longer the ones it saved.
            return Ok(given.upgrade().filter(|_| version == 0));
        }
        let recipe = recipe.map(|recipe| recipe as Arc<dyn Recomputation>);
        self.engine.save(&storage, version, look.dtype(), stream.as_ref(), recipe, || name)
    }

    /// Returns the storage of saved bytes.
    fn need(&self, held: &Arc<offload::SavedHandle>, stream: usize) -> Result<Storage, OffloadError> {
        let storage = self.engine.need(held, self.stream(stream).as_ref())?;
        self.state().given.insert((storage.generation(), 0), Arc::downgrade(held));
        Ok(storage)
    }

    /// Begins a step. It is measured if its kind is unknown, or if more bytes are held now than when it was measured,
    /// such as an optimizer's state. Returns whether it runs unwatched.
    fn begin_step(&self, signature: Signature) -> Result<bool, OffloadError> {
        let held_bytes = self.engine.memory().statistics().all.allocated_bytes.current;
        self.interrupt();
        let mut state = self.state();
        state.given.retain(|_, given| given.strong_count() > 0);
        let BudgetState { percent, plain_bytes, kinds, passes, .. } = &mut *state;
        if kinds.len() == MOST_KINDS {
            kinds.clear();
            self.engine.forget();
        }
        let kind = kinds.entry(signature.id).or_default();
        // A step that holds more each time is measured less and less often.
        let tolerance =
            (self.engine.min_tensor_bytes() + (kind.held_bytes >> 8)) << kind.passes.saturating_sub(1).min(16);
        let is_plain_known = *passes >= PASSES;
        let is_renewed = !is_plain_known || (kind.passes > 0 && held_bytes > kind.held_bytes + tolerance);
        kind.renewals += u64::from(is_renewed);
        // Whatever the kind of the step: there may be programs in which none comes twice.
        if is_plain_known && let Some(percent) = percent.take() {
            self.engine.set_budget((*plain_bytes as f64 * percent / 100.0) as u64);
        }
        let mut hasher = DefaultHasher::new();
        (signature.id, kind.renewals).hash(&mut hasher);
        let pass = if percent.is_some() { Pass::Plain } else { Pass::Budgeted };
        drop(state);
        let step = self.engine.begin(Signature { id: hasher.finish(), ..signature }, pass)?;
        let is_unwatched = step.is_unwatched();
        let measures = (is_renewed || step.is_measured()).then_some(signature.id);
        let mut state = self.state();
        if let Some(kind) = measures.and_then(|id| state.kinds.get_mut(&id)) {
            kind.passes += 1;
            kind.held_bytes = kind.held_bytes.max(held_bytes);
            state.passes += 1;
        }
        state.step = Some(OpenStep { step, pass, measures });
        Ok(is_unwatched)
    }

    /// Returns the identity of bytes, if they are Tenure's.
    fn id(&self, bytes: &Bytes) -> Option<SavedBytesId> {
        // SAFETY: the caller owns the storage.
        let storage = unsafe { exchange::share(self.device, bytes.address, bytes.bytes) };
        storage.map(|storage| (storage.generation(), bytes.version))
    }

    fn stream(&self, handle: usize) -> Option<Stream> {
        // SAFETY: the handle is the null stream or one of PyTorch's, which PyTorch never destroys.
        if self.device.is_cpu() { None } else { unsafe { tenure_capi::torch::stream(self.device, handle) } }
    }

    fn report(&self, report: &offload::StepReport, pass: Pass) -> StepReport {
        let is_budgeted = pass == Pass::Budgeted;
        let aside_bytes = if is_budgeted { self.engine.aside_bytes() } else { 0 };
        StepReport {
            budget_bytes: self.engine.budget_bytes().filter(|_| is_budgeted),
            peak_bytes: report.peak_bytes.map(|bytes| bytes + aside_bytes),
            spilled_bytes: report.spilled_bytes,
            fetched_bytes: report.fetched_bytes,
            recomputed_bytes: report.recomputed_bytes,
            recomputed_us: report.recomputed.as_micros() as u64,
            stalled_us: report.stalled.as_micros() as u64,
            unplanned: report.unplanned,
            is_planned: report.is_planned,
            predicted_us: report.predicted.map(|predicted| predicted.as_micros() as u64),
            codec: report.codec.to_string(),
        }
    }
}

impl Listen for BudgetInner {
    /// Returns false for operations that are captured into a CUDA graph: they are no part of the step.
    fn wishes(&self, stream: usize) -> bool {
        self.engine.count_next_operation() && !self.stream(stream).as_ref().is_some_and(is_captured)
    }

    fn operation(&self, stream: usize, made: &[Bytes], inputs: &[Bytes], call: Option<Call>) {
        let ids: Vec<Option<SavedBytesId>> = made.iter().map(|made| self.id(made)).collect();
        let stream = self.stream(stream);
        match ids.iter().flatten().next() {
            Some(id) => self.engine.operation(*id, stream.as_ref()),
            None => self.engine.begin_operation(stream.as_ref()),
        }
        let Some(call) = call.map(Arc::new) else { return };
        let made_in = self.engine.interval().and_then(|now| now.checked_sub(1));
        let Some(inputs) = inputs.iter().map(|input| self.id(input)).collect::<Option<Vec<SavedBytesId>>>() else {
            return;
        };
        let mut state = self.state();
        let inputs: Vec<Ingredient> = inputs.into_iter().map(|id| (id, state.book.get(&id).cloned())).collect();
        let recipe = |(number, (id, made)): (usize, (Option<SavedBytesId>, &Bytes))| {
            let inputs = inputs.clone();
            let call = Arc::clone(&call);
            let device = self.device;
            id.map(|id| Recipe { id, inputs, made_in, bytes: made.bytes, device, call, number })
        };
        let recipes = ids.into_iter().zip(made).enumerate().filter_map(recipe);
        let before: Vec<_> = recipes.map(|recipe| state.book.insert(recipe.id, Arc::new(recipe))).collect();
        // Freed without the lock, as at the end of a step.
        drop(state);
        drop(before);
    }
}

/// Returns Python's budget, if it is still alive.
fn owner_of<'py>(owner: &OnceLock<Py<PyAny>>, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let owner = owner.get().map(|owner| owner.bind(py).call0()).transpose()?;
    Ok(owner.filter(|owner| !owner.is_none()))
}

/// Returns the type `torch.Tensor`.
fn type_of_tensors(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "torch", "Tensor")
}

fn is_captured(stream: &Stream) -> bool {
    stream.driver().is_capturing(stream.id()).unwrap_or(false)
}

fn told(error: OffloadError) -> PyErr {
    complaint(error.to_string())
}

fn planner_of(name: &str) -> PyResult<Box<dyn Planner + Send + Sync>> {
    Ok(match name {
        "scheduled" => Box::new(Scheduled),
        "flashneuron" => Box::new(FlashNeuron),
        "evolutionary" => Box::new(Evolutionary::default()),
        "milp" => planner::milp().map_err(|error| {
            let install = "pip install --config-settings build-args=\"--features milp\" .";
            complaint(format!("planner='milp': {error}: `{install}` installs a package that has it"))
        })?,
        _ => {
            let names = "'scheduled', 'flashneuron', 'evolutionary' or 'milp'";
            return Err(complaint(format!("planner={name:?}: expected {names}")));
        }
    })
}
