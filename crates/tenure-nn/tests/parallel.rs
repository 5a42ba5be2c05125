//! Tests that runs on several devices equal the same runs on one. The devices are simulated, unless
//! `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use fixtures::{Flaky, expect_error, go_on, has_cuda, path_in_folder, task};
use parking_lot::{Mutex, MutexGuard};
use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Call, Executor, Platform, cuda};
use tenure_nn::data::{DataLoader, Dataset, LoaderOptions, TextWindows};
use tenure_nn::layers::{Layer, Linear};
use tenure_nn::models::{Gpt2, Gpt2Config};
use tenure_nn::optim::{Adam, Optimizer, Schedule, Sgd};
use tenure_nn::train::{Classification, Score, Task, TrainError, Trainer, TrainerOptions};
use tenure_nn::{Error, Module, Parameter, Result, Scope, module};
use tenure_tensor::autocast::{self, Autocast};
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, Tensor, TensorError};

const WINDOW: usize = 8;
const STEPS: u64 = 8;

/// Locks the default generator and the real devices, which belong to the process, for one test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Returns devices that no other test uses. With the real driver, returns `None` if there are too few.
fn devices(count: u8) -> Option<Vec<Device>> {
    static PLATFORM: LazyLock<SimPlatform> =
        LazyLock::new(|| SimPlatform::new((0..100).map(|seed| SimConfig { seed, ..SimConfig::default() }).collect()));
    static NEXT: AtomicU8 = AtomicU8::new(0);
    if has_cuda() {
        let there = cuda::platform().device_count().is_ok_and(|there| there >= count.into());
        return there.then(|| (0..count).map(Device::cuda).collect());
    }
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    for device in first..first + count {
        memory::install(PLATFORM.driver(device).unwrap(), MemoryConfig::default()).unwrap();
    }
    Some((first..first + count).map(Device::cuda).collect())
}

/// The settings in which runs differ.
#[derive(Clone, Copy, Default)]
struct Setting {
    dropout: f64,
    is_double: bool,
    steps: u64,
}

const EXACT: Setting = Setting { dropout: 0.0, is_double: true, steps: STEPS };

fn gpt2(device: Device, setting: Setting) -> Result<Gpt2> {
    let Setting { dropout, is_double, .. } = setting;
    let config = Gpt2Config {
        embd_pdrop: dropout,
        attn_pdrop: dropout,
        resid_pdrop: dropout,
        ..fixtures::gpt2(5, WINDOW, 16, 2)
    };
    // The other devices' parameters are replaced by the first's.
    let mut model = Gpt2::new(&Scope::new(&Generator::new(device.index().into())), &config)?;
    if is_double {
        model.to_dtype(DType::F64)?;
    }
    model.to_device(device)?;
    Ok(model)
}

fn adam(model: &dyn Module) -> Optimizer {
    Optimizer::new(model.parameters(), 1e-2, Adam::w())
}

fn text() -> TextWindows {
    fixtures::text(22, WINDOW, 5)
}

fn loader<D: Dataset + 'static>(data: D, device: Device) -> DataLoader<D> {
    // The last batch has two examples.
    DataLoader::new(data, LoaderOptions { batch_size: 4, shuffle: Some(3), device, ..LoaderOptions::default() })
}

fn plan(steps: u64) -> TrainerOptions {
    let schedule = Schedule::Cosine { steps: 20, end: 0.1 }.with_warmup(2);
    TrainerOptions { steps, schedule, clip_norm: Some(0.5), ..TrainerOptions::default() }
}

type Replicas = Arc<Mutex<Vec<Vec<Parameter>>>>;

/// Returns a run on these devices, and the parameters of all devices except the first.
fn run(devices: &[Device], setting: Setting) -> (Trainer<Classification<Gpt2>, TextWindows>, Replicas) {
    random::manual_seed(7);
    // The first device's values do not depend on the device.
    let first = gpt2(devices[0], setting).unwrap();
    let same = gpt2(Device::CPU, setting).unwrap();
    for (to, from) in first.parameters().iter().zip(same.parameters()) {
        tenure_tensor::autograd::no_grad(|| to.copy_(&from.to_device(to.device()).unwrap())).unwrap();
    }
    let optimizer = adam(&first);
    let run = Trainer::new(Classification(first), loader(text(), devices[0]), optimizer, plan(setting.steps));
    let replicas = Replicas::default();
    let kept = Arc::clone(&replicas);
    let run = run.on_devices(devices, move |device| {
        let model = gpt2(device, setting)?;
        kept.lock().push(model.parameters());
        let optimizer = adam(&model);
        Ok((Classification(model), optimizer))
    });
    (run.unwrap(), replicas)
}

