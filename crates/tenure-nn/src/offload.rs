//! The connection of autograd to the offload engine: tensors that are saved for backward go into the engine's care.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;

use tenure_core::{Layout, Site, Storage};
use tenure_device::{Stream, memory};
use tenure_offload::{Engine, KnownBytes, OffloadError, Recomputation, RecomputeInput, SavedBytesId, SavedHandle};
use tenure_tensor::autograd::{Recipe, RecipeBook, Recipes, SavedHooks, SavedId};
use tenure_tensor::{AutogradError, DType, Device, Result, Tensor, TensorError, Writes};

/// Passes the tensors that a thread's operations save for backward to an [`Engine`], which keeps steps within a memory
/// budget. `Trainer::within` uses it, and so can a loop of one's own: it begins a step of the engine, and
/// [enters](Self::enter) the connection on the thread that runs the step.
///
/// This is a handle: clones share one engine.
#[derive(Clone)]
pub struct Offload {
    engine: Engine,
    /// The ranks of the storages that are never offloaded.
    staying: Arc<HashSet<usize>>,
}

/// A tensor that was saved for backward.
pub struct PackedTensor(Packed);

enum Packed {
    /// A tensor that is not offloaded.
    Kept { tensor: Tensor, version: u64 },
    /// A tensor that the engine manages.
    Offloaded { saved: Arc<SavedHandle>, layout: Layout, dtype: DType, device: Device, writes: Writes, version: u64 },
}

impl Offload {
    /// Returns a connection to an engine. The bytes of the tensors in `staying`, such as a model's parameters, are never
    /// offloaded.
    pub fn new<'a>(engine: Engine, staying: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let staying = staying.into_iter().map(|tensor| tensor.storage().rank()).collect();
        Self { engine, staying: Arc::new(staying) }
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Connects the engine to this thread: while the guards live, the engine records the operations that the thread
    /// runs, the tensors that it saves, and their uses.
    pub fn enter(&self) -> (Recipes, SavedHooks) {
        let offload = self.clone();
        let recipes = Recipes::enter(move |recipe| offload.record(recipe));
        let book = recipes.book();
        let packing = self.clone();
        let unpacking = self.clone();
        let hooks = SavedHooks::enter(
            move |tensor, id| packing.pack(tensor, id, &book),
            move |packed| unpacking.unpack(packed),
        );
        (recipes, hooks)
    }

    /// Records an operation that can be computed again.
    pub fn record(&self, recipe: &Recipe) {
        let device = self.engine.memory().device().map_or(Device::CPU, |memory| memory.device());
        self.engine.operation((recipe.id.generation, recipe.id.version), stream(device).as_ref());
    }

    /// Saves a tensor, in the engine's care if a step gains by it. `book` has the recipes to compute it again.
    ///
    /// # Errors
    /// A transfer fails.
    pub fn pack(&self, tensor: &Tensor, id: SavedId, book: &RecipeBook) -> Result<PackedTensor> {
        let SavedId { version, .. } = id;
        let kept = || PackedTensor(Packed::Kept { tensor: tensor.clone(), version });
        if self.staying.contains(&tensor.storage().rank()) {
            return Ok(kept());
        }
        let device = tensor.device();
        let dtype = tensor.dtype();
        let recomputation = book.find(id).map(|recipe| RecipeRecomputation::by(recipe, &self.staying));
        let saved = self.engine.save(tensor.storage(), version, dtype, stream(device).as_ref(), recomputation, || {
            let site = Site::current().to_string();
            format!("{} {dtype} {:?}", site.trim_matches('/'), tensor.sizes()).trim_start().to_owned()
        });
        let Some(saved) = saved.map_err(saved_error)? else { return Ok(kept()) };
        let layout = tensor.layout().clone();
        let writes = tensor.writes();
        Ok(PackedTensor(Packed::Offloaded { saved, layout, dtype, device, writes, version }))
    }

    /// Returns a saved tensor.
    ///
    /// # Errors
    /// The tensor was written to in place since; its bytes cannot come back.
    pub fn unpack(&self, packed: &PackedTensor) -> Result<Tensor> {
        match &packed.0 {
            Packed::Kept { tensor, version } => {
                check_unmodified(&tensor.writes(), *version, tensor.dtype(), tensor.sizes())?;
                Ok(tensor.clone())
            }
            Packed::Offloaded { saved, layout, dtype, device, writes, version } => {
                check_unmodified(writes, *version, *dtype, layout.sizes())?;
                let storage = self.engine.need(saved, stream(*device).as_ref()).map_err(saved_error)?;
                Tensor::with_writes(storage, layout.clone(), *dtype, writes)
            }
        }
    }
}

/// A recipe as the engine's recomputation of an operation's output.
struct RecipeRecomputation {
    recipe: Arc<Recipe>,
    staying: Arc<HashSet<usize>>,
}

impl RecipeRecomputation {
    fn by(recipe: Arc<Recipe>, staying: &Arc<HashSet<usize>>) -> Arc<dyn Recomputation> {
        Arc::new(Self { recipe, staying: Arc::clone(staying) })
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
                let of_model = ingredient.storage.upgrade().filter(|storage| self.staying.contains(&storage.rank()));
                RecomputeInput {
                    id: (ingredient.id.generation, ingredient.id.version),
                    here: of_model.or_else(|| Some(ingredient.alive()?.storage().clone())),
                    recompute: ingredient.recipe.clone().map(|recipe| Self::by(recipe, &self.staying)),
                }
            })
            .collect()
    }

    fn run(&self, known: &dyn KnownBytes) -> std::result::Result<Storage, Box<dyn Error + Send + Sync>> {
        let id_of = |id: SavedId| (id.generation, id.version);
        let find = |id| known.find(id_of(id)).map_err(saved_error);
        let made = self.recipe.compute_with(find, |id, storage| known.made(id_of(id), storage))?;
        Ok(made.storage().clone())
    }
}

/// Returns an error if a tensor was written to in place after it was saved.
fn check_unmodified(writes: &Writes, saved: u64, dtype: DType, sizes: &[usize]) -> Result<()> {
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

fn saved_error(error: OffloadError) -> TensorError {
    told("a tensor saved for backward", error)
}

/// Returns the calling thread's current stream on a device; `None` on the CPU.
pub(crate) fn stream(device: Device) -> Option<Stream> {
    let memory = memory::installed(device.index().into()).filter(|_| !device.is_cpu());
    memory.map(|memory| memory.streams().current())
}

/// Converts an offload error into an error of the operation `node`.
pub(crate) fn told(node: &str, error: OffloadError) -> TensorError {
    AutogradError::Other { node: node.into(), reason: error.to_string() }.into()
}
