//! Tests of the recipe of each operation, with inputs in several layouts.

use tenure_core::Storage;
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, SavedId};
use tenure_tensor::ops::{BatchNormParameters, PadMode, cat};
use tenure_tensor::random::{DefaultGenerator, Generator, default_generator};
use tenure_tensor::{Attention, Conv, DType, Device, Pool, Result, Tensor};

use super::common::{cuda, in_use};
use super::{Inputs, Lie, check, silent};

type Operation = fn(&Inputs) -> Result<Tensor>;

/// Operations, by the names of their recipes.
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
    // The device splits off the rest of such rows.
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

/// Runs `body` with running averages, weight and bias of six channels, in training or not.
fn with_norm<T>(of: &Inputs, training: bool, body: impl FnOnce(&BatchNormParameters<'_>) -> T) -> T {
    let mean = of.of(&[6]).detach();
    let variance = of.of(&[6]).detach();
    autograd::no_grad(|| variance.copy_(&variance.square().unwrap())).unwrap();
    let weight = of.of(&[6]);
    let bias = of.of(&[6]);
    let running = Some((&mean, &variance));
    let before = [mean.version(), variance.version()];
    let result = body(&BatchNormParameters {
        running,
        weight: Some(&weight),
        bias: Some(&bias),
        training,
        momentum: 0.1,
        eps: 1e-5,
    });
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

#[test]
fn every_operation_gives_the_same_bits_again() {
    let _in_use = in_use();
    let _own = DefaultGenerator::enter(Generator::new(1));
    for device in [Device::CPU, cuda()] {
        for lie in [Lie::Dense, Lie::Turned, Lie::Part] {
            for (dtype, lower) in [(DType::F32, None), (DType::BF16, None), (DType::F32, Some(DType::BF16))] {
                for (name, operation) in OPERATIONS {
                    let what = format!("{name} of {dtype} on {device}, {lie:?}, autocast to {lower:?}");
                    let recipes = silent();
                    let autocast = Autocast::enter(lower);
                    let of = Inputs::new(device, dtype, lie);
                    let out = operation(&of).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let state = default_generator(Device::CPU).state();
                    assert_eq!(check(&what, &recipes.book(), &out).name, *name);
                    drop(autocast);
                    let book = recipes.book();
                    drop(recipes);
                    let _more = default_generator(Device::CPU).next_u64();
                    check(&what, &book, &out);
                    assert_eq!(default_generator(Device::CPU).state().offset, state.offset + 1, "{what}");
                }
            }
        }
    }
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
                assert!(
                    input
                        .storage
                        .upgrade()
                        .is_none_or(|storage: Storage| storage.device().is_cpu() && storage.bytes() <= 8),
                    "{}",
                    recipe.name
                );
            }
        }
    }
}
