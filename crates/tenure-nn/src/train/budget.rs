//! Steps within a budget of memory: the front end of the offload engine to our autograd.

use std::collections::HashSet;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_core::{Layout, Site, Storage};
use tenure_offload::{Engine, Find, Id, Input, OffloadError, Pass, ProfileError, Recompute, Saved, StepReport};
use tenure_tensor::autograd::{Ingredient, Recipe, RecipeBook, Recipes, SavedHooks, SavedId};
use tenure_tensor::{AutogradError, DType, Device, Tensor, TensorError, Writes};

use super::{TrainError, captured};
use crate::data::Tensors;
use crate::offload::{self, stream};
use crate::optim::Optimizer;
use crate::{Error as AnyError, Module, Result};

/// An optimizer's state comes and goes in pieces: each this part of what stays from step to step. Weights, which never
/// leave, are a quarter or more of that, so a piece is at most 1/64 of a budget that works.
const PIECES: u64 = 256;

/// Has an engine look after what a model saves.
pub(super) struct Saving {
    engine: Engine,
    /// Storages of the model, by rank: they stay anyway.
    stays: Arc<HashSet<usize>>,
    /// Whether the optimizer's state leaves memory too, and parameters are stepped in backward.
    spills_state: bool,
}

/// A tensor that was saved.
enum Packed {
    /// Where it is.
    Kept { tensor: Tensor, version: u64 },
    /// By the engine.
    Held { saved: Arc<Saved>, layout: Layout, dtype: DType, device: Device, writes: Writes, version: u64 },
}

impl Saving {
    pub(super) fn new(engine: Engine, model: &dyn Module) -> Self {
        let stays = model.state().into_iter().map(|(_, tensor)| tensor.storage().rank()).collect();
        Self { engine, stays: Arc::new(stays), spills_state: false }
    }

    pub(super) fn spills_state(&self) -> bool {
        self.spills_state
    }

    /// The optimizer's state leaves memory too, from now on. Pieces do not depend on the budget, so that a step of another
    /// takes as much.
    pub(super) fn spill_state(&mut self, optimizer: &mut Optimizer, stays_bytes: u64) -> Result<()> {
        let least = self.engine.least_bytes();
        optimizer.spill(&self.engine, least as usize, least.max(stays_bytes / PIECES) as usize)?;
        self.spills_state = true;
        Ok(())
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes a step of a batch by `work`.
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
        // What failed first says more than what failed since.
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

    /// While they live, the engine is told of what the thread computes, saves and needs.
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
        let (engine, stays) = (self.engine.clone(), Arc::clone(&self.stays));
        let pack = move |tensor: &Tensor, id: SavedId| {
            let SavedId { version, .. } = id;
            let kept = || Packed::Kept { tensor: tensor.clone(), version };
            if stays.contains(&tensor.storage().rank()) {
                return Ok(kept());
            }
            let (device, dtype) = (tensor.device(), tensor.dtype());
            let name = || format!("{} {dtype} {:?}", Site::current(), tensor.sizes());
            let again = book.find(id).map(|recipe| Again::by(recipe, &stays));
            let saved =
                engine.save(tensor.storage(), version, dtype, stream(device).as_ref(), again, name).map_err(told)?;
            let Some(saved) = saved else { return Ok(kept()) };
            let (layout, writes) = (tensor.layout().clone(), tensor.writes());
            Ok(Packed::Held { saved, layout, dtype, device, writes, version })
        };
        let engine = self.engine.clone();
        let unpack = move |packed: &Packed| match packed {
            Packed::Kept { tensor, version } => {
                check(&tensor.writes(), *version, tensor.dtype(), tensor.sizes())?;
                Ok(tensor.clone())
            }
            Packed::Held { saved, layout, dtype, device, writes, version } => {
                check(writes, *version, *dtype, layout.sizes())?;
                let storage = engine.need(saved, stream(*device).as_ref()).map_err(told)?;
                Tensor::with_writes(storage, layout.clone(), *dtype, writes)
            }
        };
        SavedHooks::enter(pack, unpack)
    }
}

/// How an operation's output is computed again.
struct Again {
    recipe: Arc<Recipe>,
    stays: Arc<HashSet<usize>>,
}

impl Again {
    fn by(recipe: Arc<Recipe>, stays: &Arc<HashSet<usize>>) -> Arc<dyn Recompute> {
        Arc::new(Self { recipe, stays: Arc::clone(stays) })
    }
}

impl Recompute for Again {
    fn id(&self) -> Id {
        (self.recipe.id.generation, self.recipe.id.version)
    }

    fn inputs(&self) -> Vec<Input> {
        let input = |ingredient: &Ingredient| {
            // Parameters are stepped before the step is over.
            let of_model = ingredient.storage.upgrade().filter(|storage| self.stays.contains(&storage.rank()));
            Input {
                id: (ingredient.id.generation, ingredient.id.version),
                here: of_model.or_else(|| Some(ingredient.alive()?.storage().clone())),
                recompute: ingredient.recipe.clone().map(|recipe| Self::by(recipe, &self.stays)),
            }
        };
        self.recipe.inputs.iter().map(input).collect()
    }

    fn run(&self, find: Find<'_>) -> std::result::Result<Storage, Box<dyn Error + Send + Sync>> {
        let find = |id: SavedId| find((id.generation, id.version)).map_err(told);
        Ok(self.recipe.compute_with(find)?.storage().clone())
    }
}

/// Refuses what was written to since it was saved.
fn check(writes: &Writes, saved: u64, dtype: DType, sizes: &[usize]) -> tenure_tensor::Result<()> {
    let found = writes.count();
    if found == saved {
        return Ok(());
    }
    // Autograd knows which node needs it, and what made it.
    let (node, origin, writer) = (String::new(), String::new(), writes.last_writer());
    Err(AutogradError::Modified { node, dtype, sizes: sizes.to_vec(), origin, writer, found, saved }.into())
}

/// To autograd.
fn told(error: OffloadError) -> TensorError {
    offload::told("a tensor saved for backward", error)
}

/// Whether no plan would have kept to the budget.
pub(super) fn is_too_small(error: &AnyError) -> bool {
    let AnyError::Train(TrainError::Budget(error)) = error else { return false };
    matches!(**error, OffloadError::Profile(ProfileError::TooSmall { .. }))
}

pub(super) fn failed(error: OffloadError) -> crate::Error {
    TrainError::from(Arc::new(error)).into()
}