fn numbers(parameters: &[Parameter]) -> Vec<f64> {
    parameters
        .iter()
        .flat_map(|parameter| parameter.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap())
        .collect()
}

fn bits(parameters: &[Parameter]) -> Vec<Vec<u8>> {
    parameters.iter().map(|parameter| parameter.to_bytes().unwrap()).collect()
}

/// Compares numbers, with a tolerance relative to the largest.
fn compare(found: &[f64], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance * largest, "{found}, expected {expected}");
    }
}

fn losses<T: Task, D: Dataset<Item: tenure_nn::data::Collate<Batch = T::Batch>> + 'static>(
    run: &Trainer<T, D>,
) -> Vec<f64> {
    run.history().iter().map(|step| step.loss.into()).collect()
}

#[test]
fn losses_and_parameters_are_those_of_one_device() {
    let _alone = alone();
    for (setting, tolerance) in [(EXACT, 1e-12_f64), (Setting { is_double: false, ..EXACT }, 2e-5)] {
        let Some(one) = devices(1) else { return };
        let (mut whole, _) = run(&one, setting);
        go_on(&mut whole, usize::MAX);
        for count in [2, 3] {
            // With three devices, two get one example of four, and one gets none of the last batch's two.
            let Some(several) = devices(count) else { continue };
            let (mut run, replicas) = run(&several, setting);
            go_on(&mut run, usize::MAX);
            // Losses are reported in single precision.
            compare(&losses(&run), &losses(&whole), tolerance.max(1e-7));
            let parameters = run.task().model().parameters();
            compare(&numbers(&parameters), &numbers(&whole.task().model().parameters()), tolerance);
            let examples = |run: &Trainer<_, _>| run.history().iter().map(|step| step.examples).collect::<Vec<_>>();
            assert_eq!(examples(&run), examples(&whole));
            assert_eq!(replicas.lock().len(), usize::from(count) - 1);
            for replica in &*replicas.lock() {
                assert_eq!(bits(replica), bits(&parameters));
            }
            assert!(run.device_peaks().iter().map(|(device, _)| *device).eq(several.iter().copied()));
            assert!(run.device_peaks().iter().all(|(_, peak)| *peak > 0));
        }
    }
}

#[test]
fn a_run_goes_on_from_its_checkpoint_also_on_other_devices() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let setting = Setting { dropout: 0.1, is_double: true, ..EXACT };
    let Some(two) = devices(2) else { return };
    let (mut whole, _) = run(&two, setting);
    go_on(&mut whole, 3);
    whole.save(&path).unwrap();
    go_on(&mut whole, usize::MAX);
    let (mut resumed, replicas) = run(&two, setting);
    go_on(&mut resumed, 1);
    resumed.resume(&path).unwrap();
    go_on(&mut resumed, usize::MAX);
    assert_eq!(losses(&resumed), losses(&whole));
    assert_eq!(bits(&resumed.task().model().parameters()), bits(&whole.task().model().parameters()));
    assert_eq!(bits(&replicas.lock()[0]), bits(&whole.task().model().parameters()));
    drop(resumed);

    // Without dropout, the number of devices has no effect.
    let (mut one, _) = run(&two[..1], EXACT);
    go_on(&mut one, 3);
    one.save(&path).unwrap();
    go_on(&mut one, usize::MAX);
    for count in [2, 3] {
        let Some(several) = devices(count) else { continue };
        let (mut resumed, _) = run(&several, EXACT);
        resumed.resume(&path).unwrap();
        go_on(&mut resumed, usize::MAX);
        compare(&losses(&resumed), &losses(&one), 1e-7);
    }
}

