//! Tests of networks that compute with weights lent by a switcher. The device is simulated, unless `TENURE_TEST_DRIVER`
//! is `cuda`. Both sides are in one process here; tenure-serve has them in several.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

mod texts;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fixtures::{alone_with_device, expect_error, expect_peace};
use parking_lot::MutexGuard;
use tempfile::TempDir;
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::SimConfig;
use tenure_nn::layers::{Layer, Linear};
use tenure_nn::networks::Network;
use tenure_nn::switched::{BorrowedNetwork, Borrower, LentModel, Measured, SwitchedModel, Switcher, SwitcherOptions};
use tenure_nn::{Scope, module};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor, autograd};

use self::texts::{TABLE_BYTES, Texts};

const CHUNK: u64 = 64 << 10;

const CUDA: Device = Device::cuda(0);

/// Locks the device for one test. Also returns the size of its smallest chunks.
fn alone() -> (MutexGuard<'static, ()>, &'static DeviceMemory, u64) {
    let config = SimConfig { granularity_bytes: CHUNK, capacity_bytes: 1 << 30, seed: 7, ..SimConfig::default() };
    let (alone, memory) = alone_with_device(config);
    (alone, memory, memory.driver().granularity())
}

fn shapes() -> Box<dyn Network> {
    Box::new(Texts::new(&Scope::new(&Generator::new(0)).shapes()).unwrap())
}

/// A file with a network's values, and the network for the expected outputs.
struct Made {
    plain: Texts,
    path: PathBuf,
}

impl Made {
    fn new(folder: &Path, seed: u64) -> Self {
        let (plain, path) = texts::drawn(folder, seed);
        Self { plain, path }
    }

    fn expected(&self, inputs: &[Tensor]) -> Vec<u8> {
        let inputs: Vec<Tensor> = inputs.iter().map(|input| input.to_device(CUDA).unwrap()).collect();
        autograd::no_grad(|| self.plain.forward(&inputs)).unwrap()[0].to_bytes().unwrap()
    }
}

fn inputs(batch: usize) -> Vec<Tensor> {
    let tokens: Vec<i64> = (0..batch * 6).map(|index| (index * index * 977) as i64 % 9000).collect();
    vec![Tensor::from_slice(&tokens, &[batch, 6]).unwrap()]
}

fn borrow(network: &mut BorrowedNetwork, borrower: &Borrower, lent: &LentModel) -> tenure_nn::Result<()> {
    let chunks: Vec<OwnedFd> = lent.chunks().map(|chunk| chunk.descriptor().unwrap()).collect();
    network.borrow(borrower, lent.terms(), lent.tables().unwrap(), chunks)
}

fn ask(network: &mut BorrowedNetwork, borrower: &Borrower, inputs: &[Tensor]) -> (Vec<u8>, Option<Measured>) {
    let (answers, measured) = network.forward(borrower, inputs).unwrap();
    (answers[0].to_bytes().unwrap(), measured)
}

/// Makes a switcher with room for so many models, whose layers take less than the smallest chunk.
fn switcher(chunk: u64, models: u64) -> Switcher {
    let room = models * (TABLE_BYTES + CHUNK).next_multiple_of(chunk);
    let options = SwitcherOptions { chunk_bytes: chunk, orders: None, ..SwitcherOptions::new(room, 64 << 20) };
    Switcher::new(CUDA, options).unwrap()
}

#[test]
fn borrowed_networks_answer_what_the_models_own_do_while_they_come_go_and_are_learned() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    let made = [1, 2].map(|seed| Made::new(folder.path(), seed));
    let switcher = switcher(chunk, 1);
    let borrower = Borrower::new(CUDA, switcher.chunk_bytes()).unwrap();
    let mut models = made.each_ref().map(|made| {
        let model = switcher.add(&made.path.to_string_lossy(), shapes(), &[&made.path]).unwrap();
        (model, BorrowedNetwork::new(shapes()).unwrap())
    });
    let mut learned = 0;
    for turn in 0..8 {
        for (made, (model, network)) in made.iter().zip(&mut models) {
            let inputs = inputs(1 + turn % 2);
            let lent = model.lend().unwrap();
            borrow(network, &borrower, &lent).unwrap();
            let (answer, measured) = ask(network, &borrower, &inputs);
            assert!(answer == made.expected(&inputs), "turn {turn}");
            model.evict().unwrap();
            assert!(model.is_resident().unwrap(), "it is lent");
            network.give_back();
            drop(lent);
            if let Some(measured) = measured {
                model.learn(&measured).unwrap();
                assert!(model.is_resident().unwrap() && model.group_bytes().unwrap().len() < 9);
                learned += 1;
            }
        }
    }
    assert_eq!(learned, 2, "each once");
    assert!(models.iter().all(|(model, _)| model.table_bytes().unwrap() == TABLE_BYTES));
    drop(models);
    expect_peace(memory);
}

#[test]
fn a_lent_model_makes_no_room_for_others() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    let made = [1, 2].map(|seed| Made::new(folder.path(), seed));
    let switcher = switcher(chunk, 1);
    let models: Vec<SwitchedModel> =
        made.iter().map(|made| switcher.add(&made.path.to_string_lossy(), shapes(), &[&made.path]).unwrap()).collect();
    let lent = models[0].lend().unwrap();
    expect_error(models[1].load(), "evict other models first");
    drop(lent);
    models[1].load().unwrap();
    models[1].settle().unwrap();
    assert!(!models[0].is_resident().unwrap());
    expect_peace(memory);
}

#[test]
fn a_model_that_is_not_lent_is_not_borrowed_and_the_next_time_it_is() {
    let (_alone, memory, chunk) = alone();
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), 1);
    let switcher = switcher(chunk, 1);
    let borrower = Borrower::new(CUDA, switcher.chunk_bytes()).unwrap();
    let model = switcher.add("model", shapes(), &[&made.path]).unwrap();
    let lent = model.lend().unwrap();
    let mut network = BorrowedNetwork::new(shapes()).unwrap();
    let said = network.borrow(&borrower, lent.terms(), None, []).unwrap_err().to_string();
    assert!(said.contains("chunks: 0") && !network.is_borrowed(), "{said}");
    let wrong = Linear::new(&Scope::new(&Generator::new(0)).shapes(), 3, 3).unwrap();
    let mut other = BorrowedNetwork::new(Box::new(Alone { layer: wrong })).unwrap();
    expect_error(borrow(&mut other, &borrower, &lent), "last.weight");
    borrow(&mut network, &borrower, &lent).unwrap();
    // The call fails in the network, and the next call is unaffected.
    let wrong = [Tensor::zeros(&[1, 2], DType::F32, Device::CPU).unwrap()];
    assert!(network.forward(&borrower, &wrong).is_err() && !borrower.is_lost());
    assert_eq!(ask(&mut network, &borrower, &inputs(2)).0, made.expected(&inputs(2)));
    let cpu = Switcher::new(Device::CPU, SwitcherOptions::new(64 << 20, 0)).unwrap();
    expect_error(cpu.add("model", shapes(), &[&made.path]).unwrap().lend(), "on the CPU");
    drop((network, lent));
    expect_peace(memory);
}

struct Alone {
    layer: Linear,
}
module!(Alone { layer });

impl Network for Alone {
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.layer.forward(&inputs[0])?])
    }
}
