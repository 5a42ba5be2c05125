//! Recipes: how the bytes of an operation's output are computed again.
//!
//! With a checkpoint, the caller decides before a function runs that none of its tensors are kept. With a recipe, the
//! caller decides after the operation, tensor by tensor. A recipe is found by the id of the bytes that it computes, and
//! refers to its inputs by the ids of their bytes, which it does not keep alive. An input that was freed or written to
//! can be computed by a recipe of its own.
//!
//! An operation records its recipe after it called its kernel: after autocast's conversions, which are operations
//! themselves, and before any tensor is saved for backward. An operation that draws random numbers has drawn them by
//! then, and its recipe has the generator's state before the draw. So a recipe depends on no setting of a thread.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tenure_core::{DType, Device, Layout, Storage, WeakStorage};

use super::checkpoint::is_running_again;
use super::hooks::SavedId;
use super::mode::{is_grad_enabled, no_grad};
use crate::autocast::Autocast;
use crate::error::AutogradError;
use crate::scopes::Scopes;
use crate::{Result, Tensor, TensorError, Writes, precision, tuning};

/// A function that computes an output from the kernel's input tensors.
type Recompute = Box<dyn Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync>;
/// A function that is called with each new recipe.
type Observer = Box<dyn Fn(&Arc<Recipe>) + Send + Sync>;

/// A scope in which this thread's operations outside of [`no_grad`] record how to compute their output again:
/// elementwise operations, copies and conversions, matrix products, convolutions, attention, norms, softmax, dropout,
/// pooling, sums, joins and selections. The latest scope that is alive gets the recipes. Operations that a
/// [`checkpoint`](super::checkpoint) runs again record none.
///
/// A view is found under the id of its base. A tensor that was written to in place has no recipe.
///
/// ```
/// use tenure_tensor::Tensor;
/// use tenure_tensor::autograd::{Recipes, SavedId};
///
/// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0], &[5])?.requires_grad_(true)?;
/// let recipes = Recipes::enter(|_| {});
/// let hidden = x.exp()?;
/// let y = hidden.add(1)?;
/// let (id, expected) = (SavedId::of(&y), y.to_vec::<f32>()?);
/// drop((hidden, y));
///
/// let recipe = recipes.find(id).expect("add has one");
/// assert!(recipe.inputs[0].alive().is_none());
/// assert_eq!(recipe.compute()?.to_vec::<f32>()?, expected);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
#[must_use = "it holds for as long as it lives"]
pub struct Recipes {
    book: RecipeBook,
    scope: u64,
    thread: PhantomData<*const ()>,
}

/// A shared handle to the recipes of one [`Recipes`] scope, for functions such as [`SavedHooks`](super::SavedHooks)
/// that need them later. The recipes are freed with the last handle.
#[derive(Clone, Default)]
pub struct RecipeBook {
    recipes: Arc<Mutex<HashMap<SavedId, Arc<Recipe>>>>,
}

/// The state of one [`Recipes`] scope.
struct RecipeScope {
    book: RecipeBook,
    observer: Observer,
}

thread_local! {
    static SCOPES: Scopes<Arc<RecipeScope>> = const { Scopes::new() };
}

impl Recipes {
    /// Begins the scope. `observer` is called with each recipe after the operation's kernel was launched, and before
    /// any of its tensors are saved.
    pub fn enter(observer: impl Fn(&Arc<Recipe>) + Send + Sync + 'static) -> Self {
        Self::enter_with(RecipeBook::default(), observer)
    }

    /// Begins the scope as [`enter`](Self::enter) does, and keeps its recipes in `book`, which several threads may
    /// share.
    pub fn enter_with(book: RecipeBook, observer: impl Fn(&Arc<Recipe>) + Send + Sync + 'static) -> Self {
        let scope = RecipeScope { book: book.clone(), observer: Box::new(observer) };
        Self { book, scope: Scopes::enter(&SCOPES, Arc::new(scope)), thread: PhantomData }
    }

    /// Returns the recipe that computes the bytes `id`. `None` if no operation of this scope computed them, or the
    /// operation has no recipe, or it wrote in place.
    pub fn find(&self, id: SavedId) -> Option<Arc<Recipe>> {
        self.book.find(id)
    }

