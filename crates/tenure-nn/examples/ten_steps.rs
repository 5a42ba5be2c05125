//! Trains whole models for ten steps, from the weights and data that `tests/goldens/steps.py` wrote, and compares the
//! gradients of the first step and every loss with PyTorch's, in double and in single precision. The program fails if
//! one differs too much.
//!
//! In double precision they are the same except for rounding. In single precision, rounding moves some activations over
//! a kink (of a ReLU, of a maximum). This changes gradients by 10⁻³ and more, in PyTorch as here. So the tolerance is a
//! multiple of the difference between PyTorch's two precisions.
//!
//! ```sh
//! just steps                                      # both, with all models
//! cargo run --release --package tenure-nn --example ten_steps -- target/steps resnet50
//! ```
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

#[path = "../tests/common/steps.rs"]
mod steps;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use serde::Deserialize;
use steps::{Training, adamw, classify, classify_text, predict, sgd};
use tenure_nn::checkpoint::Weights;
use tenure_nn::models::{
    Bert, BertConfig, DenseNet, DenseNetConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, R3d, R3dConfig, ResNet,
    ResNetConfig,
};
use tenure_nn::{Module, Parameter, Scope, Source};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor, autograd};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NAMES: [&str; 7] = ["resnet18", "resnet50", "densenet121", "r3d_18", "bert_base", "gpt2_12x1024", "llama_8x1024"];

/// The relative tolerance of losses and gradients in double precision. Hugging Face's Llama computes its normalisation
/// and rotary positions in single precision.
const EXACT: f64 = 1e-6;

/// The tolerance in single precision, as a multiple of PyTorch's own difference.
const DRIFT: f64 = 10.0;

/// The values of a model that `steps.py` wrote.
#[derive(Deserialize)]
struct Golden {
    losses: BTreeMap<String, Vec<f64>>,
    seconds: BTreeMap<String, f64>,
    /// The norms of the differences between single and double precision in PyTorch.
    gradient_errors: BTreeMap<String, f64>,
    gradient_norms: BTreeMap<String, f64>,
}

