//! Recipes: how the bytes of an operation's output are computed again.
//!
//! A checkpoint decides before a function runs that none of its tensors are kept. A recipe lets the caller decide
//! afterwards, tensor by tensor. It is found by the id of the bytes that it makes, and refers to its inputs by the ids
//! of their bytes, which it does not keep. An input that is gone, or was written to, can be made by a recipe of its
//! own.
//!
//! An operation notes its recipe after its kernel was called: after autocast's conversions, which are operations
//! themselves, and before anything is saved. An operation that draws random numbers has drawn them by then, and its
//! recipe has the generator's place in the sequence. So a recipe depends on no setting of a thread.

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

/// A function that makes an output from the kernel's input tensors.
type Recompute = Box<dyn Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync>;
type Observer = Box<dyn Fn(&Arc<Recipe>) + Send + Sync>;

/// A scope in which this thread's operations outside of [`no_grad`] note how their output is computed again:
/// elementwise operations, copies and conversions, products, convolutions, attention, norms, softmax, dropout, pooling,
/// sums, joins and selections. The latest scope that is alive gets the recipes. Operations that a
/// [`checkpoint`](super::checkpoint) runs again note none.
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

/// A handle to the recipes of one [`Recipes`], for functions that are called while it lives, such as
/// [`SavedHooks`](super::SavedHooks). The recipes are freed with the last handle.
#[derive(Clone, Default)]
pub struct RecipeBook {
    recipes: Arc<Mutex<HashMap<SavedId, Arc<Recipe>>>>,
}

/// The book and the observer of one [`Recipes`].
struct Scope {
    book: RecipeBook,
    observer: Observer,
}

thread_local! {
    static SCOPES: Scopes<Arc<Scope>> = const { Scopes::new() };
}

impl Recipes {
    /// Begins the scope. `observer` is called with each recipe after the operation's kernel was launched, and before
    /// any of its tensors are saved.
    pub fn enter(observer: impl Fn(&Arc<Recipe>) + Send + Sync + 'static) -> Self {
        let book = RecipeBook::default();
        let scope = Scope { book: book.clone(), observer: Box::new(observer) };
        Self { book, scope: Scopes::enter(&SCOPES, Arc::new(scope)), thread: PhantomData }
    }

    /// Returns the recipe of these bytes. `None` if no operation made them, if the operation has no recipe, or if it
    /// wrote in place.
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
    /// Returns the recipe of these bytes.
    pub fn find(&self, id: SavedId) -> Option<Arc<Recipe>> {
        self.recipes.lock().get(&id).cloned()
    }
}

/// A way to compute an operation's output again. It makes all bytes of a fresh storage, at whose beginning the output
/// lies.
pub struct Recipe {
    /// The operation's name.
    pub name: &'static str,
    /// The id of the bytes that the recipe makes.
    pub id: SavedId,
    /// The inputs of the kernel, after autocast's conversions.
    pub inputs: Vec<Ingredient>,
    again: Recompute,
    output: Output,
    settings: Settings,
}

/// An input of a recipe, which does not keep its bytes. An input on the CPU of at most 8 bytes, such as a number, is
/// kept.
pub struct Ingredient {
    /// The id of the bytes.
    pub id: SavedId,
    /// The elements that the input has in its storage.
    pub layout: Layout,
    /// The type of the elements.
    pub dtype: DType,
    /// The device that the bytes were on.
    pub device: Device,
    /// The storage of the bytes, if it is still alive.
    pub storage: WeakStorage,
    /// The count of writes in place to the storage.
    pub writes: Writes,
    /// The recipe of these bytes, if there was one when this recipe was noted.
    pub recipe: Option<Arc<Recipe>>,
    kept: Option<Storage>,
}

/// The layout, type, device and size of a recipe's output.
#[derive(Debug, PartialEq)]
struct Output {
    layout: Layout,
    dtype: DType,
    device: Device,
    bytes: usize,
}

/// The settings of the process that change the bits of a result.
#[derive(PartialEq)]
struct Settings {
    tf32: [bool; 2],
    measures: bool,
}

