//! Recipes give the same bits: of inputs that are there, of inputs that are made again themselves, in a backward pass. On
//! the CPU, and on a CUDA device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use common::{cuda, in_use, in_use_alone};
use parking_lot::Mutex;
use proptest::prelude::*;
use tenure_core::Storage;
use tenure_device::StreamGuard;
use tenure_device::memory;
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, Recipe, RecipeBook, Recipes, SavedHooks, SavedId};
use tenure_tensor::ops::{BatchNorm, PadMode, cat};
use tenure_tensor::random::{Generator, default_generator};
use tenure_tensor::{Attention, Conv, DType, Device, Layout, MemoryFormat, Pool, Result, Tensor, precision};

/// How inputs lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Dense,
    /// With the last two dimensions exchanged; channels last, if they are images.
    Turned,
    /// A part of something larger.
    Part,
}

/// Makes inputs that require gradients, other numbers each time, and keeps them.
struct Inputs {
    device: Device,
    dtype: DType,
    lie: Lie,
    generator: Generator,
    kept: RefCell<Vec<Tensor>>,
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
        let there = |x: Result<Tensor>| autograd::no_grad(|| x).unwrap().requires_grad_(true).unwrap();
        match self.lie {
            Lie::Turned if sizes.len() == 4 => {
                there(leaf(sizes).and_then(|x| x.contiguous_in(MemoryFormat::ChannelsLast2d)))
            }
            Lie::Turned if sizes.len() > 1 => {
                let mut turned = sizes.to_vec();
                turned.swap(sizes.len() - 2, sizes.len() - 1);
                there(leaf(&turned)).transpose(-2, -1).unwrap()
            }
            Lie::Part => {
                let mut larger = sizes.to_vec();
                larger[0] += 3;
                there(leaf(&larger)).narrow(0, 2, sizes[0]).unwrap()
            }
            _ => there(leaf(sizes)),
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

type Operation = fn(&Inputs) -> Result<Tensor>;

/// Operations, by what their recipes are called.
const OPERATIONS: &[(&str, Operation)] = &[
    ("relu", |of| of.of(&[6, 33]).relu()),
    ("gelu", |of| of.of(&[6, 33]).gelu()),
    ("gelu_tanh", |of| of.of(&[6, 33]).gelu_tanh()),
    ("silu", |of| of.of(&[6, 33]).silu()),
    ("mish", |of| of.of(&[6, 33]).mish()),
    ("sigmoid", |of| of.of(&[6, 33]).sigmoid()),
    ("tanh", |of| of.of(&[6, 33]).tanh()),
    ("exp", |of| of.of(&[6, 33]).exp()),
    ("log", |of| of.of(&[6, 33]).log()),
    ("rsqrt", |of| of.of(&[6, 33]).rsqrt()),
    ("leaky_relu", |of| of.of(&[6, 33]).leaky_relu(0.1)),
    ("elu", |of| of.of(&[6, 33]).selu()),
    ("softplus", |of| of.of(&[6, 33]).softplus(2.0, 20.0)),
    ("clamp", |of| of.of(&[6, 33]).relu6()),
    ("neg", |of| of.of(&[6, 33]).neg()),
    ("square", |of| of.of(&[6, 33]).square()),
    ("add", |of| of.of(&[6, 33]).add(&of.of(&[33]))),
    ("sub", |of| of.of(&[6, 33]).sub(0.3)),
    ("mul", |of| of.of(&[6, 33]).mul(&of.of(&[6, 33]))),
    ("mul", |of| of.of(&[2, 3, 4, 5]).mul(&of.of(&[2, 3, 1, 1]))),
    ("div", |of| of.of(&[6, 33]).div(7)),
    ("add_scaled", |of| of.of(&[6, 33]).add_scaled(&of.of(&[6, 33]), 0.7)),
    ("lerp", |of| of.of(&[6, 33]).lerp(&of.of(&[6, 33]), 0.3)),
    ("maximum", |of| of.of(&[6, 33]).clamp_min(&of.of(&[6, 33]))),
    ("pow", |of| of.of(&[6, 33]).pow(2)),
    ("pow", |of| of.of(&[6, 33]).pow(1.7)),
    ("pow", |of| of.of(&[6, 33]).pow(&of.of(&[6, 33]))),
    ("where_", |of| of.mask(&[6, 33]).where_(&of.of(&[6, 33]), 0.0)),
    ("where_", |of| of.of(&[6, 33]).masked_fill(&of.mask(&[33]), f64::NEG_INFINITY)),
    ("to_dtype", |of| of.of(&[6, 33]).to_dtype(DType::F16)),
    ("contiguous", |of| of.of(&[2, 5, 7]).permute(&[2, 0, 1])?.contiguous()),
    ("copy", |of| of.of(&[2, 3, 4, 5]).copy()),
    ("swiglu", |of| of.of(&[6, 33]).swiglu(&of.of(&[6, 33]))),
    ("rotary", |of| of.of(&[2, 3, 4, 8]).rotary(&of.of(&[4, 4]), &of.of(&[4, 4]))),
    ("layer_norm", |of| of.of(&[5, 4, 33]).layer_norm(&[33], Some(&of.of(&[33])), Some(&of.of(&[33])), 1e-5)),
    ("layer_norm", |of| of.of(&[5, 4, 33]).layer_norm(&[4, 33], None, None, 1e-5)),
    ("rms_norm", |of| of.of(&[5, 4, 33]).rms_norm(&[33], Some(&of.of(&[33])), 1e-5)),
    ("group_norm", |of| of.of(&[2, 6, 4, 5]).group_norm(3, Some(&of.of(&[6])), Some(&of.of(&[6])), 1e-5)),
    ("batch_norm", |of| batch_norm(of, true)),
    ("batch_norm", |of| batch_norm(of, false)),
    ("batch_norm", |of| of.of(&[2, 6, 4, 5]).batch_norm(None, None, None, true, 0.1, 1e-5)),
    ("batch_norm", |of| batch_norm_relu(of, true, None)),
    ("batch_norm", |of| batch_norm_relu(of, true, Some(&of.of(&[2, 6, 4, 5])))),
    ("batch_norm", |of| batch_norm_relu(of, false, Some(&of.of(&[2, 6, 4, 5])))),
    ("softmax", |of| of.of(&[5, 4, 33]).softmax(-1)),
    ("softmax", |of| of.of(&[5, 4, 33]).softmax(1)),
    ("log_softmax", |of| of.of(&[6, 33]).log_softmax(1)),
    ("dropout", |of| of.of(&[6, 33]).dropout(0.4, true)),
    ("max_pool", |of| of.of(&[2, 3, 9, 8]).max_pool(&Pool { kernel: &[3, 2], stride: &[2], ..Pool::default() })),
    ("avg_pool", |of| {
        of.of(&[2, 3, 9, 8]).avg_pool(&Pool { kernel: &[3, 2], padding: &[1], ..Pool::default() }, false)
    }),
    ("avg_pool", |of| of.of(&[2, 3, 9, 8]).adaptive_avg_pool(&[2, 3])),
    ("linear", |of| of.of(&[3, 5, 33]).linear(&of.of(&[20, 33]), Some(&of.of(&[20])))),
    ("matmul", |of| of.of(&[3, 5, 33]).linear(&of.of(&[20, 33]), None)),
    ("matmul", |of| of.of(&[7, 33]).matmul(&of.of(&[33, 9]))),
    ("matmul", |of| of.of(&[2, 7, 33]).matmul(&of.of(&[2, 33, 9]))),
    // Rows that are set apart on a device.
    ("matmul", |of| of.of(&[70, 8]).matmul(&of.of(&[8, 1027]))),
    ("bmm", |of| of.of(&[2, 7, 33]).bmm(&of.of(&[2, 33, 9]))),
    ("addmm", |of| of.of(&[9]).addmm(&of.of(&[7, 33]), &of.of(&[33, 9]), 0.5, 2.0)),
    ("conv", |of| of.of(&[2, 4, 7, 6]).conv(&of.of(&[6, 2, 3, 3]), Some(&of.of(&[6])), &grouped())),
    ("conv", |of| of.of(&[2, 4, 9]).conv(&of.of(&[5, 4, 3]), None, &Conv::default())),
    ("conv_transpose", |of| {
        of.of(&[2, 4, 5, 4]).conv_transpose(&of.of(&[4, 3, 3, 3]), Some(&of.of(&[6])), &grouped(), &[1])
    }),
    ("attention", |of| attention(of, false, 0.0)),
    ("attention", |of| attention(of, true, 0.3)),
    ("cat", |of| cat(&[&of.of(&[2, 3, 4, 5]), &of.of(&[2, 1, 4, 5])], 1)),
    ("embedding", |of| of.of(&[20, 16]).embedding(&of.integers(20, &[3, 7]))),
    ("gather", |of| of.of(&[6, 33]).gather(1, &of.integers(33, &[6, 5]))),
    ("index_select", |of| of.of(&[6, 33]).index_select(1, &of.integers(33, &[9]))),
    ("pad", |of| of.of(&[2, 3, 4, 5]).pad(&[1, 2, 0, 1], PadMode::Constant(0.5.into()))),
    ("sum", |of| of.of(&[5, 4, 33]).sum(&[1], false)),
    ("mean", |of| of.of(&[5, 4, 33]).mean(&[0, 2], true)),
];

fn grouped() -> Conv<'static> {
    Conv { stride: &[2], padding: &[1], groups: 2, ..Conv::default() }
}

fn attention(of: &Inputs, is_masked: bool, dropout: f64) -> Result<Tensor> {
    let mask = is_masked.then(|| of.mask(&[9, 11]));
    let how = Attention { mask: mask.as_ref(), is_causal: !is_masked, dropout, ..Attention::default() };
    of.of(&[2, 4, 9, 16]).attention(&of.of(&[2, 2, 11, 16]), &of.of(&[2, 2, 11, 16]), &how)
}

/// Running averages, a weight and a bias of six channels, and whether it is training.
fn with_norm<T>(of: &Inputs, training: bool, body: impl FnOnce(&BatchNorm<'_>) -> T) -> T {
    let (mean, variance) = (of.of(&[6]).detach(), of.of(&[6]).detach());
    autograd::no_grad(|| variance.copy_(&variance.square().unwrap())).unwrap();
    let (weight, bias) = (of.of(&[6]), of.of(&[6]));
    let running = Some((&mean, &variance));
    let before = [mean.version(), variance.version()];
    let result =
        body(&BatchNorm { running, weight: Some(&weight), bias: Some(&bias), training, momentum: 0.1, eps: 1e-5 });
    assert_eq!([mean.version(), variance.version()], before.map(|version| version + u64::from(training)));
    result
}

fn batch_norm(of: &Inputs, training: bool) -> Result<Tensor> {
    let x = of.of(&[2, 6, 4, 5]);
    with_norm(of, training, |norm| {
        x.batch_norm(norm.running, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)
    })
}

fn batch_norm_relu(of: &Inputs, training: bool, carried: Option<&Tensor>) -> Result<Tensor> {
    let x = of.of(&[2, 6, 4, 5]);
    with_norm(of, training, |norm| x.batch_norm_relu(carried, norm))
}

fn silent() -> Recipes {
    Recipes::enter(|_| {})
}

/// All bytes of a storage on another.
fn twin(tensor: &Tensor) -> Tensor {
    let (storage, bytes) = (tensor.storage(), Layout::contiguous(&[tensor.storage().bytes()]).unwrap());
    let twin = Tensor::from_storage(storage.clone(), bytes, DType::U8).unwrap().copy().unwrap();
    assert!(!twin.storage().is_alias_of(storage));
    twin
}

/// Checks that what was computed again has the bytes of a tensor that lies there.
fn assert_same(what: &str, made: &Tensor, tensor: &Tensor) {
    assert_eq!((made.dtype(), made.device()), (tensor.dtype(), tensor.device()), "{what}");
    assert_eq!((made.layout().offset(), made.storage().bytes()), (0, tensor.storage().bytes()), "{what}");
    assert!(!made.requires_grad() && !made.storage().is_alias_of(tensor.storage()), "{what}");
    let made = Tensor::from_storage(made.storage().clone(), tensor.layout().clone(), tensor.dtype()).unwrap();
    assert_eq!(made.to_bytes().unwrap(), tensor.detach().to_bytes().unwrap(), "{what}");
}

/// Runs the recipe of a tensor with copies of its inputs, or what their recipes make where they are gone.
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

#[test]
fn every_operation_gives_the_same_bits_again() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        for lie in [Lie::Dense, Lie::Turned, Lie::Part] {
            for (dtype, lower) in [(DType::F32, None), (DType::BF16, None), (DType::F32, Some(DType::BF16))] {
                for (name, operation) in OPERATIONS {
                    let what = format!("{name} of {dtype} on {device}, {lie:?}, autocast to {lower:?}");
                    let recipes = silent();
                    let autocast = Autocast::enter(lower);
                    let of = Inputs::new(device, dtype, lie);
                    let out = operation(&of).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let state = default_generator().state();
                    assert_eq!(check(&what, &recipes.book(), &out).name, *name);
                    drop(autocast);
                    let book = recipes.book();
                    drop(recipes);
                    let _more = default_generator().next_u64();
                    check(&what, &book, &out);
                    assert_eq!(default_generator().state().offset, state.offset + 1, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_chain_is_computed_again_through_what_was_not_saved() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        let of = Inputs::new(device, DType::F32, Lie::Dense);
        let (x, recipes) = (of.of(&[4, 9]), silent());
        let y = {
            let shifted = x.add(1.0).unwrap();
            let halved = shifted.mul(0.5).unwrap();
            // Both are views of one that is gone.
            halved.t().unwrap().matmul(&halved.view(&[4, 9]).unwrap()).unwrap().detach()
        };
        let recipe = check("matmul", &recipes.book(), &y);
        let [left, right] = &recipe.inputs[..] else { panic!("two factors") };
        assert!(left.alive().is_none() && left.id == right.id && left.layout != right.layout);
        assert!(Arc::ptr_eq(left.recipe.as_ref().unwrap(), right.recipe.as_ref().unwrap()));
    }
}

#[test]
fn a_chain_may_be_deeper_than_the_stack() {
    let _in_use = in_use();
    let (x, recipes) = (Tensor::ones(&[5], DType::F32, Device::CPU).unwrap(), silent());
    let mut y = x.clone();
    for _ in 0..30_000 {
        y = y.add(1.0).unwrap();
    }
    assert_same("add", &recipes.find(SavedId::of(&y)).unwrap().compute().unwrap(), &y);
}

#[test]
fn what_was_modified_or_is_gone_gives_an_error_and_no_wrong_bits() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        let of = Inputs::new(device, DType::F32, Lie::Dense);
        let (x, recipes) = (of.of(&[4, 9]).detach(), silent());
        let hidden = x.exp().unwrap();
        let y = hidden.mul(&x).unwrap();
        let expected = y.to_bytes().unwrap();
        let recipe = recipes.find(SavedId::of(&y)).unwrap();
        // What it was before can be made again.
        hidden.narrow(1, 0, 3).unwrap().zero_().unwrap();
        assert!(recipe.inputs[0].alive().is_none());
        assert_eq!(recipe.compute().unwrap().to_bytes().unwrap(), expected);
        x.narrow(0, 0, 1).unwrap().add_(1.0).unwrap();
        let error = recipe.compute().unwrap_err().to_string();
        assert!(error.starts_with("exp: ") && error.contains("was modified in place by add_"), "{error}");
        drop(x);
        assert!(recipe.compute().is_err());

        let z = of.fresh(&[4, 9]).detach().exp().unwrap();
        let recipe = recipes.find(SavedId::of(&z)).unwrap();
        assert!(recipe.inputs[0].alive().is_none());
        let error = recipe.compute().unwrap_err().to_string();
        assert!(error.contains("is no longer in memory"), "{error}");
        // Another place is another generation.
        let w = of.of(&[4, 9]).detach();
        let recipe = recipes.find(SavedId::of(&w.exp().unwrap())).unwrap();
        w.storage().resize(4 * 9 * 4).unwrap();
        assert!(recipe.inputs[0].alive().is_none());
    }
}

#[test]
fn other_inputs_and_other_precision_are_refused() {
    let _alone = in_use_alone();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let (x, recipes) = (of.of(&[4, 9]), silent());
    let recipe = recipes.find(SavedId::of(&x.softmax(1).unwrap())).unwrap();
    let turned = of.of(&[9, 4]).t().unwrap();
    for inputs in
        [vec![], vec![turned], vec![of.of(&[4, 8])], vec![x.clone(), x.clone()], vec![x.to_dtype(DType::F64).unwrap()]]
    {
        let error = recipe.run(&inputs).unwrap_err().to_string();
        assert!(error.contains("other inputs"), "{error}");
    }
    let allowed = precision::tf32_in_products();
    precision::allow_tf32_in_products(!allowed);
    let error = recipe.run(std::slice::from_ref(&x)).unwrap_err().to_string();
    precision::allow_tf32_in_products(allowed);
    assert!(error.contains("was changed since"), "{error}");
    assert!(recipe.run(&[x]).is_ok());
}

#[test]
fn recipes_hold_no_memory_but_of_numbers() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        let recipes = silent();
        for (_, operation) in OPERATIONS {
            let of = Inputs::new(device, DType::F32, Lie::Turned);
            let out = operation(&of).unwrap();
            let recipe = recipes.find(SavedId::of(&out)).unwrap();
            let storage = out.storage().downgrade();
            drop((of, out));
            assert!(storage.upgrade().is_none(), "{}", recipe.name);
            for input in &recipe.inputs {
                let is_number = |storage: Storage| storage.device().is_cpu() && storage.bytes() <= 8;
                assert!(input.storage.upgrade().is_none_or(is_number), "{}", recipe.name);
            }
        }
    }
}