#[test]
fn dropout_differs_from_device_to_device() {
    let _alone = alone();
    let Some(two) = devices(2) else { return };
    /// The output of dropout for ones, with its device.
    type Seen = Mutex<Vec<(Device, Vec<f64>)>>;
    struct Dropping {
        weight: Parameter,
        seen: Arc<Seen>,
    }
    module!(Dropping { weight });
    task!(Dropping);
    impl Dropping {
        fn loss_of(&self, _: &Tensor) -> Result<Tensor> {
            let dropped = self.weight.ones_like()?.dropout(0.5, true)?;
            self.seen.lock().push((dropped.device(), dropped.to_vec::<f64>()?));
            Ok(self.weight.mul(&dropped)?.sum_all()?)
        }
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let make = move |device| {
        let weight = Parameter::new("weight", Tensor::ones(&[64], DType::F64, device)?)?;
        let task = Dropping { weight, seen: Arc::clone(&kept) };
        let optimizer = Optimizer::new(task.parameters(), 0.1, Sgd::default());
        Ok((task, optimizer))
    };
    let mut drawn = Vec::new();
    for devices in [&two[..1], &two[..]] {
        random::manual_seed(5);
        seen.lock().clear();
        let (task, optimizer) = make(two[0]).unwrap();
        let run = Trainer::new(task, loader(text(), two[0]), optimizer, plan(2));
        let mut run = run.on_devices(devices, make.clone()).unwrap();
        go_on(&mut run, usize::MAX);
        let of = |device: Device| seen.lock().iter().filter(|(of, _)| *of == device).cloned().collect::<Vec<_>>();
        drawn.push(two.iter().map(|device| of(*device)).collect::<Vec<_>>());
    }
    assert_eq!(drawn[0][0], drawn[1][0], "the first draws what one device alone does");
    assert_ne!(drawn[1][0][0].1, drawn[1][1][0].1);
    assert_ne!(drawn[1][1][0].1, drawn[1][1][1].1);
}

/// Two layers, and parameters that are used for some examples, or for none.
struct Partial {
    first: Linear,
    second: Linear,
    sometimes: Parameter,
    never: Parameter,
    /// A function that may fail a step, by device and number.
    trouble: Trouble,
    seen: Arc<Seen>,
}
module!(Partial { first, second, sometimes, never });

type Trouble = Arc<dyn Fn(Device, u64) -> Result<()> + Send + Sync>;

/// The numbers of waits put on streams, counted after the forward pass and at the last gradient.
#[derive(Default)]
struct Seen {
    forwards: AtomicU64,
    after_forward: AtomicU64,
    at_last_gradient: AtomicU64,
}

const WIDTH: usize = 140;
/// The number of outputs with which `second.weight` is larger than the first bucket.
const MANY: usize = 1000;

impl Partial {
    fn new(device: Device, outputs: usize, trouble: Trouble) -> Result<Self> {
        let scope = Scope::new(&Generator::new(3)).with_device(device);
        let ones = |name: &str| Parameter::new(name, Tensor::ones(&[5], DType::F32, device)?);
        let first = Linear::new(&scope.at("first"), 5, WIDTH)?;
        let second = Linear::new(&scope.at("second"), WIDTH, outputs)?;
        let sometimes = ones("sometimes")?;
        let never = ones("never")?;
        let mut task = Self { first, second, sometimes, never, trouble, seen: Arc::default() };
        task.to_dtype(DType::F64)?;
        let seen = Arc::clone(&task.seen);
        let weight = task.parameters().into_iter().find(|parameter| parameter.name() == "first.weight").unwrap();
        weight.register_post_accumulate_grad_hook(move |weight| {
            seen.at_last_gradient.store(waits(weight.device()), Ordering::Relaxed);
            Ok(())
        })?;
        Ok(task)
    }
}

fn waits(device: Device) -> u64 {
    match memory::installed(device.index().into()).unwrap().driver().executor() {
        Executor::Sim(sim) => sim.calls(Some(Call::WaitEvent)),
        Executor::Cuda(_) => 0,
    }
}

task!(Partial);

impl Partial {
    fn loss_of(&self, input: &Tensor) -> Result<Tensor> {
        let device = input.device();
        (self.trouble)(device, self.seen.forwards.fetch_add(1, Ordering::Relaxed))?;
        let x = input.slice(1, 0, 5, 1)?.to_dtype(DType::F64)?;
        let mut loss = self.second.forward(&self.first.forward(&x)?)?.square()?.mean_all()?;
        // `sometimes` is used for windows that begin with 4.
        let is_special = input.select(1, 0)?.eq(4)?;
        if is_special.any(&[], false)?.item::<bool>()? {
            let special = x.mul(&*self.sometimes)?.sum(&[1], false)?.mul(&is_special.to_dtype(DType::F64)?)?;
            loss = loss.add(&special.mean_all()?)?;
        }
        self.seen.after_forward.store(waits(device), Ordering::Relaxed);
        Ok(loss)
    }
}

fn fine() -> Trouble {
    Arc::new(|_, _| Ok(()))
}

fn partial<D: Dataset<Item = Window> + 'static>(data: D, devices: &[Device], trouble: &Trouble) -> Trainer<Partial, D> {
    partial_of(10, data, devices, trouble)
}

