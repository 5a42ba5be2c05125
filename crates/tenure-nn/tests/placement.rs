//! Tests of training with weights and activations in the memory tiers that a mapping names.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::collections::{BTreeMap, BTreeSet};

use fixtures::{gpt2, path_in_folder, text};
use parking_lot::{Mutex, MutexGuard};
use tenure_core::{Key, KeyId, Purpose, Tag};
use tenure_nn::data::{DataLoader, LoaderOptions};
use tenure_nn::layers::{Activation, BatchNorm2d, Conv2d, ConvOptions, Flatten, Layer, Linear, Sequential};
use tenure_nn::models::{Bert, BertConfig, Gpt2, ResNet, ResNetConfig};
use tenure_nn::optim::{Adam, Optimizer};
use tenure_nn::train::{Classification, Score, StepMemory, Task, Trainer, TrainerOptions};
use tenure_nn::{Module, Scope, module, purpose};
use tenure_plan::problem::{Problem, ProblemTier};
use tenure_plan::{FixedPlacement, Mapping, Rule};
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, Tensor, threads};
use tenure_tier::{Medium, Placement, PlacementOptions, Recorder, Report, Tier};

const STEPS: u64 = 5;
const WINDOW: usize = 16;

/// Locks the default generator, the threads and the memory counters, which belong to the process, for one test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A task that records the place of all tensors at the end of its forward pass.
struct Watched<T> {
    task: T,
    placement: Option<Placement>,
    seen: Mutex<Vec<Report>>,
}

impl<T: Task> Task for Watched<T> {
    type Batch = T::Batch;

    fn examples(&self, batch: &T::Batch) -> usize {
        self.task.examples(batch)
    }

    fn model(&self) -> &dyn Module {
        self.task.model()
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        self.task.model_mut()
    }

    fn loss(&self, batch: &T::Batch) -> tenure_nn::Result<Tensor> {
        let loss = self.task.loss(batch)?;
        self.seen.lock().extend(self.placement.as_ref().map(Placement::report));
        Ok(loss)
    }

    fn score(&self, batch: &T::Batch) -> tenure_nn::Result<Score> {
        self.task.score(batch)
    }
}

/// Trains a small GPT-2, with dropout, on batches that worker threads read. Returns the bits of the losses, the
/// reports, and the memory of the last step.
fn train(placement: Option<&Placement>, steps: u64) -> (Vec<u32>, Vec<Report>, StepMemory) {
    random::manual_seed(7);
    let model = Gpt2::new(&Scope::new(&Generator::new(1)), &gpt2(11, WINDOW, 32, 2)).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
    let options = LoaderOptions { batch_size: 4, shuffle: Some(3), workers: 2, ..LoaderOptions::default() };
    let loader = DataLoader::new(text(20, WINDOW, 11), options);
    let task = Watched { task: Classification(model), placement: placement.cloned(), seen: Mutex::default() };
    let mut trainer = Trainer::new(task, loader, optimizer, TrainerOptions { steps, ..TrainerOptions::default() });
    while trainer.step().unwrap().is_some() {}
    let losses = trainer.history().iter().map(|step| step.loss.to_bits()).collect();
    let memory = trainer.history().last().unwrap().memory;
    (losses, trainer.task().seen.lock().clone(), memory)
}

fn planned(name: &str, capacity: Option<u64>) -> ProblemTier {
    ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: 1 << 30,
        write_bandwidth: 1 << 30,
        latency_ns: 0,
        loaded: Vec::new(),
    }
}

/// Records the allocations of `run`'s threads, with a fast tier of half of their peak.
fn recorded(run: impl FnOnce()) -> Problem {
    let recorder = Recorder::new().unwrap();
    let guard = recorder.enter();
    run();
    drop(guard);
    let problem = recorder.problem("small", vec![planned("DRAM", None), planned("PM", None)], Vec::new()).unwrap();
    let mut parts = problem.clone().into_parts();
    parts.tiers[0].capacity = Some(problem.peak_bytes() / 2);
    Problem::new(parts).unwrap()
}

fn keys(problem: &Problem) -> BTreeSet<String> {
    problem.tensors().iter().map(|tensor| tensor.key.clone()).collect()
}

fn tiers() -> Vec<Tier> {
    let folder = Medium::Path(std::env::temp_dir());
    vec![Tier::open("DRAM", &Medium::Dram, Some(32 << 20)).unwrap(), Tier::open("PM", &folder, Some(32 << 20)).unwrap()]
}

