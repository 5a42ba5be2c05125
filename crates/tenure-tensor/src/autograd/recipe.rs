//! How the bytes of an operation's output are computed again.
//!
//! A checkpoint says before a function runs that nothing of it is kept. A recipe is for whoever decides afterwards, tensor
//! by tensor: it is known by the bytes that it makes, and knows its inputs by the bytes that they had, none of which it
//! keeps. An input that is gone, or was written to, can be made by a recipe of its own.
//!
//! An operation notes its recipe where its kernel has been called: behind autocast's conversions, which are operations
//! themselves, and before anything is saved. What it drew from a generator, it drew before, and the recipe has the place in
//! the sequence. So a recipe depends on nothing that a thread has set.

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

/// Makes an output of the tensors that a kernel got.
type Again = Box<dyn Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync>;
type Observer = Box<dyn Fn(&Arc<Recipe>) + Send + Sync>;

/// While it lives, operations of this thread outside of [`no_grad`] note how their output is computed again: those element
/// by element, copies and conversions, products, convolutions, attention, norms, softmax, dropout, pooling, sums, and what
/// joins and picks. The latest that is alive has the recipes. What a [`checkpoint`](super::checkpoint) runs again notes none.
///
/// A view is found as what it is a view of. What was written to in place has none.
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

/// The recipes that one [`Recipes`] has, or had: a handle for whoever is called while it lives, such as
/// [`SavedHooks`](super::SavedHooks). They go with the last handle.
#[derive(Clone, Default)]
pub struct RecipeBook {
    recipes: Arc<Mutex<HashMap<SavedId, Arc<Recipe>>>>,
}

/// What a thread notes recipes with.
struct Scope {
    book: RecipeBook,
    observer: Observer,
}

thread_local! {
    static SCOPES: Scopes<Arc<Scope>> = const { Scopes::new() };
}

impl Recipes {
    /// Begins. `observer` is called with each recipe when the operation's work has been asked for, and before anything of
    /// it is saved.
    pub fn enter(observer: impl Fn(&Arc<Recipe>) + Send + Sync + 'static) -> Self {
        let book = RecipeBook::default();
        let scope = Scope { book: book.clone(), observer: Box::new(observer) };
        Self { book, scope: Scopes::enter(&SCOPES, Arc::new(scope)), thread: PhantomData }
    }

    /// The recipe of these bytes: none if no operation made them, or one that has none, or in place.
    pub fn find(&self, id: SavedId) -> Option<Arc<Recipe>> {
        self.book.find(id)
    }

    /// A handle on all of them.
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
    /// The recipe of these bytes.
    pub fn find(&self, id: SavedId) -> Option<Arc<Recipe>> {
        self.recipes.lock().get(&id).cloned()
    }
}

/// How an operation's output is computed again: all bytes of a fresh storage, of which it is the beginning.
pub struct Recipe {
    /// The operation.
    pub name: &'static str,
    /// The bytes that it makes.
    pub id: SavedId,
    /// What the kernel got: what autocast made of the operation's inputs.
    pub inputs: Vec<Ingredient>,
    again: Again,
    output: Output,
    settings: Settings,
}

/// An input of a recipe, whose bytes it does not keep. A number, which takes no memory of a device and next to none of the
/// host, is kept.
pub struct Ingredient {
    /// Which bytes.
    pub id: SavedId,
    /// Which of them.
    pub layout: Layout,
    /// What they are.
    pub dtype: DType,
    /// Where they were.
    pub device: Device,
    /// Where they are, if they still are.
    pub storage: WeakStorage,
    /// What was written there since.
    pub writes: Writes,
    /// How they are computed again, if that was known when the recipe was noted.
    pub recipe: Option<Arc<Recipe>>,
    kept: Option<Storage>,
}

/// What a recipe's output is.
#[derive(Debug, PartialEq)]
struct Output {
    layout: Layout,
    dtype: DType,
    device: Device,
    bytes: usize,
}

/// What a process may change that changes bits.
#[derive(PartialEq)]
struct Settings {
    tf32: [bool; 2],
    measures: bool,
}

