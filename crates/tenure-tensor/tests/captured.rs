//! Tests of captured and replayed work with numbers that vary, on simulated devices unless `TENURE_TEST_DRIVER` is
//! `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use parking_lot::{Mutex, MutexGuard};
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Event, EventKind, Executor, Platform, Priority, StreamGuard};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::cuda::{self, Captured};
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, Result, Tensor, TensorError};

/// The number of simulated devices, which differ in the order in which they run kernels that are ready.
const SEEDS: u8 = 4;

type Alone = (MutexGuard<'static, ()>, Device, &'static DeviceMemory);

/// Locks the devices and the default generator, which is the process's, for one test.
fn alone() -> Alone {
    devices().next().unwrap()
}

fn devices() -> impl Iterator<Item = Alone> {
    static ALONE: Mutex<()> = Mutex::new(());
    static MEMORIES: LazyLock<Vec<&DeviceMemory>> = LazyLock::new(|| {
        if std::env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
            return vec![memory::device(0).unwrap()];
        }
        let platform = SimPlatform::new(
            (0..SEEDS).map(|seed| SimConfig { seed: u64::from(seed), ..SimConfig::default() }).collect(),
        );
        (0..SEEDS)
            .map(|number| memory::install(platform.driver(number).unwrap(), MemoryConfig::default()).unwrap())
            .collect()
    });
    MEMORIES.iter().map(|memory| (ALONE.lock(), memory.device(), *memory))
}

fn waits(memory: &DeviceMemory) -> u64 {
    match memory.driver().executor() {
        Executor::Sim(sim) => sim.counters().host_syncs,
        Executor::Cuda(_) => 0,
    }
}

/// Draws in all ways from two generators: forward, recomputed and backward.
fn draws(x: &Tensor, own: &Generator) -> Result<Vec<Tensor>> {
    let dtype = x.dtype();
    let device = x.device();
    let y = autograd::checkpoint(&[x], |x| {
        Ok(vec![x[0].dropout(0.5, true)?.mul(&Tensor::rand(
            x[0].sizes(),
            DType::F32,
            x[0].device(),
            &Generator::new(3),
        )?)?])
    })?;
    let y = y[0].dropout(0.25, true)?;
    autograd::backward(&[&y], &[Some(&y.ones_like()?)], BackwardOptions::default())?;
    let grad = x.set_grad(None)?.expect("it requires one");
    Ok(vec![
        y.detach(),
        grad,
        Tensor::randn(&[33], dtype, device, own)?,
        Tensor::randint(0, 1000, &[7], DType::I64, device, own)?,
        Tensor::randperm(20, device, own)?,
        Tensor::full(&[9], 0.5, DType::F32, device)?.bernoulli(&random::Generator::default())?,
    ])
}

fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

#[test]
fn a_replay_draws_what_the_work_would_have_drawn() {
    for (_alone, device, memory) in devices() {
        let own = Generator::new(5);
        let x = Tensor::ones(&[50], DType::F32, device).unwrap().requires_grad_(true).unwrap();
        let states = || (random::default_generator(device).state(), own.state());
        random::manual_seed(2);
        let expected: Vec<_> = (0..4).map(|_| (bytes(&draws(&x, &own).unwrap()), states())).collect();

        random::manual_seed(2);
        own.manual_seed(5);
        assert_eq!((bytes(&draws(&x, &own).unwrap()), states()), expected[0]);
        let (mut captured, out) = Captured::new(device, || draws(&x, &own)).unwrap();
        // The capture drew nothing.
        assert_eq!(states(), expected[0].1);
        let before = waits(memory);
        captured.replay().unwrap();
        assert_eq!(waits(memory), before);
        assert_eq!((bytes(&out), states()), expected[1]);
        // A draw without a capture in between works too.
        assert_eq!((bytes(&draws(&x, &own).unwrap()), states()), expected[2]);
        captured.replay().unwrap();
        assert_eq!((bytes(&out), states()), expected[3]);
        random::manual_seed(2);
        own.manual_seed(5);
        captured.replay().unwrap();
        assert_eq!((bytes(&out), states()), expected[0]);
    }
}

#[test]
fn a_generator_that_the_work_sets_is_where_the_work_leaves_it() {
    let (_alone, device, _) = alone();
    let own = Generator::new(5);
    let draw = || Tensor::rand(&[10], DType::F32, device, &own);
    let work = || {
        let begin = own.state();
        let first = draw()?;
        own.set_state(begin);
        let again = draw()?;
        own.manual_seed(8);
        Ok::<_, TensorError>((first, again, draw()?))
    };
    let of = |(first, again, last): &(Tensor, Tensor, Tensor)| bytes(&[first.clone(), again.clone(), last.clone()]);
    let eager: Vec<_> = (0..2).map(|_| (of(&work().unwrap()), own.state())).collect();
    own.manual_seed(5);
    let (mut captured, out) = Captured::new(device, work).unwrap();
    for expected in eager {
        captured.replay().unwrap();
        assert_eq!((of(&out), own.state()), expected);
    }
}