    /// Returns a handle to all of the recipes.
    pub fn book(&self) -> RecipeBook {
        self.book.clone()
    }
}

impl Drop for Recipes {
    fn drop(&mut self) {
        Scopes::leave(&SCOPES, self.scope);
    }
}

impl RecipeBook {
    /// Returns the recipe that computes the bytes `id`, if there is one.
    pub fn find(&self, id: SavedId) -> Option<Arc<Recipe>> {
        self.recipes.lock().get(&id).cloned()
    }

    /// Forgets all recipes, such as those of a step that is over. What [`find`](Self::find) returned before stays.
    pub fn clear(&self) {
        // The recipes are freed without the lock.
        drop(std::mem::take(&mut *self.recipes.lock()));
    }
}

/// A way to compute an operation's output again. The output lies at the beginning of a new storage, all of whose bytes
/// the recipe computes.
pub struct Recipe {
    /// The operation's name.
    pub name: &'static str,
    /// The id of the bytes that the recipe computes.
    pub id: SavedId,
    /// The inputs of the kernel, after autocast's conversions.
    pub inputs: Vec<Ingredient>,
    recompute: Recompute,
    output: OutputKind,
    settings: Settings,
}

/// A weak reference to an input of a recipe: it does not keep the bytes alive. Only an input of at most 8 bytes on the
/// CPU, such as a number, is kept.
pub struct Ingredient {
    /// The id of the bytes.
    pub id: SavedId,
    /// The layout of the input in its storage.
    pub layout: Layout,
    /// The type of the elements.
    pub dtype: DType,
    /// The device that the bytes were on.
    pub device: Device,
    /// The storage of the bytes, if it is still alive.
    pub storage: WeakStorage,
    /// The count of writes in place to the storage.
    pub writes: Writes,
    /// The recipe that computes these bytes, if there was one when the recipe that needs them was recorded.
    pub recipe: Option<Arc<Recipe>>,
    kept: Option<Storage>,
}

/// The layout, type, device and size of a recipe's output.
#[derive(Debug, PartialEq)]
struct OutputKind {
    layout: Layout,
    dtype: DType,
    device: Device,
    bytes: usize,
}

/// The settings of the process that can change the bits of a result.
#[derive(PartialEq)]
struct Settings {
    tf32: [bool; 2],
    measures_algorithms: bool,
}

