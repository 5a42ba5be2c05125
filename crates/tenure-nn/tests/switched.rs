//! Tests that networks that share a device too small for all of them compute the same as networks alone: on the CPU,
//! and on a device that is simulated unless `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

#[path = "common/configs.rs"]
mod configs;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;

use fixtures::{alone_with_device, expect_error, expect_peace};
use parking_lot::MutexGuard;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tenure_device::Executor;
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_nn::layers::{Embedding, Layer, Linear};
use tenure_nn::models::{Bert, Gpt2, Llama, ResNet};
use tenure_nn::networks::Network;
use tenure_nn::switched::{Orders, SwitchedModel, Switcher, SwitcherOptions};
use tenure_nn::{Buffer, Module, Scope, checkpoint, module};
use tenure_switch::groups::Grouping;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor, autograd};

/// The smallest chunk of the simulated device's memory, in bytes.
const CHUNK: u64 = 64 << 10;

const CUDA: Device = Device::cuda(0);

/// Locks the device for one test. Also returns the size of its smallest chunks.
fn alone() -> (MutexGuard<'static, ()>, &'static DeviceMemory, u64) {
    let config = SimConfig { granularity_bytes: CHUNK, capacity_bytes: 1 << 30, seed: 7, ..SimConfig::default() };
    let (alone, memory) = alone_with_device(config);
    (alone, memory, memory.driver().granularity())
}

fn simulated(memory: &'static DeviceMemory) -> Option<&'static SimDriver> {
    match memory.driver().executor() {
        Executor::Sim(driver) => Some(driver),
        Executor::Cuda(_) => None,
    }
}

/// A network whose layers are not used in the order in which they are listed, with a table that the last layer shares,
/// and a buffer of integers.
struct Chain {
    last: Linear,
    shift: Buffer,
    layers: Vec<Linear>,
    table: Embedding,
}
module!(Chain { last, shift, layers, table });

impl Chain {
    fn new(scope: &Scope) -> Result<Self> {
        let size = 48;
        let table = Embedding::new(&scope.at("table"), 16, size)?;
        let mut last = Linear::new(&scope.at("last"), size, 16)?;
        last.weight = table.weight.clone();
        let layers = (0..3).map(|index| Linear::new(&scope.at("layers").at(index), size, size));
        let shift = scope.buffer("shift", &[1], 3, DType::I64)?;
        Ok(Self { last, shift, layers: layers.collect::<Result<_>>()?, table })
    }
}

impl Network for Chain {
    fn outputs(&self) -> usize {
        2
    }

    /// Panics for tokens of one dimension. The second output is a weight.
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        assert!(inputs[0].rank() > 1, "tokens of sizes {:?}", inputs[0].sizes());
        let mut x = self.table.forward(&inputs[0])?;
        for layer in self.layers.iter().rev() {
            x = layer.forward(&x)?.relu()?;
        }
        let x = self.last.forward(&x)?.add(&self.shift.to_dtype(DType::F32)?)?;
        Ok(vec![x, self.layers[0].weight.narrow(0, 1, 2)?])
    }
}

struct OneLayer {
    layer: Box<dyn Layer>,
}
module!(OneLayer { layer });

impl Network for OneLayer {
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.layer.forward(&inputs[0])?])
    }
}

struct Texts {
    bert: Bert,
}
module!(Texts { bert });

impl Network for Texts {
    fn inputs(&self) -> usize {
        2
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.bert.forward(&inputs[0], Some(&inputs[1]))?])
    }
}

/// A network of a table's rows and a linear layer on them.
struct Rows {
    table: Embedding,
    out: Linear,
}
module!(Rows { table, out });

impl Layer for Rows {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.out.forward(&self.table.forward(input)?)
    }
}

const KINDS: [&str; 6] = ["chain", "resnet", "gpt2", "llama", "bert", "rows"];

