//! Budgets of PyTorch's tensors: the bridge from `tenure.torch.budget` and autograd's hooks to the offload engine.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tenure::core::{Device, Purpose, Storage};
use tenure::offload::{
    self, OffloadError, PacedFrontEnd, Position, Recomputation, SavedBytesId, Setup, StatePart, Watched,
};
use tenure_device::host::OnHostMemory;
use tenure_device::{Stream, exchange};

use super::steps::{BudgetPhase, FirstSaved, Steps};
use super::{BudgetSteps, SpillFolders, device_of, open_engine, planner_of, told};
use crate::errors::complaint;
use crate::operations::{Bytes, Call, Listen, OperationRecorder, SavedFacts, SavedTensor, Shim, Tensor};
use crate::purpose::module_of_key;
use crate::recipe::{Ingredient, Recipe};

thread_local! {
    /// The budget (by its address) that this thread's operations belong to, and the sequence number from which they are
    /// recorded, if they are now.
    static LISTENING: Cell<Option<(usize, Option<u64>)>> = const { Cell::new(None) };
}

/// A tensor that autograd has saved: either whole, or with its bytes in the engine's care.
#[pyclass(frozen, module = "tenure._native", name = "Packed")]
pub(crate) struct PackedTensor {
    tensor: SavedTensor,
    held: Option<Arc<offload::SavedHandle>>,
    /// The mark of the step's first saved tensor, if this is it.
    _first: Option<FirstSaved>,
}

/// A budget for a model of PyTorch: of one device's memory, or of the host's.
#[pyclass(frozen, extends = BudgetSteps, module = "tenure._native")]
pub(crate) struct Budget {
    inner: Arc<BudgetInner>,
    shim: Shim,
    recorder: Arc<OperationRecorder>,
    /// A weak reference to Python's budget.
    owner: Arc<OnceLock<Py<PyAny>>>,
}

/// The part of a budget that its recorder's listener shares.
pub(super) struct BudgetInner {
    steps: Arc<Steps>,
    device: Device,
    notes: Arc<Mutex<Notes>>,
    on_host: Mutex<Option<OnHostMemory>>,
    /// The number of threads that are in the budget.
    threads: AtomicUsize,
}

/// The part of a budget that the engine asks to watch a step's work.
struct FrontEnd {
    shim: Shim,
    inner: Weak<BudgetInner>,
    recorder: Weak<OperationRecorder>,
    /// A weak reference to Python's budget.
    owner: Arc<OnceLock<Py<PyAny>>>,
}

