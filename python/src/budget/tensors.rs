//! Budgets of Tenure's tensors: the bridge from `tenure.budget` to the offload engine.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use tenure::core::Device;
use tenure::nn::offload::{self, Offload};
use tenure::tensor::autograd::{Recipe, RecipeBook, Recipes, SavedHooks, SavedId};
use tenure::tensor::{Tensor, TensorError};

use super::steps::{BudgetPhase, FirstSaved, Steps};
use super::{BudgetSteps, SpillFolders, device_of, open_engine, planner_of};
use crate::errors::complaint;
use crate::tensor::{TensorObject, enter_budget, raised};

/// A budget for a model of Tenure's tensors: of one device's memory, or of the host's.
#[pyclass(frozen, extends = BudgetSteps, module = "tenure._native")]
pub(crate) struct TensorBudget {
    shared: Arc<Shared>,
}

/// The part of a budget that threads within it share.
struct Shared {
    steps: Arc<Steps>,
    device: Device,
    /// The engine, and the model's tensors, which stay in memory.
    offload: Mutex<Offload>,
    /// The recipes of the open step.
    book: RecipeBook,
    /// A weak reference to Python's budget.
    owner: OnceLock<Py<PyAny>>,
}

/// A tensor that was saved for backward.
struct Packed {
    tensor: offload::PackedTensor,
    budget: Arc<Shared>,
    /// The mark of the step's first saved tensor, if this is it.
    _first: Option<FirstSaved>,
}

#[pymethods]
impl TensorBudget {
    /// Makes a budget of CUDA device number `device`, or of the host's memory. `spill` is the folders to spill to,
    /// their capacity in bytes, and how many bytes may be written to them a day.
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<u16>,
        spill: SpillFolders,
        host_bytes: Option<u64>,
        planner: &str,
    ) -> PyResult<PyClassInitializer<Self>> {
        let device = device_of(device);
        let planner = planner_of(planner)?;
        let engine = py.detach(|| open_engine(device, spill, host_bytes, planner, None)).map_err(complaint)?;
        // A thread reports all that it saves, also in a step that goes unwatched: the engine has nothing to ask for.
        engine.on_wake(|| ());
        let book = RecipeBook::default();
        let ended = book.clone();
        let steps = Steps::new(engine.clone(), move || ended.clear());
        let offload = Mutex::new(Offload::new(engine, []));
        let shared = Shared { steps: Arc::clone(&steps), device, offload, book, owner: OnceLock::new() };
        Ok(PyClassInitializer::from(BudgetSteps { steps }).add_subclass(Self { shared: Arc::new(shared) }))
    }

    /// Sets `owner`, a weak reference to Python's budget. It is called where a tensor is saved between steps.
    fn attach(&self, owner: Py<PyAny>) {
        let _ = self.shared.owner.set(owner);
    }

    /// Keeps these tensors in memory from now on.
    fn stay(&self, staying: Vec<PyRef<'_, TensorObject>>) {
        let staying: Vec<Tensor> = staying.iter().map(|object| object.tensor()).collect();
        *self.shared.offload() = Offload::new(self.shared.steps.engine.clone(), &staying);
    }

    /// Makes this thread's operations belong to the steps of the last of `budgets`, and those of a device that another
    /// of them is for to the steps of that one. Returns the number to leave the setting with.
    #[staticmethod]
    fn enter(budgets: Vec<PyRef<'_, Self>>) -> u64 {
        let entered: Arc<[Arc<Shared>]> = budgets.iter().rev().map(|budget| Arc::clone(&budget.shared)).collect();
        let recording = Arc::clone(&entered);
        let book = entered[0].book.clone();
        let recipes = Recipes::enter_with(book.clone(), move |recipe| record(&recording, recipe));
        let hooks = SavedHooks::enter(move |tensor, id| pack(&entered, tensor, id, &book), unpack);
        enter_budget(recipes, hooks)
    }
}

impl Shared {
    fn offload(&self) -> MutexGuard<'_, Offload> {
        self.offload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step for a tensor that is saved between two steps.
    fn begin_by_saving(&self, tensor: &Tensor) -> Result<(), TensorError> {
        Python::attach(|py| {
            let Some(owner) = self.owner.get() else { return Ok(()) };
            let owner = owner.bind(py).call0()?;
            if owner.is_none() {
                return Ok(());
            }
            let tensor = TensorObject::from(tensor.clone());
            owner.call_method1(intern!(py, "_begin_by_saving"), (tensor,)).map(drop)
        })
        .map_err(raised)
    }
}

/// Returns the budget of a device's memory, or the innermost if there is none.
fn budget_of(entered: &[Arc<Shared>], device: Device) -> &Arc<Shared> {
    entered.iter().find(|budget| budget.device == device).unwrap_or(&entered[0])
}

fn record(entered: &[Arc<Shared>], recipe: &Recipe) {
    let budget = budget_of(entered, recipe.device());
    let offload = budget.offload().clone();
    offload.record(recipe);
}

fn pack(entered: &[Arc<Shared>], tensor: &Tensor, id: SavedId, book: &RecipeBook) -> tenure::tensor::Result<Packed> {
    let budget = budget_of(entered, tensor.device());
    if budget.steps.is(BudgetPhase::NoStep) {
        budget.begin_by_saving(tensor)?;
    }
    let offload = budget.offload().clone();
    let tensor = offload.pack(tensor, id, book)?;
    Ok(Packed { tensor, budget: Arc::clone(budget), _first: budget.steps.first() })
}

fn unpack(packed: &Packed) -> tenure::tensor::Result<Tensor> {
    packed.budget.steps.need();
    let offload = packed.budget.offload().clone();
    offload.unpack(&packed.tensor)
}