#[test]
fn nothing_is_noted_where_nobody_wants_to_know() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let (x, recipes) = (of.of(&[4, 9]), silent());
    let count = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&count);
    let inner = Recipes::enter(move |recipe| noted.lock().push(recipe.name));
    let [a, b, c] = [x.exp().unwrap(), autograd::no_grad(|| x.exp()).unwrap(), x.t().unwrap()];
    let written = x.mul(2.0).unwrap();
    written.relu_().unwrap();
    let same = x.contiguous().unwrap().to_dtype(DType::F32).unwrap().dropout(0.5, false).unwrap();
    assert_eq!(*count.lock(), ["exp", "mul"]);
    assert!(inner.find(SavedId::of(&a)).is_some() && recipes.find(SavedId::of(&a)).is_none());
    for none in [&b, &c, &written, &same, &x] {
        assert!(inner.find(SavedId::of(none)).is_none());
    }
    let book = inner.book();
    drop(inner);
    let d = x.exp().unwrap();
    assert!(book.find(SavedId::of(&a)).is_some() && book.find(SavedId::of(&d)).is_none());
    assert!(recipes.find(SavedId::of(&d)).is_some());
    let elsewhere = std::thread::spawn(move || SavedId::of(&x.exp().unwrap())).join().unwrap();
    assert!(recipes.find(elsewhere).is_none());
    drop(recipes);
    assert_eq!(*count.lock(), ["exp", "mul"]);
}