type Window = (Vec<i64>, Vec<i64>);

fn partial_of<D: Dataset<Item = Window> + 'static>(
    outputs: usize,
    data: D,
    devices: &[Device],
    trouble: &Trouble,
) -> Trainer<Partial, D> {
    let optimizer = |task: &Partial| {
        Optimizer::new(task.parameters(), 1e-3, Sgd { momentum: 0.9, weight_decay: 0.1, ..Sgd::default() })
    };
    let task = Partial::new(devices[0], outputs, Arc::clone(trouble)).unwrap();
    let first = optimizer(&task);
    let run = Trainer::new(
        task,
        loader(data, devices[0]),
        first,
        TrainerOptions { steps: STEPS, ..TrainerOptions::default() },
    );
    let trouble = Arc::clone(trouble);
    let run = run.on_devices(devices, move |device| {
        let task = Partial::new(device, outputs, Arc::clone(&trouble))?;
        let optimizer = optimizer(&task);
        Ok((task, optimizer))
    });
    run.unwrap()
}

#[test]
fn a_parameter_counts_where_it_is_used() {
    let _alone = alone();
    let Some(one) = devices(1) else { return };
    let mut whole = partial(text(), &one, &fine());
    go_on(&mut whole, usize::MAX);
    let never = &whole.task().never;
    assert_eq!(never.to_vec::<f64>().unwrap(), [1.0; 5], "without a gradient, nothing decays");
    assert_ne!(whole.task().sometimes.to_vec::<f64>().unwrap(), [1.0; 5]);
    for count in [2, 3] {
        let Some(several) = devices(count) else { continue };
        let mut run = partial(text(), &several, &fine());
        go_on(&mut run, usize::MAX);
        compare(&numbers(&run.task().parameters()), &numbers(&whole.task().parameters()), 1e-12);
        compare(&losses(&run), &losses(&whole), 1e-7);
    }
}

#[test]
fn gradients_leave_while_backward_goes_on() {
    let _alone = alone();
    let Some(two) = devices(2) else { return };
    let mut run = partial_of(MANY, text(), &two, &fine());
    let mut early = Vec::new();
    while run.step().unwrap().is_some() {
        let seen = &run.task().seen;
        let [before, then] = [&seen.after_forward, &seen.at_last_gradient].map(|count| count.load(Ordering::Relaxed));
        // Whether `second` is being sent when the gradient of `first.weight` has just been computed.
        early.push(then > before);
    }
    if matches!(memory::installed(two[0].index().into()).unwrap().driver().executor(), Executor::Cuda(_)) {
        eprintln!("skipped: the waits on streams are counted on a simulated device only");
        return;
    }
    // At first the parameter that is never used delays the others. Later the buckets follow the order of arrival. If
    // the parameter that is sometimes used is in the first bucket, it delays the others too.
    assert!(!early[0] && early[1..].contains(&true), "{early:?}");
}

