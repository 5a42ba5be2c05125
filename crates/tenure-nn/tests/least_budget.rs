//! Tests that the least budget that an error names works, and that a clearly smaller one is refused: for random small
//! models, on the CPU and on a simulated device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::env;
use std::time::Duration;

use fixtures::expect_error;
use parking_lot::Mutex;
use tenure_device::Platform;
use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::models::{Gpt2, Gpt2Config};
use tenure_nn::optim::{Adam, Optimizer, Schedule, Sgd};
use tenure_nn::train::{Budget, Classification, TrainError, Trainer, TrainerOptions};
use tenure_nn::{Error, Module, Scope};
use tenure_offload::{OffloadError, ProfileError};
use tenure_plan::Problem;
use tenure_plan::planner::{Planned, Planner, PlannerError, PlannerOptions, Scheduled, Watch};
use tenure_tensor::Device;
use tenure_tensor::random::{self, Generator};

const STEPS: u64 = 3;
const MIB: u64 = 1 << 20;

/// A lock for the host's memory, which has a single limit.
static ALONE: Mutex<()> = Mutex::new(());

type Run = Trainer<Classification<Gpt2>, TextWindows>;

/// A planner that ends its search after a few evaluations rather than by the clock.
struct Quick;

impl Planner for Quick {
    fn name(&self) -> &str {
        "quick"
    }

    fn plan(&self, problem: &Problem, given: &PlannerOptions, watch: &mut Watch<'_>) -> Result<Planned, PlannerError> {
        let time_limit = Duration::from_secs(24 * 60 * 60);
        Scheduled.plan(problem, &PlannerOptions { evaluations: Some(4), time_limit, ..*given }, watch)
    }
}

/// A random model, with a random batch and optimizer.
#[derive(Clone, Debug)]
struct Case {
    config: Gpt2Config,
    batch_size: usize,
    clip_norm: Option<f64>,
    has_moments: bool,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut state = seed;
        // SplitMix64.
        let mut draw = |from: usize, to: usize| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            from + ((mixed ^ (mixed >> 31)) % (to - from) as u64) as usize
        };
        let heads = draw(1, 4);
        let config = Gpt2Config {
            vocab_size: draw(17, 300),
            n_positions: draw(4, 24),
            n_embd: heads * draw(4, 40),
            n_layer: draw(1, 4),
            n_head: heads,
            resid_pdrop: 0.1,
            ..Gpt2Config::default()
        };
        let clip_norm = [None, Some(1.0)][draw(0, 2)];
        Self { config, batch_size: draw(1, 8), clip_norm, has_moments: draw(0, 3) > 0 }
    }

    fn trainer(&self, device: Device) -> Run {
        random::manual_seed(0);
        let model = Gpt2::new(&Scope::new(&Generator::new(0)).with_device(device), &self.config).unwrap();
        let optimizer = match self.has_moments {
            true => Optimizer::new(model.parameters(), 1e-3, Adam::w()),
            false => Optimizer::new(model.parameters(), 1e-2, Sgd { momentum: 0.5, ..Sgd::default() }),
        };
        let tokens = (0..2000).map(|index| index * 7 % 17).collect();
        let data = TextWindows::of_tokens(tokens, self.config.n_positions).unwrap();
        let options =
            LoaderOptions { batch_size: self.batch_size, shuffle: Some(0), device, ..LoaderOptions::default() };
        let plan = TrainerOptions {
            steps: STEPS,
            schedule: Schedule::Constant,
            clip_norm: self.clip_norm,
            ..TrainerOptions::default()
        };
        Trainer::new(Classification(model), DataLoader::new(data, options), optimizer, plan)
    }

    /// Returns a run within a budget, or the least budget that works.
    fn within(&self, device: Device, bytes: u64) -> Result<Run, u64> {
        match self.trainer(device).within(budget(bytes, 32 * MIB)) {
            Ok(run) => Ok(run),
            Err(Error::Train(TrainError::Budget(error))) => match *error {
                OffloadError::Profile(ProfileError::TooSmall { budget_bytes, least_bytes, .. }) => {
                    assert_eq!(budget_bytes, bytes);
                    Err(least_bytes)
                }
                _ => panic!("{self:?}, {bytes} bytes: {error}"),
            },
            Err(error) => panic!("{self:?}, {bytes} bytes: {error}"),
        }
    }
}

fn budget(bytes: u64, spill_bytes: u64) -> Budget {
    let budget = Budget::bytes(bytes).spill(env::temp_dir()).spill_bytes(spill_bytes).pinned_bytes(64 * MIB);
    budget.min_tensor_bytes(16 << 10).planner(Box::new(Quick))
}

/// Returns the bits of all losses.
fn losses(mut run: Run, what: &str) -> Vec<u32> {
    let mut losses = Vec::new();
    while let Some(step) = run.step().unwrap_or_else(|error| panic!("{what}: {error}")) {
        losses.push(step.loss.to_bits());
    }
    losses
}

/// Checks 8 models; with `TENURE_TEST_FACTOR=5`, five times as many.
fn check(device: Device) {
    let factor = env::var("TENURE_TEST_FACTOR").map_or(1, |factor| factor.parse::<u64>().expect("a number"));
    for seed in 0..8 * factor {
        let case = Case::new(seed);
        let plain = losses(case.trainer(device), "plain");
        let Err(least) = case.within(device, 1) else { panic!("{case:?}: one byte is enough") };
        let what = format!("{case:?} within {least} bytes");
        let run = case.within(device, least).unwrap_or_else(|least| panic!("{what}: refused, {least} are needed"));
        assert_eq!(losses(run, &what), plain, "{what}");
        // A refusal takes long, because it searches for the least budget.
        if seed % 8 == 0 {
            let below = (least - least / 10).saturating_sub(4 * MIB);
            assert!(case.within(device, below).is_err(), "{what}: {below} bytes do, too");
        }
    }
}

#[test]
fn the_least_budget_that_is_named_works_on_the_cpu() {
    let _alone = ALONE.lock();
    check(Device::CPU);
}

#[test]
fn the_least_budget_that_is_named_works_on_a_simulated_device() {
    let _alone = ALONE.lock();
    let platform = SimPlatform::new(vec![SimConfig::default()]);
    let memory = memory::install(platform.driver(0).unwrap(), MemoryConfig::default()).unwrap();
    check(memory.device());
}

#[test]
fn a_disk_with_too_little_room_is_what_an_error_names() {
    let _alone = ALONE.lock();
    let mut case = Case::new(0);
    case.config = Gpt2Config { n_positions: 48, n_embd: 64, n_head: 2, n_layer: 6, ..case.config };
    case.batch_size = 8;
    let Err(least) = case.within(Device::CPU, 1) else { panic!("one byte is enough") };
    expect_error(case.trainer(Device::CPU).within(budget(least, 2 * MIB)), "give it more room");
}
