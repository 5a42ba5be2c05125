//! Tests of models on two devices that copy from the same images. The devices are simulated, unless
//! `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

mod texts;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;

use fixtures::{expect_error, expect_peace, has_cuda};
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Platform as _, cuda};
use tenure_nn::networks::Network;
use tenure_nn::switched::{Orders, StoredTensors, SwitchedModel, Switcher, SwitcherOptions};
use tenure_nn::{Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{Device, Tensor, autograd};

use self::texts::{TABLE_BYTES, Texts};

const CHUNK: u64 = 64 << 10;

const DEVICES: [Device; 2] = [Device::cuda(0), Device::cuda(1)];

/// Locks the devices, which belong to the process, for one test. Returns `None` if there are fewer than two.
fn alone() -> Option<(MutexGuard<'static, ()>, &'static [&'static DeviceMemory])> {
    static ALONE: Mutex<()> = Mutex::new(());
    static MEMORIES: LazyLock<Vec<&DeviceMemory>> = LazyLock::new(|| {
        if has_cuda() {
            let count = cuda::platform().device_count().unwrap().min(2);
            return (0..count as u8).map(|index| memory::device(index).unwrap()).collect();
        }
        let config = SimConfig { granularity_bytes: CHUNK, capacity_bytes: 1 << 30, seed: 5, ..SimConfig::default() };
        let platform = SimPlatform::new(vec![config; 2]);
        [0, 1].map(|index| memory::install(platform.driver(index).unwrap(), MemoryConfig::default()).unwrap()).to_vec()
    });
    let alone = ALONE.lock();
    if MEMORIES.len() < DEVICES.len() {
        eprintln!("skipped: this test needs two devices");
        return None;
    }
    Some((alone, &MEMORIES))
}

fn shapes() -> Texts {
    Texts::new(&Scope::new(&Generator::new(0)).shapes()).unwrap()
}

fn inputs() -> Vec<Tensor> {
    let tokens: Vec<i64> = (0..12).map(|index| index * index * 977 % 9000).collect();
    vec![Tensor::from_slice(&tokens, &[2, 6]).unwrap()]
}

fn ask(model: &SwitchedModel) -> Vec<u8> {
    model.forward(&inputs()).unwrap()[0].to_bytes().unwrap()
}

/// A file with a network's values, and the expected output.
struct Made {
    path: PathBuf,
    expected: Vec<u8>,
}

impl Made {
    fn new(folder: &Path, seed: u64) -> Self {
        let (plain, path) = texts::drawn(folder, seed);
        let inputs: Vec<_> = inputs().iter().map(|input| input.to_device(DEVICES[0]).unwrap()).collect();
        let expected = autograd::no_grad(|| plain.forward(&inputs)).unwrap()[0].to_bytes().unwrap();
        Self { path, expected }
    }

    fn stored(&self) -> Arc<StoredTensors> {
        Arc::new(StoredTensors::find(&[&self.path], &Module::state(&shapes())).unwrap())
    }

    /// Adds the model on each device.
    fn add(&self, switchers: &[Switcher]) -> Vec<SwitchedModel> {
        let name = self.path.to_string_lossy();
        let stored = self.stored();
        switchers
            .iter()
            .map(|switcher| switcher.add_stored(&name, Box::new(shapes()), Arc::clone(&stored)).unwrap())
            .collect()
    }
}

/// Makes switchers of both devices, each with room for so many models.
fn switchers(memories: &[&DeviceMemory], models: u64, host_bytes: u64) -> Vec<Switcher> {
    let chunk_bytes = memories[0].driver().granularity();
    let room = models * (TABLE_BYTES + CHUNK).next_multiple_of(chunk_bytes);
    let options = SwitcherOptions { chunk_bytes, orders: None, ..SwitcherOptions::new(room, host_bytes) };
    Switcher::on_devices(&DEVICES, options).unwrap()
}

/// Returns the size in bytes of all images, and checks that both devices report the same.
fn image_bytes(switchers: &[Switcher]) -> u64 {
    let [first, second] = switchers else { panic!("two devices") };
    assert_eq!(first.image_bytes(), second.image_bytes());
    first.image_bytes()
}

#[test]
fn a_model_on_two_devices_has_one_image_in_the_order_that_one_of_them_learned() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), 1);
    let switchers = switchers(memories, 1, 64 << 20);
    let models = made.add(&switchers);
    let bytes = made.stored().bytes();
    for model in &models {
        assert!(ask(model) == made.expected);
        assert!((TABLE_BYTES..=bytes).contains(&image_bytes(&switchers)), "{} of {bytes}", image_bytes(&switchers));
    }
    let unknown = models[0].group_bytes().unwrap();
    for turn in 0..3 {
        assert!(ask(&models[0]) == made.expected, "turn {turn}");
    }
    let learned = models[0].group_bytes().unwrap();
    assert_ne!(learned, unknown);
    assert_eq!(models[1].group_bytes().unwrap(), unknown, "until it is called");
    for turn in 0..3 {
        assert!(ask(&models[1]) == made.expected, "turn {turn}");
        assert_eq!(models[1].group_bytes().unwrap(), learned);
    }
    assert!(models[0].compute_times().unwrap().is_some());
    assert_eq!(models[1].compute_times().unwrap(), None, "what another learned is not measured again");
    for model in &models {
        assert_eq!((model.table_bytes().unwrap(), model.captures().unwrap()), (TABLE_BYTES, 1));
    }
    assert!((TABLE_BYTES..=bytes).contains(&image_bytes(&switchers)), "{} of {bytes}", image_bytes(&switchers));
    // If one device drops the model, the other still has it.
    models[0].remove().unwrap();
    assert!(image_bytes(&switchers) >= TABLE_BYTES);
    models[1].evict().unwrap();
    assert!(ask(&models[1]) == made.expected);
    models[1].remove().unwrap();
    assert_eq!(image_bytes(&switchers), 0);
    memories.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn an_order_that_was_kept_is_that_of_all_devices() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), 1);
    let orders = Some(Orders::new(folder.path().join("orders")));
    let chunk_bytes = memories[0].driver().granularity();
    let options = SwitcherOptions { chunk_bytes, orders, ..SwitcherOptions::new(64 << 20, 64 << 20) };
    let groups: Vec<_> = (0..2)
        .map(|_| {
            let switchers = Switcher::on_devices(&DEVICES, options.clone()).unwrap();
            let models = made.add(&switchers);
            (0..3).for_each(|_| models.iter().for_each(|model| assert!(ask(model) == made.expected)));
            assert!(image_bytes(&switchers) <= made.stored().bytes());
            let measured = models.iter().filter(|model| model.compute_times().unwrap().is_some()).count();
            (models.iter().map(|model| model.group_bytes().unwrap()).collect::<Vec<_>>(), measured)
        })
        .collect();
    assert_eq!(groups[0].0, groups[1].0);
    assert_eq!(groups[0].0[0], groups[0].0[1]);
    assert_eq!([groups[0].1, groups[1].1], [1, 0], "one device measures, and the next switchers know");
    memories.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn memory_for_one_image_serves_both_devices_in_turn() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made = [1, 2].map(|seed| Made::new(folder.path(), seed));
    let host_bytes = made[0].stored().bytes();
    let switchers = switchers(memories, 1, host_bytes);
    let models = made.each_ref().map(|made| made.add(&switchers));
    for turn in 0..6 {
        // Copies of one device may still run when the other one needs room.
        let model = turn % 2;
        let device = turn / 2 % 2;
        models[model][device].load().unwrap();
        models[1 - model][1 - device].load().unwrap();
        assert!((1..=host_bytes).contains(&image_bytes(&switchers)));
    }
    // One call each: the tables of known models stay.
    for device in 0..2 {
        for (made, models) in made.iter().zip(&models) {
            assert!(ask(&models[device]) == made.expected);
        }
    }
    models.iter().flatten().for_each(|model| model.remove().unwrap());
    assert_eq!(image_bytes(&switchers), 0);
    memories.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn an_image_that_one_device_forgets_is_still_copied_by_another() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), 1);
    let switchers = switchers(memories, 1, 64 << 20);
    let models = made.add(&switchers);
    for turn in 0..6 {
        let one = &models[turn % 2];
        let other = &models[1 - turn % 2];
        one.evict().unwrap();
        one.load().unwrap();
        other.forget().unwrap();
        assert!(ask(one) == made.expected, "turn {turn}");
        assert!(ask(other) == made.expected, "turn {turn}");
    }
    models[0].remove().unwrap();
    models[1].remove().unwrap();
    assert_eq!(image_bytes(&switchers), 0);
    memories.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn two_devices_that_are_asked_at_the_same_time_keep_to_one_budget() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made: Vec<Made> = (1..=4).map(|seed| Made::new(folder.path(), seed)).collect();
    // Room for all tables, which stay, and for one image.
    let host_bytes = 4 * TABLE_BYTES + made[0].stored().bytes();
    let switchers = switchers(memories, 2, host_bytes);
    let models: Vec<Vec<SwitchedModel>> = made.iter().map(|made| made.add(&switchers)).collect();
    thread::scope(|scope| {
        for device in 0..2 {
            let made = &made;
            let models = &models;
            let switchers = &switchers;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(device as u64);
                for _ in 0..200 {
                    let index = random.random_range(0..made.len());
                    let model = &models[index][device];
                    match random.random_range(0..10) {
                        0 => model.forget().unwrap(),
                        1 => model.evict().unwrap(),
                        2 => model.load().unwrap(),
                        _ => assert!(ask(model) == made[index].expected, "a wrong answer of model {index}"),
                    }
                    assert!(switchers[device].image_bytes() <= host_bytes);
                }
            });
        }
    });
    for models in &models {
        assert_eq!(models[0].group_bytes().unwrap(), models[1].group_bytes().unwrap());
        models.iter().for_each(|model| model.remove().unwrap());
    }
    assert_eq!(image_bytes(&switchers), 0);
    memories.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn files_that_cannot_be_read_are_told_on_both_devices_and_the_next_call_is_right() {
    let Some((_alone, memories)) = alone() else { return };
    let folder = TempDir::new().unwrap();
    let made = Made::new(folder.path(), 1);
    let whole = std::fs::read(&made.path).unwrap();
    let switchers = switchers(memories, 1, made.stored().bytes());
    let models = made.add(&switchers);
    std::fs::File::options().write(true).open(&made.path).unwrap().set_len(whole.len() as u64 / 2).unwrap();
    for model in &models {
        expect_error(model.forward(&inputs()), "it was cut");
    }
    std::fs::write(&made.path, &whole).unwrap();
    for model in models.iter().chain(&models) {
        assert!(ask(model) == made.expected);
    }
    memories.iter().for_each(|memory| expect_peace(memory));
}