#[test]
fn all_devices_are_in_the_autocast_of_the_thread_that_steps() {
    let _alone = alone();
    let Some(two) = devices(2) else { return };
    let lower = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lower);
    let noted: Trouble = Arc::new(move |_, step| {
        kept.lock().push((step, autocast::dtype()));
        Ok(())
    });
    let mut run = partial(text(), &two, &noted);
    run.step().unwrap();
    {
        let _autocast = Autocast::enter(DType::BF16);
        run.step().unwrap();
    }
    run.step().unwrap();
    let mut lower = lower.lock().clone();
    lower.sort_by_key(|(step, _)| *step);
    let expected = [None, Some(DType::BF16), None].into_iter().zip(0..).flat_map(|(dtype, step)| [(step, dtype); 2]);
    assert_eq!(lower, expected.collect::<Vec<_>>());
}

#[test]
fn an_example_that_cannot_be_read_once_is_read_by_the_next_step() {
    let _alone = alone();
    let Some(two) = devices(2) else { return };
    let mut whole = partial(text(), &two, &fine());
    go_on(&mut whole, usize::MAX);
    let mut flaky = partial(Flaky { text: text(), left: 9.into() }, &two, &fine());
    let error = std::iter::from_fn(|| Some(flaky.step())).find_map(Result::err).unwrap();
    assert!(error.to_string().contains("the disk is away"), "{error}");
    while flaky.step().unwrap().is_some() {}
    assert_eq!(losses(&flaky), losses(&whole));
    assert_eq!(bits(&flaky.task().parameters()), bits(&whole.task().parameters()));
}

#[test]
fn an_error_of_one_device_ends_the_step_for_all_and_changes_no_parameter() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    for (is_last, panics) in [(false, false), (true, false), (true, true)] {
        let Some(all) = devices(3).or_else(|| devices(2)) else { return };
        let bad = if is_last { all[all.len() - 1] } else { all[0] };
        let trouble: Trouble = Arc::new(move |device, step| match step {
            2 if device == bad && panics => panic!("no luck"),
            2 if device == bad => Err(TensorError::argument("loss", "no luck").into()),
            _ => Ok(()),
        });
        let mut run = partial(text(), &all, &trouble);
        go_on(&mut run, 2);
        let before = bits(&run.task().parameters());
        let error = run.step().unwrap_err();
        assert!(error.to_string().contains("no luck"), "{error}");
        if is_last {
            assert!(matches!(&error, Error::Train(TrainError::OnDevice { device, .. }) if *device == bad), "{error}");
        }
        assert_eq!(bits(&run.task().parameters()), before);
        assert!(run.optimizer().parameters().all(|parameter| parameter.grad().is_none()));
        run.save(&path).unwrap();
        assert!(matches!(run.step().unwrap_err(), Error::Train(TrainError::Apart)));
        drop(run);

        let mut whole = partial(text(), &all, &fine());
        go_on(&mut whole, usize::MAX);
        let mut resumed = partial(text(), &all, &fine());
        resumed.resume(&path).unwrap();
        go_on(&mut resumed, usize::MAX);
        assert_eq!(losses(&resumed), losses(&whole));
    }
}

fn replica(device: Device, dtype: DType) -> Result<(Partial, Optimizer)> {
    let mut task = Partial::new(device, 1, fine())?;
    task.to_dtype(dtype)?;
    let optimizer = Optimizer::new(task.parameters(), 1e-3, Sgd::default());
    Ok((task, optimizer))
}

/// Returns a run of one step on one device.
fn alone_on(device: Device) -> Trainer<Partial, TextWindows> {
    let (task, optimizer) = replica(device, DType::F64).unwrap();
    Trainer::new(task, loader(text(), device), optimizer, plan(1))
}

#[test]
fn an_invalid_device_group_is_refused() {
    let _alone = alone();
    let Some(two) = devices(2) else { return };
    for (devices, expected) in [
        (&[][..], "the first device is to be the model's"),
        (&[two[1], two[0]], "the first device is to be the model's"),
        (&[two[0], two[0]], "is not a valid group"),
        (&[two[0], Device::CPU], "CUDA devices are expected"),
    ] {
        expect_error(alone_on(two[0]).on_devices(devices, |device| replica(device, DType::F64)), expected);
    }
    let failing = alone_on(two[0]).on_devices(&two, |_| Err(TensorError::argument("replica", "no luck").into()));
    assert_eq!(failing.err().unwrap().to_string(), format!("{}: replica: no luck", two[1]));
    let other = alone_on(two[0]).on_devices(&two, |device| replica(device, DType::F32));
    expect_error(other, "where the model has");
}
