//! Steps within a memory budget: the offload engine's front end for our autograd.

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

/// The divisor for the size of the pieces in which an optimizer's state comes and goes: a piece has 1/256 of the bytes
/// that stay from step to step. Weights, which never leave, are at least a quarter of these, so a piece is at most 1/64
/// of a budget that works.
const PIECES: u64 = 256;

/// An engine, and the state with which it manages the tensors that a model saves.
pub(super) struct Saving {
    engine: Engine,
    /// The storages of the model, by rank. They stay in memory anyway.
    stays: Arc<HashSet<usize>>,
    /// Whether the optimizer's state leaves memory too. Parameters are then stepped in backward.
    spills_state: bool,
}

/// A tensor saved for backward.
enum PackedTensor {
    /// A tensor that stays in memory.
    Kept { tensor: Tensor, version: u64 },
    /// A tensor that the engine holds.
    Held { saved: Arc<SavedHandle>, layout: Layout, dtype: DType, device: Device, writes: Writes, version: u64 },
}

impl Saving {
    pub(super) fn new(engine: Engine, model: &dyn Module) -> Self {
        let stays = model.state().into_iter().map(|(_, tensor)| tensor.storage().rank()).collect();
        Self { engine, stays: Arc::new(stays), spills_state: false }
    }

    pub(super) fn spills_state(&self) -> bool {
        self.spills_state
    }

    /// Lets the optimizer's state leave memory too, from now on. The pieces do not depend on the budget, so a step
    /// within another budget takes as much.
    pub(super) fn spill_state(&mut self, optimizer: &mut Optimizer, stays_bytes: u64) -> Result<()> {
        let least = self.engine.min_tensor_bytes();
        optimizer.spill(&self.engine, least as usize, least.max(stays_bytes / PIECES) as usize)?;
        self.spills_state = true;
        Ok(())
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes a step of a batch with `work`, under the engine.
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
        let step = self.engine.begin(hasher.finish(), pass).map_err(failed)?;
        let worked = {
            let _entered = self.enter();
            work(batch)
        };
        // The first failure says more than later ones.
        let worked = match (worked, self.engine.take_failure()) {
            (Err(_), Some(failure)) => return Err(failed(failure)),
            (worked, _) => worked?,
        };
        let report = step.finish().map_err(failed)?;
        if pass == Pass::Budgeted && report.peak_bytes.is_some() {
            self.engine.check().map_err(failed)?;
        }
        Ok((worked, report))
    }

    /// Connects the engine to this thread: while the guards live, the engine records all that the thread computes, saves
    /// and needs.
    fn enter(&self) -> (Recipes, SavedHooks) {
        let engine = self.engine.clone();
        let device = engine.memory().device().map_or(Device::CPU, |memory| memory.device());
        let recipes = Recipes::enter(move |recipe| {
            engine.operation((recipe.id.generation, recipe.id.version), stream(device).as_ref());
        });
        let hooks = self.hooks(recipes.book());
        (recipes, hooks)
    }

    fn hooks(&self, book: RecipeBook) -> SavedHooks {
        let engine = self.engine.clone();
        let stays = Arc::clone(&self.stays);
        let pack = move |tensor: &Tensor, id: SavedId| {
            let SavedId { version, .. } = id;
            let kept = || PackedTensor::Kept { tensor: tensor.clone(), version };
            if stays.contains(&tensor.storage().rank()) {
                return Ok(kept());
            }
            let device = tensor.device();
            let dtype = tensor.dtype();
            let again = book.find(id).map(|recipe| RecipeRecomputation::by(recipe, &stays));
            let saved = engine
                .save(tensor.storage(), version, dtype, stream(device).as_ref(), again, || {
                    format!("{} {dtype} {:?}", Site::current(), tensor.sizes())
                })
                .map_err(told)?;
            let Some(saved) = saved else { return Ok(kept()) };
            let layout = tensor.layout().clone();
            let writes = tensor.writes();
            Ok(PackedTensor::Held { saved, layout, dtype, device, writes, version })
        };
        let engine = self.engine.clone();
        SavedHooks::enter(pack, move |packed| match packed {
            PackedTensor::Kept { tensor, version } => {
                check(&tensor.writes(), *version, tensor.dtype(), tensor.sizes())?;
                Ok(tensor.clone())
            }
            PackedTensor::Held { saved, layout, dtype, device, writes, version } => {
                check(writes, *version, *dtype, layout.sizes())?;
                let storage = engine.need(saved, stream(*device).as_ref()).map_err(told)?;
                Tensor::with_writes(storage, layout.clone(), *dtype, writes)
            }
        })
    }
}

/// The recomputation of an operation's output.
struct RecipeRecomputation {
    recipe: Arc<Recipe>,
    stays: Arc<HashSet<usize>>,
}

impl RecipeRecomputation {
    fn by(recipe: Arc<Recipe>, stays: &Arc<HashSet<usize>>) -> Arc<dyn Recomputation> {
        Arc::new(Self { recipe, stays: Arc::clone(stays) })
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
                // A tensor of the model counts as present even if it was written to, since parameters may be stepped before
                // the step ends.
                let of_model = ingredient.storage.upgrade().filter(|storage| self.stays.contains(&storage.rank()));
                RecomputeInput {
                    id: (ingredient.id.generation, ingredient.id.version),
                    here: of_model.or_else(|| Some(ingredient.alive()?.storage().clone())),
                    recompute: ingredient.recipe.clone().map(|recipe| Self::by(recipe, &self.stays)),
                }
            })
            .collect()
    }

    fn run(&self, find: FindSaved<'_>) -> std::result::Result<Storage, Box<dyn Error + Send + Sync>> {
        Ok(self.recipe.compute_with(|id| find((id.generation, id.version)).map_err(told))?.storage().clone())
    }
}

/// Refuses a tensor that was written to after it was saved.
fn check(writes: &Writes, saved: u64, dtype: DType, sizes: &[usize]) -> tenure_tensor::Result<()> {
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
fn told(error: OffloadError) -> TensorError {
    offload::told("a tensor saved for backward", error)
}

/// Returns whether the budget is too small for any plan.
pub(super) fn is_too_small(error: &AnyError) -> bool {
    let AnyError::Train(TrainError::Budget(error)) = error else { return false };
    matches!(**error, OffloadError::Profile(ProfileError::TooSmall { .. }))
}

pub(super) fn failed(error: OffloadError) -> crate::Error {
    TrainError::from(Arc::new(error)).into()
}