fn main() -> Result<ExitCode> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("the folder that tests/goldens/steps.py wrote to is needed")?;
    let names: Vec<String> = arguments.collect();
    let names = if names.is_empty() { NAMES.map(str::to_owned).to_vec() } else { names };
    let mut is_close = true;
    for name in names {
        for dtype in [DType::F64, DType::F32] {
            is_close &= compare(Path::new(&folder), &name, dtype)?;
        }
    }
    Ok(if is_close { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints how much a model differs from PyTorch's, and returns whether it is within the tolerance.
fn compare(folder: &Path, name: &str, dtype: DType) -> Result<bool> {
    let file = |what: &str| folder.join(format!("{name}{what}"));
    let golden: Golden = serde_json::from_slice(&fs::read(file(".json"))?)?;
    let scope = Scope::new(&Generator::new(0)).with_dtype(dtype).zeroed();
    let mut training = training(name, &scope, &Weights::open(&file(".safetensors"))?)?;
    let data = Weights::open(&file(".data.safetensors"))?;
    let mut inputs = data.tensor("inputs")?;
    let targets = data.tensor("targets")?;
    if inputs.dtype().is_floating() {
        inputs = inputs.to_dtype(dtype)?;
    }
    println!("{name}, {dtype}");
    let mut losses = Vec::new();
    let mut seconds = Vec::new();
    let mut is_close = true;
    for step in 0..golden.losses[&dtype.to_string()].len() {
        let start = Instant::now();
        losses.push(training.step(&inputs.select(0, step as isize)?, &targets.select(0, step as isize)?)?);
        seconds.push(start.elapsed().as_secs_f64());
        if step == 0 {
            let exact = Weights::open(&file(".gradients.safetensors"))?;
            is_close &= compare_gradients(&training.parameters, &exact, &golden, dtype)?;
        }
    }
    is_close &= compare_losses(&losses, &golden.losses, dtype);
    seconds.sort_by(f64::total_cmp);
    let theirs = golden.seconds[&dtype.to_string()];
    println!("  {:.2} s a step; PyTorch {theirs:.2} s, at another time", seconds[seconds.len() / 2]);
    println!("  {}\n", if is_close { "near enough" } else { "TOO FAR OFF" });
    Ok(is_close)
}

fn training(name: &str, scope: &Scope, weights: &Weights) -> Result<Training> {
    Ok(match name {
        "resnet18" => Training::new(loaded(ResNet::new(scope, ResNetConfig::RESNET18)?, weights)?, classify, sgd),
        "resnet50" => Training::new(loaded(ResNet::new(scope, ResNetConfig::RESNET50)?, weights)?, classify, sgd),
        "densenet121" => {
            Training::new(loaded(DenseNet::new(scope, DenseNetConfig::DENSENET121)?, weights)?, classify, sgd)
        }
        "r3d_18" => Training::new(loaded(R3d::new(scope, R3dConfig::R3D18)?, weights)?, classify, sgd),
        "bert_base" => {
            let config =
                BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..BertConfig::default() };
            Training::new(loaded(Bert::new(scope, &config)?, weights)?, classify_text, adamw)
        }
        "gpt2_12x1024" => {
            let config = Gpt2Config {
                n_embd: 1024,
                n_head: 16,
                embd_pdrop: 0.0,
                attn_pdrop: 0.0,
                resid_pdrop: 0.0,
                ..Gpt2Config::default()
            };
            Training::new(loaded(Gpt2::new(&scope.at("transformer"), &config)?, weights)?, predict, adamw)
        }
        "llama_8x1024" => {
            let config = LlamaConfig {
                hidden_size: 1024,
                intermediate_size: 2816,
                num_hidden_layers: 8,
                num_attention_heads: 16,
                num_key_value_heads: 4,
                ..LlamaConfig::default()
            };
            Training::new(loaded(Llama::new(scope, &config)?, weights)?, predict, adamw)
        }
        _ => return Err(format!("no model is called {name}: there are {}", NAMES.join(", ")).into()),
    })
}

fn loaded<M: Module>(model: M, weights: &Weights) -> Result<M> {
    model.load(weights)?;
    Ok(model)
}

/// Compares gradients with those of double precision, which are stored in single precision.
fn compare_gradients(parameters: &[Parameter], exact: &Weights, golden: &Golden, dtype: DType) -> Result<bool> {
    let largest = golden.gradient_norms.values().copied().fold(0.0, f64::max);
    let mut worst = (0.0, "");
    let mut worst_of_theirs = (0.0, "");
    for parameter in parameters {
        let name = parameter.name();
        let grad = parameter.grad().ok_or_else(|| format!("{name} has no gradient"))?;
        // Some gradients are zero except for rounding, such as that of a bias that a softmax cancels.
        let scale = golden.gradient_norms[name] + 1e-6 * largest;
        let ours = distance(&grad, &exact.tensor(name)?)? / scale;
        let theirs = golden.gradient_errors[name] / scale;
        if ours > worst.0 {
            worst = (ours, name);
        }
        if theirs > worst_of_theirs.0 {
            worst_of_theirs = (theirs, name);
        }
    }
    let count = parameters.len();
    println!("  {count} gradients of step 1 from double precision's, at most: {:.1e} of {}", worst.0, worst.1);
    println!("    PyTorch's in single precision: {:.1e} of {}", worst_of_theirs.0, worst_of_theirs.1);
    Ok(worst.0 <= allowed(dtype, worst_of_theirs.0))
}

/// Returns the norm of the difference.
fn distance(left: &Tensor, right: &Tensor) -> tenure_tensor::Result<f64> {
    autograd::no_grad(|| {
        let difference = left.to_dtype(DType::F64)?.sub(&right.to_dtype(DType::F64)?)?;
        Ok(difference.mul(&difference)?.sum_all()?.item::<f64>()?.sqrt())
    })
}

fn compare_losses(losses: &[f64], golden: &BTreeMap<String, Vec<f64>>, dtype: DType) -> bool {
    let relative = |found: f64, expected: f64| (found - expected).abs() / expected.abs();
    println!("  step         loss      PyTorch  relative");
    let (mut worst, mut drift) = (0.0_f64, 0.0_f64);
    for (step, ours) in losses.iter().enumerate() {
        let theirs = golden[&dtype.to_string()][step];
        println!("  {:>4} {ours:>12.8} {theirs:>12.8} {:>9.1e}", step + 1, relative(*ours, theirs));
        worst = worst.max(relative(*ours, theirs));
        drift = drift.max(relative(golden["float32"][step], golden["float64"][step]));
    }
    println!("  at most {worst:.1e}; PyTorch's two precisions differ by {drift:.1e}");
    worst <= allowed(dtype, drift)
}

/// Returns the tolerance of a value that differs by `drift` in PyTorch's single precision.
fn allowed(dtype: DType, drift: f64) -> f64 {
    if dtype == DType::F64 { EXACT } else { EXACT.max(DRIFT * drift) }
}