fn network(kind: &str, scope: &Scope) -> Box<dyn Network> {
    let layer: Box<dyn Layer> = match kind {
        "chain" => return Box::new(Chain::new(scope).unwrap()),
        "bert" => return Box::new(Texts { bert: Bert::new(scope, &configs::bert()).unwrap() }),
        "resnet" => Box::new(ResNet::new(scope, configs::RESNET_BASIC).unwrap()),
        "gpt2" => Box::new(Gpt2::new(scope, &configs::gpt2()).unwrap()),
        "llama" => Box::new(Llama::new(scope, &configs::llama()).unwrap()),
        _ => {
            let table = Embedding::new(&scope.at("table"), 9000, 32);
            let out = Linear::new(&scope.at("out"), 32, 5);
            Box::new(Rows { table: table.unwrap(), out: out.unwrap() })
        }
    };
    Box::new(OneLayer { layer })
}

fn shapes(kind: &str) -> Box<dyn Network> {
    network(kind, &Scope::new(&Generator::new(0)).shapes())
}

fn inputs(kind: &str, batch: usize, device: Device) -> Vec<Tensor> {
    let tokens: Vec<i64> = (0..batch * 6).map(|index| (index * index) as i64 % 11).collect();
    let tokens = || Tensor::from_slice(&tokens, &[batch, 6]).unwrap().to_device(device).unwrap();
    match kind {
        "resnet" => {
            let pixels: Vec<f32> = (0..batch * 3 * 32 * 32).map(|index| (index % 37) as f32 / 37.0).collect();
            vec![Tensor::from_slice(&pixels, &[batch, 3, 32, 32]).unwrap().to_device(device).unwrap()]
        }
        "bert" => vec![tokens(), Tensor::ones(&[batch, 6], DType::I64, device).unwrap()],
        _ => vec![tokens()],
    }
}

/// A network with values, and a file with the same values.
struct Made {
    kind: &'static str,
    plain: Box<dyn Network>,
    path: PathBuf,
}

impl Made {
    fn new(folder: &Path, kind: &'static str, seed: u64, device: Device) -> Self {
        let mut plain = network(kind, &Scope::new(&Generator::new(seed)).with_device(device));
        plain.eval();
        let path = folder.join(format!("{kind}-{seed}.safetensors"));
        let state = plain.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        checkpoint::save(&path, state, ("made", "by a test")).unwrap();
        Self { kind, plain, path }
    }

    fn expected(&self, inputs: &[Tensor]) -> Vec<Vec<u8>> {
        bytes(autograd::no_grad(|| self.plain.forward(inputs)).unwrap())
    }
}

/// Makes a network of each kind.
fn one_of_each(folder: &Path, device: Device) -> Vec<Made> {
    (1..).zip(KINDS).map(|(seed, kind)| Made::new(folder, kind, seed, device)).collect()
}

fn bytes(answers: Vec<Tensor>) -> Vec<Vec<u8>> {
    answers.iter().map(|answer| answer.to_bytes().unwrap()).collect()
}

fn ask(model: &SwitchedModel, inputs: &[Tensor]) -> Vec<Vec<u8>> {
    bytes(model.forward(inputs).unwrap())
}

fn options(device_bytes: u64, chunk_bytes: u64) -> SwitcherOptions {
    SwitcherOptions { chunk_bytes, orders: None, ..SwitcherOptions::new(device_bytes, 64 << 20) }
}

fn room(made: &Made, chunk: u64) -> u64 {
    fs::metadata(&made.path).unwrap().len().next_multiple_of(chunk) + chunk
}

