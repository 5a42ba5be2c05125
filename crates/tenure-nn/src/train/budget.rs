//! Steps within a memory budget: connects the offload engine to autograd.

use std::collections::HashSet;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_core::{Layout, Site, Storage};
use tenure_offload::{
    Engine, FindSaved, OffloadError, Pass, ProfileError, Recomputation, RecomputeInput, SavedBytesId, SavedHandle,
    StepReport,
};
use tenure_tensor::autograd::{Recipe, RecipeBook, Recipes, SavedHooks, SavedId};
use tenure_tensor::{AutogradError, DType, Device, Tensor, TensorError, Writes};

use super::{TrainError, captured};
use crate::data::Tensors;
use crate::offload::{self, stream};
use crate::optim::Optimizer;
use crate::{Error as AnyError, Module, Result};

/// The divisor for the size of the pieces in which an optimizer's state is moved in and out: a piece has 1/256 of the
/// bytes that stay allocated from step to step. Weights, which never leave, are at least a quarter of these, so a piece
/// is at most 1/64 of a budget that works.
const PIECES: u64 = 256;

/// A trainer's connection to the engine that offloads the tensors saved for backward.
pub(super) struct Offload {
    engine: Engine,
    /// The storages of the model, by rank, which are never offloaded.
    model_storages: Arc<HashSet<usize>>,
    /// Whether the optimizer's state is offloaded too. Parameters are then updated during backward.
    spills_state: bool,
}

/// A tensor saved for backward.
enum PackedTensor {
    /// A tensor that is not offloaded.
    Kept { tensor: Tensor, version: u64 },
    /// A tensor that the engine manages.
    Offloaded { saved: Arc<SavedHandle>, layout: Layout, dtype: DType, device: Device, writes: Writes, version: u64 },
}

impl Offload {
    pub(super) fn new(engine: Engine, model: &dyn Module) -> Self {
        let model_storages = model.state().into_iter().map(|(_, tensor)| tensor.storage().rank()).collect();
        Self { engine, model_storages: Arc::new(model_storages), spills_state: false }
    }

    pub(super) fn spills_state(&self) -> bool {
        self.spills_state
    }