#[test]
fn the_observer_hears_of_an_operation_before_it_saves() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let (x, heard) = (of.of(&[4, 9]), Arc::new(Mutex::new(Vec::new())));
    let (noting, packing) = (Arc::clone(&heard), Arc::clone(&heard));
    let recipes = Recipes::enter(move |recipe| noting.lock().push(recipe.name));
    let book = recipes.book();
    let pack = move |tensor: &Tensor, id: SavedId| {
        packing.lock().push(if book.find(id).is_some() { "saves what has one" } else { "saves" });
        Ok(tensor.clone())
    };
    let _hooks = SavedHooks::enter(pack, |tensor: &Tensor| Ok(tensor.clone()));
    x.exp().unwrap().gelu().unwrap();
    assert_eq!(*heard.lock(), ["exp", "saves what has one", "gelu", "saves what has one"]);
}

/// Parts of a transformer and of a convolutional network, with a checkpoint inside.
fn model(device: Device, dtype: Option<DType>) -> Vec<Vec<u8>> {
    let of = Inputs::new(device, DType::F32, Lie::Dense);
    let sizes: [&[usize]; 7] = [&[3, 5, 16], &[16], &[48, 16], &[16, 16], &[32, 16], &[16, 32], &[4, 3, 3, 3]];
    let leaves: Vec<Tensor> = sizes.iter().map(|sizes| of.of(sizes)).collect();
    tenure_tensor::random::manual_seed(9);
    let running = [0.0, 1.0].map(|value| Tensor::full(&[4], value, DType::F32, device).unwrap());
    let autocast = Autocast::enter(dtype);
    let loss = || -> Result<Tensor> {
        let [x, weight, qkv, out, up, down, kernel] = &leaves[..] else { panic!("seven") };
        let x = x.add(0.5)?;
        let h = x.rms_norm(&[16], Some(weight), 1e-5)?.linear(qkv, None)?;
        let heads: Vec<Tensor> = h.view(&[3, 5, 3, 2, 8])?.permute(&[2, 0, 3, 1, 4])?.unbind(0)?;
        let how = Attention { is_causal: true, dropout: 0.2, ..Attention::default() };
        let a = heads[0].attention(&heads[1], &heads[2], &how)?.transpose(1, 2)?.reshape(&[3, 5, 16])?;
        let x = x.add(&a.linear(out, Some(weight))?.dropout(0.1, true)?)?;
        let (up, down) = (up.clone(), down.clone());
        let mlp = move |x: &[Tensor]| {
            let hidden = x[0].layer_norm(&[16], None, None, 1e-5)?.linear(&up, None)?.gelu()?;
            Ok(vec![hidden.dropout(0.3, true)?.linear(&down, None)?])
        };
        let x = x.add(&autograd::checkpoint(&[&x], mlp)?[0])?;
        let images = x.reshape(&[1, 3, 5, 16])?.conv(kernel, None, &Conv::default())?;
        let images = images.batch_norm(Some((&running[0], &running[1])), None, None, true, 0.1, 1e-5)?.relu()?;
        let pooled = images.max_pool(&Pool { kernel: &[2, 2], ..Pool::default() })?;
        pooled.softmax(-1)?.mul(&pooled)?.sum_all()
    };
    let loss = loss().unwrap();
    drop(autocast);
    loss.backward().unwrap();
    let grads = leaves.iter().map(|leaf| leaf.grad().unwrap());
    let all = grads.chain(running).chain([loss.detach()]);
    let mut bytes: Vec<Vec<u8>> = all.map(|tensor| tensor.to_bytes().unwrap()).collect();
    bytes.push(default_generator().next_u64().to_le_bytes().to_vec());
    bytes
}