#[test]
fn replays_queue_up_with_their_own_words_on_any_stream() {
    for (_alone, device, memory) in devices() {
        let sum = Tensor::zeros(&[2], DType::I64, device).unwrap();
        let mut next = 0;
        let (mut captured, ()) = Captured::new(device, || {
            let words = cuda::varying(
                2,
                move |words: &mut [u64]| {
                    next += 1;
                    words.copy_from_slice(&[next, 100 * next]);
                    Ok(())
                },
                || (),
            )?;
            sum.add_(&words.expect("it is captured"))
        })
        .unwrap();
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let main = memory.streams().current();
        let before = waits(memory);
        for _ in 0..100 {
            captured.replay().unwrap();
        }
        {
            let _side = StreamGuard::new(&side);
            captured.replay().unwrap();
        }
        captured.replay().unwrap();
        let mut done = Event::new(memory.driver().clone(), EventKind::Order);
        done.record(&side).unwrap();
        done.wait(&main).unwrap();
        assert_eq!(waits(memory), before);
        assert_eq!(sum.to_vec::<i64>().unwrap(), [5253, 525_300]);
    }
}

#[test]
fn a_graph_holds_no_cached_memory() {
    let (_alone, device, memory) = alone();
    let work = || {
        let parts = (0..16).map(|_| Tensor::empty(&[8 << 20], DType::U8, device)).collect::<Result<Vec<_>>>()?;
        parts[0].fill_(1)
    };
    work().unwrap();
    memory.allocator().reset_peak_statistics();
    let (mut captured, ()) = Captured::new(device, work).unwrap();
    captured.replay().unwrap();
    let reserved = memory.allocator().statistics().all.reserved_bytes.current;
    // PyTorch's policy takes 20 MiB for two tensors of 8.
    assert!(reserved < 200 << 20, "{reserved}");
}

#[test]
fn a_capture_that_fails_leaves_nothing() {
    let (_alone, device, _) = alone();
    let own = Generator::new(5);
    let before = own.state();
    let failed = Captured::new(device, || Tensor::rand(&[10], DType::F32, device, &own)?.to_vec::<f32>());
    assert!(failed.is_err());
    assert_eq!(own.state(), before);
    assert!(
        catch_unwind(AssertUnwindSafe(|| Captured::new(device, || -> Result<()> {
            Tensor::rand(&[10], DType::F32, device, &own)?;
            panic!("on purpose");
        })
        .map(drop)))
        .is_err()
    );
    assert_eq!(own.state(), before);
    let failed = Captured::new(device, || cuda::varying(1 << 20, |_| Ok(()), || ())).map(drop).unwrap_err().to_string();
    assert!(failed.contains("words vary"), "{failed}");
    assert!(!cuda::is_capturing() && cuda::varying(1, |_| Ok(()), || ()).unwrap().is_none());
    let (_, nested) =
        Captured::new(device, || Ok::<_, TensorError>(Captured::new(device, || Ok::<_, TensorError>(())).is_err()))
            .unwrap();
    assert!(nested);
    let on_cpu = Captured::new(Device::CPU, || Ok::<_, TensorError>(())).map(drop).unwrap_err().to_string();
    assert!(on_cpu.contains("CUDA device"), "{on_cpu}");
    assert_eq!(Tensor::rand(&[10], DType::F32, device, &own).unwrap().to_vec::<f32>().unwrap().len(), 10);
}

#[test]
fn a_graph_keeps_outside_tensors_for_its_replays() {
    for (_alone, device, memory) in devices() {
        let main = memory.streams().current();
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let x = Tensor::full(&[1 << 16], 3, DType::F32, device).unwrap();
        let sum = Tensor::zeros(&[1 << 16], DType::F32, device).unwrap();
        let (mut captured, ()) = Captured::new(device, || sum.add_(&x.mul(2)?)).unwrap();
        main.lead_to(&side).unwrap();
        {
            let _side = StreamGuard::new(&side);
            captured.replay().unwrap();
        }
        drop(x);
        // The memory of `x` is allocated again, while the replay may not have begun.
        let full = |value: i32| Tensor::full(&[1 << 16], value, DType::F32, device).unwrap();
        let others = [7, 8].map(full);
        {
            let _side = StreamGuard::new(&side);
            captured.replay().unwrap();
        }
        drop(captured);
        let after = [9, 10].map(full);
        side.lead_to(&main).unwrap();
        assert_eq!(sum.to_vec::<f32>().unwrap(), [12.0; 1 << 16]);
        for (tensor, value) in others.iter().chain(&after).zip(7_u8..) {
            assert_eq!(tensor.to_vec::<f32>().unwrap(), [f32::from(value); 1 << 16]);
        }
    }
}

