//! Tests of steps on a simulated CUDA device: their driver calls, which it counts, and writes to tensors that are being
//! copied away, whose races it finds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

#[path = "../../tenure-tensor/tests/common/mod.rs"]
mod common;

use common::{cuda, in_use_alone, simulated};
use fixtures::{gpt2, text};
use tenure_device::cost::Counters;
use tenure_device::memory;
use tenure_nn::data::{DataLoader, LoaderOptions};
use tenure_nn::models::Gpt2;
use tenure_nn::optim::{Adam, Optimizer, Schedule};
use tenure_nn::train::{Classification, Trainer, TrainerOptions};
use tenure_nn::{Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor};
use tenure_tier::{Destination, MovableBytes, Mover, MoverOptions, Urgency};

const VOCABULARY: usize = 3000;
const WINDOW: usize = 64;
const STEPS: u64 = 20;
/// An epoch of eight steps, and the first step of the next.
const WARM: usize = 9;

#[test]
fn a_step_that_is_warm_allocates_nothing_from_the_driver_and_waits_once() {
    let Some(driver) = (cuda(), simulated()).1 else { return };
    let _alone = in_use_alone();
    for is_captured in [false, true] {
        let config = gpt2(VOCABULARY, WINDOW, 32, 2);
        let model = Gpt2::new(&Scope::new(&Generator::new(1)).with_device(cuda()), &config).unwrap();
        let options = LoaderOptions { batch_size: 4, shuffle: Some(3), device: cuda(), ..LoaderOptions::default() };
        let loader = DataLoader::new(text(32, WINDOW, VOCABULARY), options);
        let schedule = Schedule::Cosine { steps: STEPS, end: 0.1 };
        let plan =
            TrainerOptions { steps: STEPS, schedule, clip_norm: Some(1.0), is_captured, ..TrainerOptions::default() };
        let optimizer = Optimizer::new(model.parameters(), 1e-3, Adam::w());
        let mut run = Trainer::new(Classification(model), loader, optimizer, plan);
        let mut asked = Vec::new();
        let mut before = driver.counters();
        while run.step().unwrap().is_some() {
            let after = driver.counters();
            asked.push(after - before);
            before = after;
        }
        for (number, asked) in asked.iter().enumerate().skip(WARM) {
            let Counters { malloc, create, map, register_host, host_syncs, .. } = *asked;
            assert_eq!([malloc, create, map, register_host], [0; 4], "step {number}, captured: {is_captured}");
            assert!(host_syncs <= 1, "step {number}, captured: {is_captured}: {host_syncs} waits");
        }
    }
}

#[test]
fn a_write_waits_for_the_copy_of_a_tensor_that_is_being_spilled() {
    let Some(driver) = (cuda(), simulated()).1 else { return };
    let _alone = in_use_alone();
    let memory = memory::device(cuda().index()).unwrap();
    let stream = memory.streams().current();
    let mover = Mover::new(Some(memory), MoverOptions::new(16 << 20)).unwrap();
    let spilled = Tensor::full(&[1024], 3.0, DType::F32, cuda()).unwrap();
    // SAFETY: later writes wait for the copy.
    let source = unsafe { MovableBytes::of(spilled.storage(), Some(&stream)) };
    let stored = mover.store("spilled", source, Destination::Host).unwrap();
    spilled.narrow(0, 8, 16).unwrap().fill_(4.0).unwrap();
    let back = Tensor::empty(&[1024], DType::F32, cuda()).unwrap();
    // SAFETY: it is read only after the copy, for which `stream` waits.
    let target = unsafe { MovableBytes::of(back.storage(), Some(&stream)) };
    mover.fetch(&stored, target, Urgency::Now).unwrap().lead_to(&stream).unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), [3.0; 1024]);
    assert_eq!(spilled.to_vec::<f32>().unwrap()[7..10], [3.0, 4.0, 4.0]);
    assert!(driver.fault().is_none(), "{:?}", driver.fault());
}