/// What a hook keeps.
enum Kept {
    Tensor(Tensor),
    Recipe(Arc<Recipe>, Layout),
}

/// Runs `body`, which saves nothing that can be computed again. Returns how many tensors were.
fn dropping<T>(body: impl FnOnce() -> T) -> (T, usize) {
    let count = Arc::new(Mutex::new((0, 0)));
    let (noting, counting) = (Arc::clone(&count), Arc::clone(&count));
    let recipes = Recipes::enter(move |_| noting.lock().0 += 1);
    let book = recipes.book();
    let pack = move |tensor: &Tensor, id: SavedId| {
        Ok(match book.find(id) {
            Some(recipe) => Kept::Recipe(recipe, tensor.layout().clone()),
            None => Kept::Tensor(tensor.clone()),
        })
    };
    let unpack = move |kept: &Kept| match kept {
        Kept::Tensor(tensor) => Ok(tensor.clone()),
        Kept::Recipe(recipe, layout) => {
            let noted = counting.lock().0;
            let made = recipe.compute()?;
            assert_eq!(counting.lock().0, noted, "what is computed again notes nothing");
            counting.lock().1 += 1;
            Tensor::from_storage(made.storage().clone(), layout.clone(), made.dtype())
        }
    };
    let hooks = SavedHooks::enter(pack, unpack);
    let result = body();
    drop((hooks, recipes));
    let count = count.lock().1;
    (result, count)
}