#[test]
fn a_training_run_follows_its_mapping_to_the_last_byte_and_learns_the_same() {
    let _alone = alone();
    let (plain, _, memory) = train(None, STEPS);
    let problem = recorded(|| drop(train(None, 2)));
    // Every other tensor, as far as they fit: neither all weights nor all activations.
    let order = (0..problem.tensors().len()).step_by(2);
    let plan = FixedPlacement::first_fit(&problem, order, problem.tiers()[0].capacity.unwrap()).plan();

    // The mapping goes through a file, as between processes.
    let (_folder, path) = path_in_folder("mapping.json");
    Mapping::of_plan(&problem, &plan).unwrap().write(&path).unwrap();
    let options = PlacementOptions { is_strict: true, ..PlacementOptions::default() };
    let placement = Placement::open(Mapping::read(&path).unwrap(), tiers(), options).unwrap();
    let (placed, seen, placed_memory) = {
        let _entered = placement.enter();
        train(Some(&placement), STEPS)
    };

    assert_eq!(placed, plain, "losses, bit for bit");
    // The step's memory is counted in any tier; tiers round blocks up.
    for tag in [Tag::Weight, Tag::Activation, Tag::OptimizerState] {
        let [before, now] = [memory, placed_memory].map(|memory| memory.tags.of(tag));
        assert!(before > 0 && (before..2 * before).contains(&now), "{tag}: {before} bytes, {now} in tiers");
    }
    assert!(placed_memory.peak_bytes >= memory.peak_bytes);
    placement.check_all_came().unwrap();
    assert_eq!(seen.len() as u64, STEPS);
    for report in &seen {
        assert_eq!(report.verified_share, 1.0, "{report}");
        assert_eq!(report.outside, BTreeMap::new(), "{report}");
        // The allocations of threads that read batches are placed too.
        let inputs = ["DRAM", "PM"].map(|tier| report.of(tier, Tag::Input).verified);
        assert!(inputs.iter().sum::<u64>() > 0 && report.mapped_share == 1.0 && report.unmapped_bytes == 0, "{report}");
        for tag in [Tag::Weight, Tag::Activation] {
            let [fast, slow] = ["DRAM", "PM"].map(|tier| report.of(tier, tag));
            assert!(fast.bytes > 0 && slow.bytes > 0, "{tag} is split: {report}");
            assert_eq!([fast.verified, slow.verified], [fast.bytes, slow.bytes]);
        }
        assert_eq!((&report.keys.unmapped[..], &report.keys.missed[..]), (&[][..], &[][..]));
        let is_emulated = placement.tiers()[1].nature().is_emulated();
        assert!(report.is_emulated == is_emulated && report.to_string().contains("EMULATED") == is_emulated);
    }
    // All memory is given back.
    let live = placement.tiers().iter().map(|tier| tier.statistics().all.allocated_bytes.current);
    assert_eq!(live.sum::<u64>(), 0);
}

#[test]
fn keys_are_the_same_for_any_number_of_threads_and_steps() {
    let _alone = alone();
    let before = threads::threads();
    let all: Vec<_> = [(1, 2), (3, 2), (3, 4)]
        .into_iter()
        .map(|(count, steps)| {
            threads::set_threads(count).unwrap();
            keys(&recorded(|| drop(train(None, steps))))
        })
        .collect();
    threads::set_threads(before).unwrap();
    assert_eq!(all[0], all[1]);
    assert_eq!(all[1], all[2]);
}

/// A classifier of images, with an additional operation that has no effect on the result.
struct Images {
    features: Sequential,
    head: Linear,
    adds: bool,
}
module!(Images { features, head });

impl Images {
    fn new(adds: bool) -> Self {
        let generator = Generator::new(0);
        let scope = Scope::new(&generator);
        let options = ConvOptions { padding: [1, 1], ..ConvOptions::default() };
        let features = Sequential::default()
            .then(&scope.at("features"), |at| Conv2d::new(at, 1, 4, [3, 3], options))
            .and_then(|all| all.then(&scope.at("features"), |at| BatchNorm2d::new(at, 4)))
            .and_then(|all| all.then(&scope.at("features"), |_| Ok(Activation::Relu)))
            .and_then(|all| all.then(&scope.at("features"), |_| Ok(Flatten)));
        Self { features: features.unwrap(), head: Linear::new(&scope.at("head"), 4 * 64, 3).unwrap(), adds }
    }
}

impl Layer for Images {
    fn forward(&self, input: &Tensor) -> tenure_tensor::Result<Tensor> {
        let input = if self.adds { input.abs()? } else { input.clone() };
        let features = self.features.forward(&input)?;
        let features = if self.adds { features.mul(1.0)? } else { features };
        self.head.forward(&features)?.gelu()
    }
}