impl Recipe {
    /// Computes the output again from `inputs`, which must have the layouts, dtypes and devices in
    /// [`inputs`](Self::inputs), on this thread's current stream. The output requires no gradient. Settings of the
    /// thread have no effect; no tensor is saved, no random number drawn and no recipe recorded.
    ///
    /// # Errors
    /// The inputs differ from the recipe's; the precision of products ([`precision`]), or whether algorithms are
    /// measured ([`tuning`]), was changed since; the errors of the operation.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let fits = self.inputs.iter().zip(inputs).all(|(input, tensor)| {
            (tensor.layout(), tensor.dtype(), tensor.device()) == (&input.layout, input.dtype, input.device)
        });
        if inputs.len() != self.inputs.len() || !fits {
            return Err(self.error("it was given other inputs than its recipe says"));
        }
        if self.settings != Settings::now() {
            return Err(self.error(
                "how exactly devices multiply, or whether algorithms are measured, was changed since: set it before the \
                 forward pass",
            ));
        }
        let _autocast = Autocast::enter(None);
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        let output = no_grad(|| (self.recompute)(&inputs))?;
        if OutputKind::of(&output) != self.output {
            return Err(self.error(&format!("it gave {:?} in place of {:?}", OutputKind::of(&output), self.output)));
        }
        Ok(output)
    }

    /// Computes the output again. Inputs that are no longer in memory are computed again first, once each, by recipes
    /// of their own, and are kept until the call returns.
    ///
    /// # Errors
    /// An input is no longer in memory, or was modified in place, and has no recipe; the errors of [`run`](Self::run).
    pub fn compute(&self) -> Result<Tensor> {
        self.compute_with(|_| Ok(None), |_, _| ())
    }

    /// Does the same as [`compute`](Self::compute), but asks `find` for the storage of an input that is not in memory,
    /// before the input is computed again. Tells `made` of each input that was computed again.
    ///
    /// # Errors
    /// The errors of [`compute`](Self::compute) and of `find`.
    pub fn compute_with(
        &self,
        find: impl Fn(SavedId) -> Result<Option<Storage>>,
        made: impl Fn(SavedId, &Storage),
    ) -> Result<Tensor> {
        // A loop rather than a recursion: a chain may be deeper than the stack.
        let mut current = self;
        // Recipes that need the output of `current`, directly or through each other.
        let mut waiting = Vec::new();
        let mut computed: HashMap<SavedId, Tensor> = HashMap::new();
        loop {
            let mut inputs = Vec::with_capacity(current.inputs.len());
            let mut missing = None;
            for input in &current.inputs {
                match computed.get(&input.id) {
                    Some(whole) => inputs.push(input.on(whole.storage())?),
                    None => match input.alive() {
                        Some(tensor) => inputs.push(tensor),
                        None => match find(input.id)? {
                            Some(storage) => inputs.push(input.on(&storage)?),
                            None => {
                                missing = Some(input);
                                break;
                            }
                        },
                    },
                }
            }
            if let Some(input) = missing {
                let recipe = input.recipe.as_deref().ok_or_else(|| current.error(&input.why_missing()))?;
                waiting.push(current);
                current = recipe;
                continue;
            }
            let output = current.run(&inputs)?;
            let Some(later) = waiting.pop() else { return Ok(output) };
            made(current.id, output.storage());
            computed.insert(current.id, output);
            current = later;
        }
    }

    /// Returns the device of the output.
    pub fn device(&self) -> Device {
        self.output.device
    }

    fn error(&self, reason: &str) -> TensorError {
        let reason = format!("this cannot be computed again: {reason}");
        AutogradError::Other { node: self.name.to_owned(), reason }.into()
    }
}

impl Drop for Recipe {
    /// Drops recipes one after the other rather than recursively: a chain may be deeper than the stack.
    fn drop(&mut self) {
        let mut chain: Vec<Arc<Self>> = self.inputs.iter_mut().filter_map(|input| input.recipe.take()).collect();
        while let Some(next) = chain.pop() {
            if let Some(mut last) = Arc::into_inner(next) {
                chain.extend(last.inputs.iter_mut().filter_map(|input| input.recipe.take()));
            }
        }
    }
}