#[test]
fn a_backward_pass_that_computes_again_has_the_same_gradients() {
    let _alone = in_use_alone();
    for device in [Device::CPU, cuda()] {
        for dtype in [None, Some(DType::BF16)] {
            let expected = model(device, dtype);
            let (found, count) = dropping(|| model(device, dtype));
            assert!(found == expected, "on {device}, autocast to {dtype:?}");
            assert!(count > 10, "{count} were computed again");
        }
    }
    // On another stream, where the gradients are computed too.
    let expected = model(cuda(), None);
    let memory = memory::device(0).unwrap();
    let (side, main) = (memory.streams().pooled(tenure_device::Priority::Default).unwrap(), memory.streams().current());
    main.lead_to(&side).unwrap();
    let (found, _) = {
        let _side = StreamGuard::new(&side);
        dropping(|| model(cuda(), None))
    };
    side.lead_to(&main).unwrap();
    assert!(found == expected);
}

#[test]
fn a_checkpoint_that_runs_again_notes_nothing() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let (x, names) = (of.of(&[4, 9]), Arc::new(Mutex::new(Vec::new())));
    let noting = Arc::clone(&names);
    let recipes = Recipes::enter(move |recipe| noting.lock().push(recipe.name));
    let y = autograd::checkpoint(&[&x], |x| Ok(vec![x[0].exp()?.tanh()?])).unwrap().remove(0);
    check("tanh", &recipes.book(), &y);
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(*names.lock(), ["exp", "tanh", "sum"]);
}