impl Recipe {
    /// Computes the output again from tensors that are as [`inputs`](Self::inputs) say, on this thread's current
    /// stream, with no gradient. Settings of the thread have no effect, and nothing is saved, drawn or noted.
    ///
    /// # Errors
    /// The inputs are not as the recipe says; the precision of products ([`precision`]), or whether algorithms are
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
        let output = no_grad(|| (self.again)(&inputs))?;
        if Output::of(&output) != self.output {
            return Err(self.error(&format!("it gave {:?} in place of {:?}", Output::of(&output), self.output)));
        }
        Ok(output)
    }

    /// Computes the output again from inputs that are still in memory. Inputs that are not are computed again
    /// themselves, once each, and are held until the call returns.
    ///
    /// # Errors
    /// An input is no longer in memory, or was modified in place, and has no recipe; the errors of [`run`](Self::run).
    pub fn compute(&self) -> Result<Tensor> {
        self.compute_with(|_| Ok(None))
    }

    /// Does the same as [`compute`](Self::compute), but asks `find` for the storage of an input that is not in memory,
    /// before the input is computed again.
    ///
    /// # Errors
    /// The errors of [`compute`](Self::compute) and of `find`.
    pub fn compute_with(&self, find: impl Fn(SavedId) -> Result<Option<Storage>>) -> Result<Tensor> {
        // A loop rather than a recursion: a chain may be deeper than the stack.
        let mut next = self;
        let mut waiting = Vec::new();
        let mut made: HashMap<SavedId, Tensor> = HashMap::new();
        loop {
            let mut inputs = Vec::with_capacity(next.inputs.len());
            let mut lacking = None;
            for input in &next.inputs {
                match made.get(&input.id) {
                    Some(whole) => inputs.push(input.on(whole.storage())?),
                    None => match input.alive() {
                        Some(tensor) => inputs.push(tensor),
                        None => match find(input.id)? {
                            Some(storage) => inputs.push(input.on(&storage)?),
                            None => {
                                lacking = Some(input);
                                break;
                            }
                        },
                    },
                }
            }
            if let Some(input) = lacking {
                let recipe = input.recipe.as_deref().ok_or_else(|| next.error(&input.why_gone()))?;
                waiting.push(std::mem::replace(&mut next, recipe));
                continue;
            }
            let output = next.run(&inputs)?;
            let Some(later) = waiting.pop() else { return Ok(output) };
            made.insert(next.id, output);
            next = later;
        }
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
        /// The bytes of a number.
        const NUMBER: usize = 8;
        let id = SavedId::of(tensor);
        let storage = tensor.storage();
        let is_number = tensor.device().is_cpu() && storage.bytes() <= NUMBER;
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

    fn why_gone(&self) -> String {
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

impl Output {
    fn of(tensor: &Tensor) -> Self {
        let layout = tensor.layout().clone();
        Self { layout, dtype: tensor.dtype(), device: tensor.device(), bytes: tensor.storage().bytes() }
    }
}

impl Settings {
    fn now() -> Self {
        let tf32 = [precision::tf32_in_products(), precision::tf32_in_convolutions()];
        Self { tf32, measures: tuning::measures_algorithms() }
    }
}

/// Notes a recipe for `out`, a fresh tensor that the operation `name` made from `inputs` and from the tensors among
/// `optional` that are present. The function that `again` returns computes it again. If this thread has no [`Recipes`],
/// `again` is not called.
pub(crate) fn note<const N: usize, const M: usize, F>(
    out: &Tensor,
    name: &'static str,
    inputs: [&Tensor; N],
    optional: [Option<&Tensor>; M],
    again: impl FnOnce() -> F,
) where
    F: Fn([&Tensor; N], [Option<&Tensor>; M]) -> Result<Tensor> + Send + Sync + 'static,
{
    /// A separate function, so that operations are not slowed down while no recipes are noted.
    #[cold]
    #[inline(never)]
    fn add<const N: usize, const M: usize, F>(
        scope: &Scope,
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
        let again = move |given: &[&Tensor]| {
            let Some((inputs, rest)) = given.split_first_chunk() else {
                return Err(TensorError::argument(name, "its recipe was given too few inputs"));
            };
            let mut rest = rest.iter().copied();
            again(*inputs, is_there.map(|is_there| if is_there { rest.next() } else { None }))
        };
        scope.add(out, name, &given, Box::new(again));
    }
    if let Some(scope) = scope() {
        add(&scope, out, name, inputs, optional, again());
    }
}

/// Notes a recipe for an operation of any number of inputs, as [`note`] does.
pub(crate) fn note_list<F>(out: &Tensor, name: &'static str, inputs: &[&Tensor], again: impl FnOnce() -> F)
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if let Some(scope) = scope() {
        scope.add(out, name, inputs, Box::new(again()));
    }
}

/// Returns the scope that this thread notes recipes in. While gradients are off, nothing is saved, so there is none.
fn scope() -> Option<Arc<Scope>> {
    Scopes::latest(&SCOPES).filter(|_| is_grad_enabled() && !is_running_again())
}

impl Scope {
    #[cold]
    fn add(&self, out: &Tensor, name: &'static str, inputs: &[&Tensor], again: Recompute) {
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
            again,
            output: Output::of(out),
            settings: Settings::now(),
        });
        self.book.recipes.lock().insert(id, Arc::clone(&recipe));
        (self.observer)(&recipe);
    }
}