impl Recipe {
    /// Computes the output again, of inputs that are as [`inputs`](Self::inputs) say, on this thread's current stream, with
    /// no gradient. Nothing that the thread has set matters, and nothing is saved, drawn or noted.
    ///
    /// # Errors
    /// Other inputs; how exactly devices multiply ([`precision`]), or whether algorithms are measured ([`tuning`]), was
    /// changed since; those of the operation.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let fits = |(input, tensor): (&Ingredient, &Tensor)| {
            (tensor.layout(), tensor.dtype(), tensor.device()) == (&input.layout, input.dtype, input.device)
        };
        if inputs.len() != self.inputs.len() || !self.inputs.iter().zip(inputs).all(fits) {
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

    /// The same of inputs that are still in memory, or are computed again themselves, once each, and are held until it is
    /// done.
    ///
    /// # Errors
    /// An input is no longer in memory, or was modified in place, and has no recipe; those of [`run`](Self::run).
    pub fn compute(&self) -> Result<Tensor> {
        self.compute_with(|_| Ok(None))
    }

    /// The same where `find` knows of inputs too, of which it tells the storage: those that somebody else keeps, or computes.
    ///
    /// # Errors
    /// As of [`compute`](Self::compute); those of `find`.
    pub fn compute_with(&self, find: impl Fn(SavedId) -> Result<Option<Storage>>) -> Result<Tensor> {
        // Not one inside the other: a chain may be deeper than the stack.
        let (mut next, mut waiting) = (self, Vec::new());
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
    /// One after the other, not one inside the other: a chain may be deeper than the stack.
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
        /// Bytes of a number.
        const NUMBER: usize = 8;
        let (id, storage) = (SavedId::of(tensor), tensor.storage());
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

    /// The input, without a gradient, if its bytes are still in memory and were not written to since.
    pub fn alive(&self) -> Option<Tensor> {
        let storage = self.kept.clone().or_else(|| self.storage.upgrade())?;
        if storage.generation() != self.id.generation {
            return None;
        }
        let tensor = Tensor::with_writes(storage, self.layout.clone(), self.dtype, &self.writes).ok()?;
        (SavedId::of(&tensor) == self.id).then_some(tensor)
    }

    /// The input on a storage of the same bytes, such as that of its [`recipe`](Self::recipe)'s output.
    ///
    /// # Errors
    /// The storage is too small.
    pub fn on(&self, storage: &Storage) -> Result<Tensor> {
        Tensor::from_storage(storage.clone(), self.layout.clone(), self.dtype)
    }

    fn why_gone(&self) -> String {
        let (dtype, sizes) = (self.dtype, self.layout.sizes());
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

/// Notes that `out`, which is fresh, and which the operation `name` has made of `inputs` and those of the `optional` that are there, is
/// computed again by what `again` returns, if this thread wants to know: otherwise nothing is called.
pub(crate) fn note<const N: usize, const M: usize, F>(
    out: &Tensor,
    name: &'static str,
    inputs: [&Tensor; N],
    optional: [Option<&Tensor>; M],
    again: impl FnOnce() -> F,
) where
    F: Fn([&Tensor; N], [Option<&Tensor>; M]) -> Result<Tensor> + Send + Sync + 'static,
{
    /// Apart, so that operations are as fast as without.
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

/// The same of any number of inputs.
pub(crate) fn note_list<F>(out: &Tensor, name: &'static str, inputs: &[&Tensor], again: impl FnOnce() -> F)
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if let Some(scope) = scope() {
        scope.add(out, name, inputs, Box::new(again()));
    }
}

/// What this thread notes recipes with. Where nothing is differentiated, nothing is saved.
fn scope() -> Option<Arc<Scope>> {
    Scopes::latest(&SCOPES).filter(|_| is_grad_enabled() && !is_running_again())
}

impl Scope {
    #[cold]
    fn add(&self, out: &Tensor, name: &'static str, inputs: &[&Tensor], again: Again) {
        let id = SavedId::of(out);
        let is_shared = |input: &&Tensor| input.storage().is_alias_of(out.storage());
        if out.layout().offset() > 0 || out.view_of().is_some() || inputs.iter().any(is_shared) {
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