/// Notes on the storages of a step.
#[derive(Default)]
struct Notes {
    /// The recipe of each result of the step.
    book: HashMap<SavedBytesId, Arc<Recipe>>,
    /// Saved tensors that backward has used: autograd saves them again where backward itself is differentiated, and
    /// where a reentrant checkpoint recomputes.
    given: HashMap<SavedBytesId, Weak<offload::SavedHandle>>,
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
        spill: SpillFolders,
        host_bytes: Option<u64>,
        planner: &str,
        operations: usize,
    ) -> PyResult<PyClassInitializer<Self>> {
        // SAFETY: the package has loaded the shim, which is never unloaded.
        let shim = unsafe { Shim::at(operations) }?;
        let device = device_of(device);
        let planner = planner_of(planner)?;
        let least = Some(Setup::default().min_tensor_bytes);
        let engine = py.detach(|| open_engine(device, spill, host_bytes, planner, least)).map_err(complaint)?;
        let on_host = Mutex::new(device.is_cpu().then(OnHostMemory::enter).flatten());
        let notes = Arc::<Mutex<Notes>>::default();
        let noted = Arc::clone(&notes);
        let steps = Steps::new(engine, move || end_notes(&noted));
        let threads = AtomicUsize::new(0);
        let inner = Arc::new(BudgetInner { steps: Arc::clone(&steps), device, notes, on_host, threads });
        let recorder = OperationRecorder::new(shim, device, Arc::clone(&inner) as Arc<dyn Listen>)?;
        let recorder = Arc::new(recorder);
        // The recorder's listener has the engine, which has this.
        let (owner, recording) = (Arc::default(), Arc::downgrade(&recorder));
        let front_end =
            FrontEnd { shim, inner: Arc::downgrade(&inner), recorder: recording, owner: Arc::clone(&owner) };
        steps.engine.count_allocations(Arc::new(front_end));
        let budget = Self { inner, shim, recorder, owner };
        Ok(PyClassInitializer::from(BudgetSteps { steps }).add_subclass(budget))
    }

    /// Sets `owner`, a weak reference to Python's budget. It is called where a tensor is saved between steps, and where
    /// a step that was not watched finds no room.
    fn attach(&self, owner: Py<PyAny>) {
        let _ = self.owner.set(owner);
        let inner = Arc::downgrade(&self.inner);
        let owner = Arc::clone(&self.owner);
        self.inner.steps.engine.on_wake(move || {
            let Some(inner) = inner.upgrade() else { return };
            Python::attach(|py| {
                let wakes = owner_of(&owner, py).and_then(|owner| {
                    let Some(owner) = owner else { return Ok(false) };
                    owner.call_method0(intern!(py, "_wake"))?.extract()
                });
                // An error cannot be reported to the code that allocates. Without its hooks, the step has the room
                // there is.
                if wakes.unwrap_or(false) {
                    inner.steps.enter(BudgetPhase::Watched);
                }
            });
        });
    }

    /// Counts a thread that enters the budget, or one that leaves it.
    fn count_thread(&self, enters: bool) {
        let threads = &self.inner.threads;
        let _ = if enters { threads.fetch_add(1, Ordering::Relaxed) } else { threads.fetch_sub(1, Ordering::Relaxed) };
    }

    /// Keeps storages at these addresses in memory from now on.
    fn stay(&self, staying: Vec<usize>) {
        self.recorder.begin(&staying);
    }

    /// Lifts the budget. Saved tensors can still be fetched.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            drop(self.inner.on_host.lock().unwrap_or_else(PoisonError::into_inner).take());
            self.inner.steps.close()
        })
        .map_err(told)
    }

    /// Starts or stops the recording of this thread's operations. They are recorded only where the engine may recompute
    /// them.
    fn listen(&self, on: bool) {
        let from = self.inner.steps.engine.operations_from().filter(|_| on);
        self.recorder.listen(from);
        LISTENING.set(on.then_some((self.inner.address(), from)));
    }

    /// Saves a tensor for backward, in the engine's care if the budget gains by it.
    fn pack(&self, tensor: &Bound<'_, PyAny>) -> PyResult<PackedTensor> {
        let py = tensor.py();
        if self.inner.steps.is(BudgetPhase::NoStep)
            && let Some(owner) = owner_of(&self.owner, py)?
        {
            owner.call_method1(intern!(py, "_begin_by_saving"), (tensor,))?;
        }
        // A subclass of `torch.Tensor` may hold more than its bytes.
        let is_plain = tensor.get_type().is(type_of_tensors(py)?);
        let tensor = Tensor::of(tensor)?;
        let look =
            if self.inner.steps.is(BudgetPhase::Watched) { self.recorder.look(tensor) } else { SavedFacts::default() };
        let may_go = is_plain && look.may_go;
        let is_large = look.bytes.bytes as u64 >= self.inner.steps.engine.min_tensor_bytes();
        let held = if may_go && is_large {
            let name = if self.inner.steps.engine.has_name() {
                String::new()
            } else {
                let module = module_of_key(Purpose::current().1.to_raw());
                format!("{module} {}", tensor.name(self.shim)).trim_start().to_owned()
            };
            let stream = self.shim.stream(self.inner.device);
            let held = py.detach(|| self.inner.save(look, stream, name)).map_err(told)?;
            self.listen_again();
            held
        } else {
            if may_go {
                self.inner.steps.engine.pass_save();
            }
            None
        };
        Ok(PackedTensor {
            tensor: SavedTensor::new(self.shim, tensor, held.is_some())?,
            held,
            _first: self.inner.steps.first(),
        })
    }

    /// Returns a saved tensor to backward.
    fn unpack<'py>(&self, py: Python<'py>, packed: &PackedTensor) -> PyResult<Bound<'py, PyAny>> {
        self.inner.steps.need();
        if let Some(words) = packed.tensor.modified() {
            return Err(PyRuntimeError::new_err(words));
        }
        let stream = self.shim.stream(self.inner.device);
        let bytes = match &packed.held {
            Some(held) => Some(py.detach(|| self.inner.need(held, stream)).map_err(told)?),
            None => None,
        };
        packed.tensor.restored(py, bytes)
    }
}

impl Budget {
    /// Returns the part that is shared, and the shim.
    pub(super) fn parts(&self) -> (Arc<BudgetInner>, Shim) {
        (Arc::clone(&self.inner), self.shim)
    }

    /// Updates this thread's recording, if it listens, to whether the engine may recompute the operations that follow.
    fn listen_again(&self) {
        let Some((inner, from)) = LISTENING.get() else { return };
        if inner == self.inner.address() && from != self.inner.steps.engine.operations_from() {
            self.listen(true);
        }
    }
}

impl BudgetInner {
    pub(super) fn device(&self) -> Device {
        self.device
    }

