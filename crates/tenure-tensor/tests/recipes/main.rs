//! Tests that recipes give the same bits: from inputs that are there, from inputs that are recomputed themselves, and
//! in a backward pass. They run on the CPU, and on a CUDA device: a simulated one, unless the environment asks for a
//! real one (`TENURE_TEST_DRIVER=cuda`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backward;
mod chains;
#[path = "../common/mod.rs"]
mod common;
mod noted;
mod operations;
mod programs;

use std::cell::RefCell;
use std::sync::Arc;

use tenure_tensor::autograd::{self, Recipe, RecipeBook, Recipes, SavedId};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Layout, MemoryFormat, Result, Tensor};

/// The layout of inputs in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Dense,
    /// With the last two dimensions exchanged; with channels last, if they are images.
    Turned,
    /// A part of a larger tensor.
    Part,
}

/// A maker of inputs that require gradients. The numbers differ each time, and the inputs are kept.
struct Inputs {
    device: Device,
    dtype: DType,
    lie: Lie,
    generator: Generator,
    kept: RefCell<Vec<Tensor>>,
}

fn leaf_of(x: Result<Tensor>) -> Tensor {
    autograd::no_grad(|| x).unwrap().requires_grad_(true).unwrap()
}

impl Inputs {
    fn new(device: Device, dtype: DType, lie: Lie) -> Self {
        Self { device, dtype, lie, generator: Generator::new(3), kept: RefCell::default() }
    }

    fn of(&self, sizes: &[usize]) -> Tensor {
        let made = self.fresh(sizes);
        self.kept.borrow_mut().push(made.clone());
        made
    }

    fn fresh(&self, sizes: &[usize]) -> Tensor {
        let leaf = |sizes: &[usize]| {
            let x = Tensor::randn(sizes, DType::F32, Device::CPU, &self.generator)?;
            x.to_dtype(self.dtype)?.to_device(self.device)
        };
        match self.lie {
            Lie::Turned if sizes.len() == 4 => {
                leaf_of(leaf(sizes).and_then(|x| x.contiguous_in(MemoryFormat::ChannelsLast2d)))
            }
            Lie::Turned if sizes.len() > 1 => {
                let mut turned = sizes.to_vec();
                turned.swap(sizes.len() - 2, sizes.len() - 1);
                leaf_of(leaf(&turned)).transpose(-2, -1).unwrap()
            }
            Lie::Part => {
                let mut larger = sizes.to_vec();
                larger[0] += 3;
                leaf_of(leaf(&larger)).narrow(0, 2, sizes[0]).unwrap()
            }
            _ => leaf_of(leaf(sizes)),
        }
    }

    fn integers(&self, end: i64, sizes: &[usize]) -> Tensor {
        let drawn = Tensor::randint(0, end, sizes, DType::I64, Device::CPU, &self.generator);
        drawn.and_then(|x| x.to_device(self.device)).unwrap()
    }

    fn mask(&self, sizes: &[usize]) -> Tensor {
        self.integers(2, sizes).eq(0).unwrap()
    }
}

fn silent() -> Recipes {
    Recipes::enter(|_| {})
}

/// Returns a copy of a tensor's whole storage, as bytes, on another storage.
fn twin(tensor: &Tensor) -> Tensor {
    let storage = tensor.storage();
    let bytes = Layout::contiguous(&[tensor.storage().bytes()]).unwrap();
    let twin = Tensor::from_storage(storage.clone(), bytes, DType::U8).unwrap().copy().unwrap();
    assert!(!twin.storage().is_alias_of(storage));
    twin
}

/// Checks that a recomputed tensor has the bytes of the original, and its dtype and device.
fn assert_same(what: &str, made: &Tensor, tensor: &Tensor) {
    assert_eq!((made.dtype(), made.device()), (tensor.dtype(), tensor.device()), "{what}");
    assert_eq!((made.layout().offset(), made.storage().bytes()), (0, tensor.storage().bytes()), "{what}");
    assert!(!made.requires_grad() && !made.storage().is_alias_of(tensor.storage()), "{what}");
    let made = Tensor::from_storage(made.storage().clone(), tensor.layout().clone(), tensor.dtype()).unwrap();
    assert_eq!(made.to_bytes().unwrap(), tensor.detach().to_bytes().unwrap(), "{what}");
}

/// Runs the recipe of a tensor with copies of its inputs, or with the results of their recipes if they are gone.
fn check(what: &str, book: &RecipeBook, tensor: &Tensor) -> Arc<Recipe> {
    let recipe = book.find(SavedId::of(tensor)).unwrap_or_else(|| panic!("{what} has no recipe"));
    let inputs: Vec<Tensor> = recipe
        .inputs
        .iter()
        .map(|input| {
            let whole = match (input.alive(), &input.recipe) {
                (Some(tensor), _) => twin(&tensor),
                (None, Some(recipe)) => recipe.compute().unwrap(),
                (None, None) => panic!("{what}: an input of {:?} is gone", input.layout.sizes()),
            };
            input.on(whole.storage()).unwrap()
        })
        .collect();
    assert_same(what, &recipe.run(&inputs).unwrap(), tensor);
    assert_same(what, &recipe.compute().unwrap(), tensor);
    recipe
}