impl Ingredient {
    fn of(tensor: &Tensor, book: &RecipeBook) -> Self {
        /// The largest size of a number in bytes.
        const NUMBER_BYTES: usize = 8;
        let id = SavedId::of(tensor);
        let storage = tensor.storage();
        let is_number = tensor.device().is_cpu() && storage.bytes() <= NUMBER_BYTES;
        Self {
            id,
            layout: tensor.layout().clone(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            storage: storage.downgrade(),
            writes: tensor.writes(),
            recipe: book.find(id),
            kept: is_number.then(|| storage.clone()),
        }
    }

    /// Returns the input, without a gradient, if its bytes are still in memory and were not written to since.
    pub fn alive(&self) -> Option<Tensor> {
        let storage = self.kept.clone().or_else(|| self.storage.upgrade())?;
        if storage.generation() != self.id.generation {
            return None;
        }
        let tensor = Tensor::with_writes(storage, self.layout.clone(), self.dtype, &self.writes).ok()?;
        (SavedId::of(&tensor) == self.id).then_some(tensor)
    }

    /// Returns the input as a tensor on a storage of the same bytes, such as the storage of its
    /// [`recipe`](Self::recipe)'s output.
    ///
    /// # Errors
    /// The storage is too small.
    pub fn on(&self, storage: &Storage) -> Result<Tensor> {
        Tensor::from_storage(storage.clone(), self.layout.clone(), self.dtype)
    }

    /// Returns the reason why the input's bytes are not in memory, for an error.
    fn why_missing(&self) -> String {
        let dtype = self.dtype;
        let sizes = self.layout.sizes();
        if self.writes.count() == self.id.version {
            return format!(
                "an input, {dtype} {sizes:?}, is no longer in memory, and nothing says how to make it: keep it"
            );
        }
        format!(
            "an input, {dtype} {sizes:?}, was modified in place by {}: use an operation that is not in place, or copy() \
             the tensor before it is changed",
            self.writes.last_writer()
        )
    }
}

impl OutputKind {
    fn of(tensor: &Tensor) -> Self {
        let layout = tensor.layout().clone();
        Self { layout, dtype: tensor.dtype(), device: tensor.device(), bytes: tensor.storage().bytes() }
    }
}

impl Settings {
    fn now() -> Self {
        let tf32 = [precision::tf32_in_products(), precision::tf32_in_convolutions()];
        Self { tf32, measures_algorithms: tuning::measures_algorithms() }
    }
}

/// Records a recipe for `out`, a new tensor that the operation `name` computed from `inputs` and from the tensors in
/// `optional` that are present. `again` returns the function that computes `out` again; `again` is not called if this
/// thread has no [`Recipes`] scope.
pub(crate) fn note<const N: usize, const M: usize, F>(
    out: &Tensor,
    name: &'static str,
    inputs: [&Tensor; N],
    optional: [Option<&Tensor>; M],
    again: impl FnOnce() -> F,
) where
    F: Fn([&Tensor; N], [Option<&Tensor>; M]) -> Result<Tensor> + Send + Sync + 'static,
{
    /// A separate function, so that operations are not slowed down while no recipes are recorded.
    #[cold]
    #[inline(never)]
    fn add<const N: usize, const M: usize, F>(
        scope: &RecipeScope,
        out: &Tensor,
        name: &'static str,
        inputs: [&Tensor; N],
        optional: [Option<&Tensor>; M],
        again: F,
    ) where
        F: Fn([&Tensor; N], [Option<&Tensor>; M]) -> Result<Tensor> + Send + Sync + 'static,
    {
        let is_there = optional.map(|tensor| tensor.is_some());
        let given: SmallVec<[&Tensor; 4]> = inputs.into_iter().chain(optional.into_iter().flatten()).collect();
        scope.add(
            out,
            name,
            &given,
            Box::new(move |given: &[&Tensor]| {
                let Some((inputs, rest)) = given.split_first_chunk() else {
                    return Err(TensorError::argument(name, "its recipe was given too few inputs"));
                };
                let mut rest = rest.iter().copied();
                again(*inputs, is_there.map(|is_there| if is_there { rest.next() } else { None }))
            }),
        );
    }
    if let Some(scope) = scope() {
        add(&scope, out, name, inputs, optional, again());
    }
}

/// Records a recipe as [`note`] does, for an operation with any number of inputs.
pub(crate) fn note_list<F>(out: &Tensor, name: &'static str, inputs: &[&Tensor], again: impl FnOnce() -> F)
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if let Some(scope) = scope() {
        scope.add(out, name, inputs, Box::new(again()));
    }
}

/// Returns the scope in which this thread records recipes. `None` while gradients are off, since no tensor is saved
/// then, and while a checkpoint runs again.
fn scope() -> Option<Arc<RecipeScope>> {
    Scopes::latest(&SCOPES).filter(|_| is_grad_enabled() && !is_running_again())
}

impl RecipeScope {
    /// Records a recipe, except for an output that is a view or shares its storage with an input.
    #[cold]
    fn add(&self, out: &Tensor, name: &'static str, inputs: &[&Tensor], recompute: Recompute) {
        let id = SavedId::of(out);
        if out.layout().offset() > 0
            || out.view_of().is_some()
            || inputs.iter().any(|input| input.storage().is_alias_of(out.storage()))
        {
            return;
        }
        let recipe = Arc::new(Recipe {
            name,
            id,
            inputs: inputs.iter().map(|input| Ingredient::of(input, &self.book)).collect(),
            recompute,
            output: OutputKind::of(out),
            settings: Settings::now(),
        });
        self.book.recipes.lock().insert(id, Arc::clone(&recipe));
        (self.observer)(&recipe);
    }
}