    pub(super) fn engine(&self) -> &offload::Engine {
        &self.steps.engine
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
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
            let notes = self.notes();
            let generation = storage.generation();
            (notes.given.get(&(generation, 0)).cloned(), notes.book.get(&(generation, version)).cloned())
        };
        if let Some(given) = given {
            // If the saved tensor is gone, or was written to, these bytes are no longer the ones it saved.
            return Ok(given.upgrade().filter(|_| version == 0));
        }
        let recipe = recipe.map(|recipe| recipe as Arc<dyn Recomputation>);
        self.steps.engine.save(&storage, version, look.dtype(), stream.as_ref(), recipe, || name)
    }

    /// Returns the storage of saved bytes.
    fn need(&self, held: &Arc<offload::SavedHandle>, stream: usize) -> Result<Storage, OffloadError> {
        let storage = self.steps.engine.need(held, self.stream(stream).as_ref())?;
        self.notes().given.insert((storage.generation(), 0), Arc::downgrade(held));
        Ok(storage)
    }

    /// Returns the identity of bytes, if they are Tenure's.
    fn id(&self, bytes: &Bytes) -> Option<SavedBytesId> {
        // SAFETY: the caller owns the storage.
        let storage = unsafe { exchange::share(self.device, bytes.address, bytes.bytes) };
        storage.map(|storage| (storage.generation(), bytes.version))
    }

    /// Returns a stream of PyTorch's. None on the CPU.
    pub(super) fn stream(&self, handle: usize) -> Option<Stream> {
        // SAFETY: the handle is the null stream or one of PyTorch's, which PyTorch never destroys.
        if self.device.is_cpu() { None } else { unsafe { tenure_capi::torch::stream(self.device, handle) } }
    }
}

/// Forgets the recipes of a step, and saved tensors that are gone.
fn end_notes(notes: &Mutex<Notes>) {
    let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    let book = std::mem::take(&mut notes.book);
    notes.given.retain(|_, given| given.strong_count() > 0);
    drop(notes);
    // Recipes and what they keep are freed with no lock held: PyTorch may need the GIL for it.
    drop(book);
}

impl Listen for BudgetInner {
    /// Returns false for operations that are captured into a CUDA graph: they are no part of the step.
    fn wishes(&self, stream: usize) -> bool {
        !self.stream(stream).as_ref().is_some_and(is_captured) && self.steps.engine.count_next_operation()
    }

    fn operation(&self, stream: usize, made: &[Bytes], inputs: &[Bytes], call: Option<Call>) {
        let ids: Vec<Option<SavedBytesId>> = made.iter().map(|made| self.id(made)).collect();
        let stream = self.stream(stream);
        match ids.iter().flatten().next() {
            Some(id) => self.steps.engine.operation(*id, stream.as_ref()),
            None => self.steps.engine.begin_operation(stream.as_ref()),
        }
        let Some(call) = call.map(Arc::new) else {
            // Autograd may have saved an argument before the operation wrote to it, as in `rrelu`.
            for written in inputs.iter().filter_map(|written| self.id(written)) {
                self.steps.engine.stay(written);
                let outdated = self.notes().book.remove(&written);
                drop(outdated);
            }
            return;
        };
        let made_in = self.steps.engine.interval().and_then(|now| now.checked_sub(1));
        let Some(inputs) = inputs.iter().map(|input| self.id(input)).collect::<Option<Vec<SavedBytesId>>>() else {
            return;
        };
        let mut notes = self.notes();
        let inputs: Vec<Ingredient> = inputs.into_iter().map(|id| (id, notes.book.get(&id).cloned())).collect();
        let mut before = Vec::new();
        for (number, (id, made)) in ids.into_iter().zip(made).enumerate() {
            let Some(id) = id else { continue };
            let inputs = inputs.clone();
            let call = Arc::clone(&call);
            let recipe = Recipe { id, inputs, made_in, bytes: made.bytes, device: self.device, call, number };
            before.push(notes.book.insert(id, Arc::new(recipe)));
        }
        // Freed without the lock, as at the end of a step.
        drop(notes);
        drop(before);
    }
}

impl PacedFrontEnd for FrontEnd {
    fn position(&self) -> Position {
        self.shim.position()
    }

    fn is_alone(&self) -> bool {
        self.inner.upgrade().is_none_or(|inner| inner.threads.load(Ordering::Relaxed) <= 1)
    }

    fn stream(&self) -> Option<Stream> {
        let inner = self.inner.upgrade()?;
        inner.stream(self.shim.stream(inner.device))
    }

    fn watch(&self, watched: Watched) {
        let Some(inner) = self.inner.upgrade() else { return };
        if self.shim.sequence().is_none() {
            // Backward restores the hooks that the thread had before it, after each operation.
            return;
        }
        self.shim.set_only_hooks(watched.saves);
        if LISTENING.get().is_some_and(|(listening, _)| listening == inner.address())
            && let Some(recorder) = self.recorder.upgrade()
        {
            recorder.listen(watched.operations_from);
            LISTENING.set(Some((inner.address(), watched.operations_from)));
        }
    }

    fn release_state(&self, bytes: u64, part: StatePart) -> bool {
        // An error leaves the state where it is: the budget is then too small, which the engine reports.
        Python::attach(|py| match owner_of(&self.owner, py) {
            Ok(Some(owner)) => {
                let arguments = (bytes, part == StatePart::All);
                owner.call_method1(intern!(py, "_release_state"), arguments).and_then(|has| has.extract())
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        })
        .unwrap_or(false)
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