/// Makes one step's forward and backward pass.
fn step(model: &Images) {
    let input = Tensor::ones(&[2, 1, 8, 8], DType::F32, Device::CPU).unwrap();
    let loss = purpose::forward(|| model.forward(&input)?.sum_all()).unwrap();
    purpose::backward(&loss).unwrap();
}

#[test]
fn keys_say_module_and_operation_and_do_not_drift_when_something_is_added() {
    let _alone = alone();
    let [plain, longer] = [false, true].map(|adds| keys(&recorded(|| step(&Images::new(adds)))));
    for key in [
        "features.0/parameter/weight#0",
        "features.0/conv/out#0",
        "features.1/batch_norm/out#0",
        "features.2/relu/out#0",
        "head/linear/out#0",
        "after head/gelu/out#0",
        "features.0/conv/grad#0",
    ] {
        assert!(plain.contains(key), "{key}: {plain:#?}");
    }
    assert!(plain.is_subset(&longer), "{:#?}", plain.difference(&longer));
    let added: Vec<&String> = longer.difference(&plain).collect();
    let are_added = added.iter().all(|key| matches!(key.split('/').nth(1), Some("abs" | "mul")));
    assert!(!added.is_empty() && are_added, "{added:#?}");
}

#[test]
fn a_mapping_for_a_changed_program_is_matched_by_key_and_what_does_not_match_is_reported() {
    let _alone = alone();
    let problem = recorded(|| step(&Images::new(true)));
    let mapping = Mapping::of_plan(&problem, &Rule::Density.place(&problem, 0).plan()).unwrap();
    let placement = Placement::open(mapping, tiers(), PlacementOptions::default()).unwrap();
    {
        let _entered = placement.enter();
        step(&Images::new(false));
    }
    let report = placement.report();
    assert!(report.keys.never_came.contains(&"/abs/out#0".to_owned()), "{report:?}");
    assert_eq!(report.keys.unmapped, [""; 0]);
    assert!(placement.check_all_came().is_err());
    assert!(placement.tiers()[1].statistics().all.allocated_bytes.peak > 0);
}

#[test]
fn empty_tensors_take_tag_and_key() {
    let _alone = alone();
    let key = Key { module: "cache".into(), op: "keys".into(), role: "out".into(), occurrence: 0 };
    let places = BTreeMap::from([(key.to_string(), 1)]);
    let mapping = Mapping::new("cache", vec!["DRAM".into(), "PM".into()], places).unwrap();
    let placement = Placement::open(mapping, tiers(), PlacementOptions::default()).unwrap();
    let _entered = placement.enter();
    let kept = {
        let _purpose = Purpose::enter(Tag::Activation, KeyId::intern(key));
        let kept = Tensor::empty(&[10], DType::F32, Device::CPU).unwrap();
        [kept.empty_like().unwrap(), kept]
    };
    let other = kept[0].empty_like().unwrap();
    let report = placement.report();
    assert_eq!((report.of("PM", Tag::Activation).verified, report.of("DRAM", Tag::Unknown).bytes), (80, 40));
    drop(other);
}

#[test]
fn every_allocation_of_a_step_is_an_operations() {
    let _alone = alone();
    let classes = Tensor::from_slice(&[1_i64, 2], &[2]).unwrap();
    let learn = |forward: &dyn Fn() -> tenure_tensor::Result<Tensor>| {
        let loss = purpose::forward(|| forward()?.cross_entropy(&classes, &CrossEntropy::default())).unwrap();
        purpose::backward(&loss).unwrap();
    };
    let problems = [
        recorded(|| drop(train(None, 2))),
        recorded(|| {
            let config = ResNetConfig { width: 4, channels: 1, classes: 3, ..ResNetConfig::RESNET18 };
            let model = ResNet::new(&Scope::new(&Generator::new(0)), config).unwrap();
            learn(&|| model.forward(&Tensor::ones(&[2, 1, 40, 40], DType::F32, Device::CPU)?));
        }),
        recorded(|| {
            let config = BertConfig {
                vocab_size: 9,
                hidden_size: 8,
                num_hidden_layers: 1,
                num_attention_heads: 2,
                intermediate_size: 16,
                ..BertConfig::default()
            };
            let model = Bert::new(&Scope::new(&Generator::new(0)), &config).unwrap();
            let tokens = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
            learn(&|| model.pool(&model.forward(&tokens, Some(&tokens))?));
        }),
    ];
    for problem in problems {
        let keys = problem.tensors().iter().map(|tensor| &*tensor.key);
        let unknown: Vec<&str> = keys.filter(|key| key.split('/').nth(1) == Some("empty")).collect();
        assert_eq!(unknown, [""; 0]);
        assert!(problem.backward().is_some() && problem.tensors().len() > 30);
    }
}