#[test]
fn every_answer_is_the_models_own_on_every_device_in_every_grouping() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made = one_of_each(folder.path(), device);
        // The largest model fits only alone.
        let chunk = if device.is_cpu() { 16 << 10 } else { chunk };
        let budget = made.iter().map(|made| room(made, chunk)).max().unwrap();
        for grouping in [Grouping::Searched, Grouping::PerLayer, Grouping::PerBlock, Grouping::Whole] {
            let switcher = Switcher::new(device, SwitcherOptions { grouping, ..options(budget, chunk) }).unwrap();
            let models: Vec<SwitchedModel> = made
                .iter()
                .map(|made| switcher.add(&made.path.to_string_lossy(), shapes(made.kind), &[&made.path]).unwrap())
                .collect();
            let tensors: Vec<usize> = models.iter().map(|model| model.group_bytes().unwrap().len()).collect();
            for turn in 0..5 {
                for (made, model) in made.iter().zip(&models) {
                    let inputs = inputs(made.kind, 1 + turn % 2, device);
                    assert_eq!(ask(model, &inputs), made.expected(&inputs), "{} on {device}, turn {turn}", made.kind);
                    assert!(model.is_resident().unwrap());
                }
            }
            let report = switcher.report();
            assert!(report.peak_bytes <= budget && report.switches > 9, "{report:?}");
            for (model, tensors) in models.iter().zip(tensors) {
                // On the CPU the next image has the learned order.
                model.evict().unwrap();
                let groups = model.group_bytes().unwrap().len();
                let is_right = match grouping {
                    // Unused tensors are a group, too.
                    Grouping::Whole => groups <= 2,
                    Grouping::PerLayer => groups > 0 && groups <= tensors,
                    _ => groups < tensors,
                };
                assert!(is_right, "{grouping:?}: {groups} groups of {tensors} tensors of {}", model.name());
                assert_eq!(model.captures().unwrap(), if device.is_cpu() { 0 } else { 2 });
                let has_table = !device.is_cpu() && model.name().contains("rows");
                assert_eq!(model.table_bytes().unwrap(), if has_table { 9000 * 32 * 4 } else { 0 });
                model.remove().unwrap();
            }
            let report = switcher.report();
            assert_eq!((report.models, report.resident_bytes, report.image_bytes), (0, 0, 0));
        }
    }
    expect_peace(memory);
}

#[test]
fn an_order_that_was_learned_is_known_to_the_next_switcher() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made = one_of_each(folder.path(), device);
        let orders = folder.path().join(device.to_string());
        let groups = |calls: usize| -> Vec<Vec<u64>> {
            let options = SwitcherOptions { orders: Some(Orders::new(&orders)), ..options(64 << 20, chunk) };
            let switcher = Switcher::new(device, options).unwrap();
            let mut groups = Vec::new();
            for made in &made {
                let model = switcher.add(made.kind, shapes(made.kind), &[&made.path]).unwrap();
                model.load().unwrap();
                let inputs = inputs(made.kind, 1, device);
                for _ in 0..calls {
                    assert_eq!(ask(&model, &inputs), made.expected(&inputs), "{} on {device}", made.kind);
                }
                // On the CPU the next image has the learned order.
                model.evict().unwrap();
                groups.push(model.group_bytes().unwrap());
                model.remove().unwrap();
            }
            groups
        };
        let learned = groups(3);
        assert_eq!(groups(1), learned, "on {device}");
        assert_eq!(fs::read_dir(&orders).unwrap().count(), KINDS.len());
        fs::read_dir(&orders).unwrap().for_each(|file| fs::write(file.unwrap().path(), b"{}").unwrap());
        assert_ne!(groups(0), learned, "a file without an order gives none");
    }
    expect_peace(memory);
}

#[test]
fn a_model_of_few_calls_or_low_priority_leaves_first() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made: Vec<Made> = (0..3).map(|seed| Made::new(folder.path(), "chain", seed, device)).collect();
        let image = fs::metadata(&made[0].path).unwrap().len();
        let room = if device.is_cpu() { image } else { image.next_multiple_of(chunk) };
        let switcher = Switcher::new(device, options(2 * room, chunk)).unwrap();
        let models: Vec<SwitchedModel> = (0..)
            .zip(&made)
            .map(|(index, made)| switcher.add(&index.to_string(), shapes("chain"), &[&made.path]).unwrap())
            .collect();
        let resident = || models.iter().map(|model| model.is_resident().unwrap()).collect::<Vec<_>>();
        (0..4).for_each(|_| models[1].load().unwrap());
        models[0].load().unwrap();
        models[2].load().unwrap();
        assert_eq!(resident(), [false, true, true], "the first one was called once");
        models[0].load().unwrap();
        assert_eq!(resident(), [true, true, false], "the last one was called once");
        models[1].set_priority(-10).unwrap();
        models[2].load().unwrap();
        assert_eq!(resident(), [true, false, true], "the second one matters least");
    }
    expect_peace(memory);
}

