//! Tests of the number of kernels that models launch, counted on a simulated device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver, SimKernel};
use tenure_nn::layers::Layer;
use tenure_nn::models::{Gpt2, Gpt2Config, InceptionConfig, InceptionV3, Llama, LlamaConfig, ResNet, ResNetConfig};
use tenure_nn::optim::{Adam, Optimizer, Sgd};
use tenure_nn::{Module, Result, Scope};
use tenure_tensor::autograd::no_grad;
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, MemoryFormat, Tensor};

const CUDA: Device = Device::cuda(0);

fn driver() -> &'static Arc<SimDriver> {
    static DRIVER: OnceLock<Arc<SimDriver>> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        memory::install(driver.clone(), MemoryConfig::default()).unwrap();
        driver
    })
}

/// Locks the device for one test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    driver();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(work: impl FnOnce() -> Result<()>) -> u64 {
    let stream = memory::device(0).unwrap().streams().current_id();
    let number = || driver().launch(SimKernel::new("mark", stream)).unwrap().number;
    let before = number();
    work().unwrap();
    number() - before - 1
}

fn images(sizes: &[usize], dtype: DType, format: MemoryFormat) -> Tensor {
    let images = Tensor::randn(sizes, DType::F32, Device::CPU, &Generator::new(1)).unwrap().to_dtype(dtype).unwrap();
    images.contiguous_in(format).unwrap().to_device(CUDA).unwrap()
}

/// Returns the number of launches of a training step after warm-up.
fn of_step(model: &impl Layer, inputs: &Tensor, targets: &Tensor, mut optimizer: Optimizer) -> u64 {
    let mut step = || {
        let scores = model.forward(inputs)?;
        let loss = scores.flatten(0, -2)?.cross_entropy(targets, &CrossEntropy::default())?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()
    };
    step().unwrap();
    count(step)
}

#[test]
fn a_resnets_step_has_no_launch_too_many() {
    let _alone = alone();
    let config = ResNetConfig { width: 8, blocks: [1; 4], ..ResNetConfig::RESNET50 };
    let mut model = ResNet::new(&Scope::new(&Generator::new(0)), config).unwrap();
    model.to_dtype(DType::BF16).unwrap();
    model.to_format(MemoryFormat::ChannelsLast2d).unwrap();
    model.to_device(CUDA).unwrap();
    let images = images(&[2, 3, 64, 64], DType::BF16, MemoryFormat::ChannelsLast2d);
    let labels = Tensor::arange(0, 2, 1, DType::I64, Device::CPU).unwrap().to_device(CUDA).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
    let (convolutions, residuals) = (17, 4);
    // Images have no gradient. Normalisation also counts batches.
    let normalized = convolutions * (3 + 3 + 3 + 1) - 1;
    // The gradient of a tensor that is used twice is masked and added up.
    let around = residuals * 2;
    let pools = 2 * 2;
    let (linear, loss, optimizer_step) = (4, 10, 1);
    let found = of_step(&model, &images, &labels, optimizer);
    assert_eq!(found, normalized + around + pools + linear + loss + optimizer_step);
}

#[test]
fn a_gpt2s_step_has_no_launch_too_many() {
    let _alone = alone();
    let layers = 2;
    let config = Gpt2Config { n_embd: 32, n_head: 2, n_layer: 2, vocab_size: 56, ..Gpt2Config::default() };
    let config = Gpt2Config { embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0, ..config };
    let mut model = Gpt2::new(&Scope::new(&Generator::new(0)), &config).unwrap();
    model.to_dtype(DType::BF16).unwrap();
    model.to_device(CUDA).unwrap();
    let tokens = Tensor::from_slice(&(0..16).collect::<Vec<i64>>(), &[2, 8]).unwrap().to_device(CUDA).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 0.01, Adam::w());
    // Four products, each with a gradient of its input, its weight and its bias; attention, whose three gradients are
    // joined; an activation; two norms, each with a sum and conversions of gradients; two sums, whose gradients the
    // norms add to.
    let layer = 4 * (1 + 3) + (2 + 1) + 2 + 2 * (2 + 1 + 2) + 2;
    let embeddings = 2 + 6;
    let norm = 2 + 1 + 2;
    let head = 1 + 2;
    let (loss, optimizer_step) = (10, 1);
    let found = of_step(&model, &tokens, &tokens.flatten(0, -1).unwrap(), optimizer);
    assert_eq!(found, layers * layer + embeddings + norm + head + loss + optimizer_step);
}

#[test]
fn a_llamas_step_has_no_launch_too_many() {
    let _alone = alone();
    let config = LlamaConfig { vocab_size: 56, hidden_size: 32, intermediate_size: 64, ..LlamaConfig::default() };
    let heads = LlamaConfig { num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, ..config };
    let mut model = Llama::new(&Scope::new(&Generator::new(0)), &heads).unwrap();
    model.to_dtype(DType::BF16).unwrap();
    model.to_device(CUDA).unwrap();
    let tokens = Tensor::from_slice(&(0..16).collect::<Vec<i64>>(), &[2, 8]).unwrap().to_device(CUDA).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 0.01, Adam::w());
    let found = of_step(&model, &tokens, &tokens.flatten(0, -1).unwrap(), optimizer);
    // Seven products, each with a gradient of its input and its weight; queries and keys, turned and turned back;
    // attention; gates; two norms, each with a sum and a conversion of gradients; two sums, whose gradients the norms
    // add to, as products with one input add to each other's.
    let layer = 7 * (1 + 2) + 2 * (1 + 1) + (1 + 1) + (1 + 1) + 2 * (1 + 1 + 2) + 2;
    let embedding = 1 + 2;
    let norm = 1 + 1 + 2;
    let head = 1 + 2;
    let loss = 10;
    let optimizer_step = 1;
    assert_eq!(found, 2 * layer + embedding + norm + head + loss + optimizer_step);
}

#[test]
fn images_stay_in_their_format_through_a_network() {
    let _alone = alone();
    let config = InceptionConfig { has_auxiliary: false, ..InceptionConfig::V3 };
    let mut model = InceptionV3::new(&Scope::new(&Generator::new(0)), config).unwrap();
    model.to_device(CUDA).unwrap();
    model.eval();
    for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast2d] {
        model.to_format(format).unwrap();
        let images = images(&[1, 3, 75, 75], DType::F32, format);
        // Convolutions, each with normalisation and activation in one operation; pools; concatenations of branches; the
        // classifier.
        assert_eq!(count(|| no_grad(|| model.forward(&images)).map(drop).map_err(Into::into)), 94 * 2 + 14 + 11 + 1);
    }
}