    /// Offloads the optimizer's state too, from now on. `resident_bytes` are the bytes that stay allocated from step to
    /// step. The size of the pieces does not depend on the budget, so a step needs the same memory under any budget.
    pub(super) fn spill_state(&mut self, optimizer: &mut Optimizer, resident_bytes: u64) -> Result<()> {
        let least = self.engine.min_tensor_bytes();
        optimizer.spill(&self.engine, least as usize, least.max(resident_bytes / PIECES) as usize)?;
        self.spills_state = true;
        Ok(())
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs `work`, the step of a batch, under the engine. Returns the result and the engine's report.
    pub(super) fn step<B: Tensors, R>(
        &self,
        batch: &mut B,
        pass: Pass,
        work: impl FnOnce(&B) -> Result<R>,
    ) -> Result<(R, StepReport)> {
        let mut hasher = DefaultHasher::new();
        for (sizes, dtype, _) in captured::kind(batch)? {
            (sizes, dtype.name()).hash(&mut hasher);
        }
        let step = self.engine.begin(hasher.finish(), pass).map_err(train_error)?;
        let result = {
            let _entered = self.enter();
            work(batch)
        };
        // An error of the engine is the cause of the error of `work`.
        let result = match (result, self.engine.take_cause()) {
            (Err(_), Some(failure)) => return Err(train_error(failure)),
            (result, _) => result?,
        };
        let report = step.finish().map_err(train_error)?;
        if pass == Pass::Budgeted && report.peak_bytes.is_some() {
            self.engine.check().map_err(train_error)?;
        }
        Ok((result, report))
    }

    /// Connects the engine to this thread: while the guards live, the engine records the operations that the thread
    /// runs, the tensors that it saves, and their uses.
    fn enter(&self) -> (Recipes, SavedHooks) {
        let engine = self.engine.clone();
        let device = engine.memory().device().map_or(Device::CPU, |memory| memory.device());
        let recipes = Recipes::enter(move |recipe| {
            engine.operation((recipe.id.generation, recipe.id.version), stream(device).as_ref());
        });
        let hooks = self.hooks(recipes.book());
        (recipes, hooks)
    }

    /// Returns hooks through which the engine gets the tensors saved for backward. `book` has the recipes to compute
    /// them again.
    fn hooks(&self, book: RecipeBook) -> SavedHooks {
        let engine = self.engine.clone();
        let model_storages = Arc::clone(&self.model_storages);
        let pack = move |tensor: &Tensor, id: SavedId| {
            let SavedId { version, .. } = id;
            let kept = || PackedTensor::Kept { tensor: tensor.clone(), version };
            if model_storages.contains(&tensor.storage().rank()) {
                return Ok(kept());
            }
            let device = tensor.device();
            let dtype = tensor.dtype();
            let recomputation = book.find(id).map(|recipe| RecipeRecomputation::by(recipe, &model_storages));
            let saved = engine
                .save(tensor.storage(), version, dtype, stream(device).as_ref(), recomputation, || {
                    format!("{} {dtype} {:?}", Site::current(), tensor.sizes())
                })
                .map_err(tensor_error)?;
            let Some(saved) = saved else { return Ok(kept()) };
            let layout = tensor.layout().clone();
            let writes = tensor.writes();
            Ok(PackedTensor::Offloaded { saved, layout, dtype, device, writes, version })
        };
        let engine = self.engine.clone();
        SavedHooks::enter(pack, move |packed| match packed {
            PackedTensor::Kept { tensor, version } => {
                check_unmodified(&tensor.writes(), *version, tensor.dtype(), tensor.sizes())?;
                Ok(tensor.clone())
            }
            PackedTensor::Offloaded { saved, layout, dtype, device, writes, version } => {
                check_unmodified(writes, *version, *dtype, layout.sizes())?;
                let storage = engine.need(saved, stream(*device).as_ref()).map_err(tensor_error)?;
                Tensor::with_writes(storage, layout.clone(), *dtype, writes)
            }
        })
    }
}

/// A recipe as the engine's recomputation of an operation's output.
struct RecipeRecomputation {
    recipe: Arc<Recipe>,
    model_storages: Arc<HashSet<usize>>,
}

impl RecipeRecomputation {
    fn by(recipe: Arc<Recipe>, model_storages: &Arc<HashSet<usize>>) -> Arc<dyn Recomputation> {
        Arc::new(Self { recipe, model_storages: Arc::clone(model_storages) })
    }
}

impl Recomputation for RecipeRecomputation {
    fn id(&self) -> SavedBytesId {
        (self.recipe.id.generation, self.recipe.id.version)
    }

    fn inputs(&self) -> Vec<RecomputeInput> {
        let ingredients = self.recipe.inputs.iter();
        ingredients
            .map(|ingredient| {
                // A tensor of the model counts as present even if it was written to, since parameters may be stepped
                // before the step ends.
                let of_model =
                    ingredient.storage.upgrade().filter(|storage| self.model_storages.contains(&storage.rank()));
                RecomputeInput {
                    id: (ingredient.id.generation, ingredient.id.version),
                    here: of_model.or_else(|| Some(ingredient.alive()?.storage().clone())),
                    recompute: ingredient.recipe.clone().map(|recipe| Self::by(recipe, &self.model_storages)),
                }
            })
            .collect()
    }

    fn run(&self, find: FindSaved<'_>) -> std::result::Result<Storage, Box<dyn Error + Send + Sync>> {
        Ok(self.recipe.compute_with(|id| find((id.generation, id.version)).map_err(tensor_error))?.storage().clone())
    }
}

/// Returns an error if a tensor was written to in place after it was saved.
fn check_unmodified(writes: &Writes, saved: u64, dtype: DType, sizes: &[usize]) -> tenure_tensor::Result<()> {
    let found = writes.count();
    if found == saved {
        return Ok(());
    }
    // Autograd adds the names of the node that needs the tensor and of the operation that made it.
    let node = String::new();
    let origin = String::new();
    let writer = writes.last_writer();
    Err(AutogradError::Modified { node, dtype, sizes: sizes.to_vec(), origin, writer, found, saved }.into())
}

/// Converts an offload error into one of autograd.
fn tensor_error(error: OffloadError) -> TensorError {
    offload::told("a tensor saved for backward", error)
}

/// Returns whether the budget is too small for any plan.
pub(super) fn is_too_small(error: &AnyError) -> bool {
    let AnyError::Train(TrainError::Budget(error)) = error else { return false };
    matches!(**error, OffloadError::Profile(ProfileError::TooSmall { .. }))
}

/// Converts an offload error into an error of training.
pub(super) fn train_error(error: OffloadError) -> crate::Error {
    TrainError::from(Arc::new(error)).into()
}