#[test]
fn twenty_models_of_which_three_have_room_are_switched_at_random() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    let made: Vec<Made> = (0..20).map(|seed| Made::new(folder.path(), "chain", seed, CUDA)).collect();
    let inputs = inputs("chain", 2, CUDA);
    let expected: Vec<_> = made.iter().map(|made| made.expected(&inputs)).collect();
    let chunks = fs::metadata(&made[0].path).unwrap().len().div_ceil(chunk);
    let before = memory.backing().held_bytes();
    {
        let switcher = Switcher::new(CUDA, options(3 * chunks * chunk, chunk)).unwrap();
        let models: Vec<SwitchedModel> = made
            .iter()
            .map(|made| switcher.add(&made.path.to_string_lossy(), shapes("chain"), &[&made.path]).unwrap())
            .collect();
        let mut random = SmallRng::seed_from_u64(3);
        while switcher.report().switches < 10_000 {
            let index = random.random_range(0..models.len());
            match random.random_range(0..20) {
                0 => models[index].evict().unwrap(),
                1 => models[index].forget().unwrap(),
                2 => models[index].load().unwrap(),
                _ => assert!(ask(&models[index], &inputs) == expected[index], "a wrong answer of model {index}"),
            }
        }
        let report = switcher.report();
        assert!(report.peak_bytes == 3 * chunks * chunk && report.resident_models <= 3, "{report:?}");
        for model in &models {
            model.evict().unwrap();
            assert_eq!(model.resident_bytes().unwrap(), 0);
        }
        models.iter().for_each(|model| model.remove().unwrap());
        switcher.trim().unwrap();
        assert_eq!(switcher.report().image_bytes, 0);
    }
    memory.allocator().release_cached().unwrap();
    assert!(memory.backing().held_bytes() <= before, "{} of {before}", memory.backing().held_bytes());
    expect_peace(memory);
}

#[test]
fn threads_that_ask_for_different_models_get_their_answers() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made = one_of_each(folder.path(), device);
        let budget = made.iter().map(|made| room(made, chunk)).max().unwrap();
        let switcher = Switcher::new(device, options(budget, chunk)).unwrap();
        thread::scope(|scope| {
            for made in &made {
                let model = switcher.add(made.kind, shapes(made.kind), &[&made.path]).unwrap();
                scope.spawn(move || {
                    let inputs = inputs(made.kind, 1, device);
                    let expected = made.expected(&inputs);
                    for _ in 0..20 {
                        assert!(ask(&model, &inputs) == expected, "{} on {device}", made.kind);
                    }
                });
            }
        });
    }
    expect_peace(memory);
}

#[test]
fn files_that_are_missing_cut_or_none_are_told_and_the_next_call_is_right() {
    let (_alone, _, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made = Made::new(folder.path(), "resnet", 1, device);
        let whole = fs::read(&made.path).unwrap();
        let switcher = Switcher::new(device, options(2 * room(&made, chunk), chunk)).unwrap();
        let refused = |path: &Path, expected: &str| {
            let said = switcher.add("model", shapes("resnet"), &[path]).err().unwrap().to_string();
            assert!(said.contains(expected) && said.contains(&*path.to_string_lossy()), "{said}");
        };
        refused(&folder.path().join("none.safetensors"), "No such file");
        let broken = folder.path().join("broken.safetensors");
        fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
        refused(&broken, &format!("{} are missing at its end", whole.len().div_ceil(2)));
        fs::write(&broken, b"{}").unwrap();
        refused(&broken, "no safetensors");
        expect_error(switcher.add("model", shapes("gpt2"), &[&made.path]), "missing");

        let model = switcher.add("model", shapes("resnet"), &[&made.path]).unwrap();
        expect_error(switcher.add("model", shapes("resnet"), &[&made.path]), "already");
        let inputs = inputs("resnet", 1, device);
        let expected = made.expected(&inputs);
        fs::File::options().write(true).open(&made.path).unwrap().set_len(whole.len() as u64 / 2).unwrap();
        let said = model.forward(&inputs).unwrap_err().to_string();
        assert!(said.contains("model: its weights cannot be read") && said.contains("it was cut"), "{said}");
        fs::write(&made.path, &whole).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&model, &inputs), expected);
        }
        model.remove().unwrap();
        expect_error(model.forward(&inputs), "add it again");
        assert_eq!((switcher.report().resident_bytes, switcher.report().image_bytes), (0, 0));
    }
}