/// An operation on what there is: which one, and which of them.
type Step = (u8, u8, u8);

fn step((operation, a, b): Step, there: &[Tensor]) -> Result<Option<Tensor>> {
    let [a, b] = [a, b].map(|number| &there[usize::from(number) % there.len()]);
    let square = |x: &Tensor| x.reshape(&[4, 4, 4]);
    Ok(Some(match operation % 16 {
        0 => a.add(b)?,
        1 => a.mul(&b.sigmoid()?)?,
        2 => a.gelu()?,
        3 => a.softmax(-1)?,
        4 => a.layer_norm(&[8], None, None, 1e-5)?,
        5 => square(a)?.matmul(&square(b)?)?.tanh()?.view(&[2, 4, 8])?,
        6 => a.dropout(0.3, true)?,
        7 => cat(&[&a.narrow(1, 0, 2)?, &b.narrow(1, 1, 2)?], 1)?,
        8 => a.transpose(0, 1)?.contiguous()?.view(&[2, 4, 8])?,
        9 => a.to_dtype(DType::BF16)?.square()?.to_dtype(DType::F32)?.tanh()?,
        10 => a.swiglu(b)?,
        11 => a.gt(b)?.where_(a, 0.5)?,
        12 => a.sub(&b.mean(&[1], true)?)?,
        13 => a.view(&[1, 4, 4, 4])?.batch_norm(None, None, None, true, 0.1, 1e-5)?.view(&[2, 4, 8])?,
        14 => a.narrow(2, 0, 4)?.pow(3)?.tanh()?.repeat(&[1, 1, 2])?,
        _ => {
            a.mul_(0.5)?;
            return Ok(None);
        }
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever was computed of whatever, and whatever of it is still there, is computed again with the same bits, or there
    /// is an error that says that something was written to.
    #[test]
    fn any_computation_is_computed_again(
        steps in prop::collection::vec(any::<Step>(), 1..40),
        kept in any::<u64>(),
        writes in any::<bool>(),
        on_device in any::<bool>(),
    ) {
        let _in_use = in_use();
        let of = Inputs::new(if on_device { cuda() } else { Device::CPU }, DType::F32, Lie::Dense);
        let recipes = silent();
        // What requires no gradient is saved by nobody.
        let mut there: Vec<Tensor> = (0..3).map(|_| of.of(&[2, 4, 8]).detach()).collect();
        let mut expected: HashMap<SavedId, (Layout, Vec<u8>)> = HashMap::new();
        let mut has_written = false;
        for next in steps {
            if !writes && next.0 % 16 == 15 {
                continue;
            }
            match step(next, &there).unwrap() {
                Some(made) => {
                    expected.insert(SavedId::of(&made), (made.layout().clone(), made.to_bytes().unwrap()));
                    there.push(made);
                }
                None => has_written = true,
            }
        }
        let leaves = there.len().min(3);
        let mut number = 0;
        there.retain(|_| { number += 1; number <= leaves || kept >> (number % 64) & 1 == 1 });
        for (id, (layout, bytes)) in expected {
            let Some(recipe) = recipes.find(id) else { continue };
            match recipe.compute() {
                Ok(made) => {
                    let made = Tensor::from_storage(made.storage().clone(), layout, DType::F32).unwrap();
                    prop_assert_eq!(made.to_bytes().unwrap(), bytes);
                }
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(has_written, "{}", error);
                    prop_assert!(error.contains("was modified in place") || error.contains("no longer in memory"), "{}", error);
                }
            }
        }
    }
}