fn first(tensor: Tensor) -> Result<f32, TensorError> {
    Ok(tensor.detach().to_dtype(DType::F32)?.to_vec()?[0])
}

#[test]
fn later_operations_see_the_writes_of_a_replay() -> Result<()> {
    for (_alone, device, _) in devices() {
        let weights = Tensor::ones(&[16, 16], DType::F32, device)?.requires_grad_(true)?;
        let x = Tensor::ones(&[16, 16], DType::F32, device)?;
        let _autocast = Autocast::enter(DType::BF16);
        // Converted parameters are kept until they are written to.
        let (mut step, ()) = Captured::new(device, || autograd::no_grad(|| weights.add_(1)).map(drop))?;
        let now = || autograd::no_grad(|| first(x.matmul(&weights)?));
        assert_eq!(now()?, 16.0);
        for expected in [32.0, 48.0] {
            step.replay()?;
            assert_eq!(now()?, expected);
        }
        // The same holds for tensors that are saved for backward.
        let product = x.mul(&x.mul(&weights)?)?.mul(&weights)?;
        step.replay()?;
        let error = autograd::backward(&[&product.sum_all()?], &[None], BackwardOptions::default()).unwrap_err();
        assert!(error.to_string().contains("add_"), "{error}");
        // A capture converts what it uses each time, and other work does not use its conversions.
        let warm = x.matmul(&weights)?;
        let (mut product, out) = Captured::new(device, || x.matmul(&weights))?;
        assert_eq!(first(x.matmul(&weights)?)?, first(warm)?);
        autograd::no_grad(|| weights.fill_(1))?;
        product.replay()?;
        assert_eq!(first(out)?, 16.0);
    }
    Ok(())
}

fn draw(device: Device) -> Vec<u8> {
    Tensor::rand(&[9], DType::F32, device, &Generator::default()).unwrap().to_bytes().unwrap()
}

#[test]
fn a_device_draws_from_a_generator_of_its_own() {
    let (_alone, device, _) = alone();
    random::manual_seed(6);
    let states = || [Device::CPU, device].map(|device| random::default_generator(device).state());
    let begin = states();
    assert_eq!(begin[0], begin[1]);
    let drawn = draw(device);
    assert_eq!((states()[0], states()[1] == begin[1]), (begin[0], false));
    let moved = states()[1];
    assert_eq!(draw(Device::CPU), drawn);
    assert_eq!((states()[0] == begin[0], states()[1]), (false, moved));

    let x = Tensor::ones(&[9], DType::F32, device).unwrap();
    let cpu = states()[0];
    _ = x.dropout(0.5, true).unwrap();
    assert_eq!((states()[0], states()[1] == moved), (cpu, false));
    let refused = Tensor::rand(&[9], DType::F32, device, &Generator::of_device(Device::CPU, 1)).unwrap_err();
    let reason = "uniform: Expected a 'cuda' device type for generator but found 'cpu'";
    assert_eq!(refused.to_string(), reason);
}

#[test]
fn the_first_draws_of_a_device_in_a_captured_checkpoint_repeat() {
    let (_alone, device, _) = alone();
    let x = Tensor::ones(&[50], DType::F32, device).unwrap().requires_grad_(true).unwrap();
    random::manual_seed(7);
    let (mut captured, [y, grad]) = Captured::new(device, || {
        let y = autograd::checkpoint(&[&x], |x| Ok(vec![x[0].dropout(0.5, true)?.mul(&x[0])?]))?;
        autograd::backward(&[&y[0]], &[Some(&y[0].ones_like()?)], BackwardOptions::default())?;
        Ok::<_, TensorError>([y[0].detach(), x.set_grad(None)?.expect("it requires one")])
    })
    .unwrap();
    let mut drawn = Vec::new();
    for _ in 0..3 {
        captured.replay().unwrap();
        let twice = y.mul(2.0).unwrap();
        assert_eq!(twice.to_bytes().unwrap(), grad.to_bytes().unwrap());
        drawn.push(y.to_bytes().unwrap());
    }
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2]);
}