#[test]
fn a_model_without_room_is_refused_with_figures() {
    let (_alone, _, chunk) = alone();
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), "resnet", 1, CUDA);
    let inputs = inputs("resnet", 1, CUDA);
    for (device, options, parts) in [
        (CUDA, options(chunk, chunk), ["can never be there", &chunk.to_string()]),
        (CUDA, SwitcherOptions { host_bytes: 1000, ..options(1 << 30, chunk) }, ["of the 1000 bytes for images"; 2]),
        (Device::CPU, options(1000, chunk), ["of the 1000 bytes for images"; 2]),
    ] {
        let switcher = Switcher::new(device, options).unwrap();
        let added = switcher.add("model", shapes("resnet"), &[&made.path]);
        let said = added.and_then(|model| model.forward(&inputs)).err().unwrap().to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn a_forward_that_fails_or_panics_leaves_the_next_call_right() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    for device in [Device::CPU, CUDA] {
        let made = [1, 2].map(|seed| Made::new(folder.path(), "chain", seed, device));
        let switcher = Switcher::new(device, options(room(&made[0], chunk), chunk)).unwrap();
        let models = [0, 1].map(|index| {
            let made: &Made = &made[index];
            switcher.add(&index.to_string(), shapes("chain"), &[&made.path]).unwrap()
        });
        let right = inputs("chain", 2, device);
        for turn in 0..6 {
            let made = &made[turn % 2];
            let model = &models[turn % 2];
            assert!(model.forward(&[Tensor::zeros(&[1, 2], DType::F32, device).unwrap()]).is_err());
            let flat = [right[0].view(&[-1]).unwrap()];
            assert!(catch_unwind(AssertUnwindSafe(|| model.forward(&flat))).is_err());
            assert_eq!(ask(model, &right), made.expected(&right), "turn {turn} on {device}");
        }
    }
    expect_peace(memory);
}

/// If any call of the driver fails, the next calls are unaffected, and no memory is lost.
#[test]
fn no_failing_call_of_the_driver_loses_an_answer() {
    let (_alone, memory, chunk) = alone();
    let Some(driver) = simulated(memory) else { return };
    let folder = TempDir::new().unwrap();
    let made = [1, 2].map(|seed| Made::new(folder.path(), "chain", seed, CUDA));
    let inputs = inputs("chain", 2, CUDA);
    let expected = [0, 1].map(|index| made[index].expected(&inputs));
    let mut has_failed = 0;
    // Only every 13th call fails, since there are thousands.
    for call in (1..).map(|step: u64| step * 13) {
        let switcher = Switcher::new(CUDA, options(room(&made[0], chunk), chunk)).unwrap();
        let models =
            [0, 1].map(|index: usize| switcher.add(&index.to_string(), shapes("chain"), &[&made[index].path]).unwrap());
        driver.inject(Failure::of_any(call));
        let failed = (0..8).find_map(|turn| models[turn % 2].forward(&inputs).err());
        driver.clear_failures();
        for turn in 0..4 {
            assert!(ask(&models[turn % 2], &inputs) == expected[turn % 2], "after call {call}: {failed:?}");
        }
        models.iter().for_each(|model| model.remove().unwrap());
        assert_eq!(switcher.report().resident_bytes, 0);
        match failed {
            Some(_) => has_failed += 1,
            None if call > 1000 => break,
            None => {}
        }
    }
    assert!(has_failed > 10, "{has_failed}");
    expect_peace(memory);
}
