//! Tests of tensors on several streams of a simulated device, which finds accesses that are not ordered. With
//! `TENURE_TEST_DRIVER=cuda` they run on the first real device, where only results are checked. Run them one at a time
//! then, since all tests see a device's errors.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::LazyLock;

use tenure_device::graph::Graph;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::pinned::PinnedError;
use tenure_device::sim::{Failure, SimConfig, SimPlatform};
use tenure_device::{Call, Executor, Platform, Priority, Stream, StreamGuard};
use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::collective::{Collective, ReduceOp};
use tenure_tensor::{DType, Device, Tensor, TensorError, Uploader};

/// The number of simulated devices of each test, which differ in the order in which they run kernels that are ready.
const SEEDS: u8 = 6;
const TESTS: u8 = 15;

fn is_real() -> bool {
    std::env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda")
}

fn devices(test: u8) -> impl Iterator<Item = (Device, &'static DeviceMemory)> {
    static PLATFORM: LazyLock<SimPlatform> = LazyLock::new(|| {
        SimPlatform::new(
            (0..TESTS * SEEDS)
                .map(|number| SimConfig { seed: u64::from(number % SEEDS), ..SimConfig::default() })
                .collect(),
        )
    });
    let numbers = if is_real() { 0..1 } else { test * SEEDS..(test + 1) * SEEDS };
    numbers.map(|number| {
        let memory = match is_real() {
            true => memory::device(number),
            false => memory::install(PLATFORM.driver(number).unwrap(), MemoryConfig::default()),
        };
        (Device::cuda(number), memory.unwrap())
    })
}

/// Returns how often the host waited, if that is known.
fn waits(memory: &DeviceMemory) -> u64 {
    match memory.driver().executor() {
        Executor::Sim(sim) => sim.counters().host_syncs,
        Executor::Cuda(_) => 0,
    }
}

/// Runs backward from a tensor, with a gradient of ones.
fn backward(tensor: &Tensor) -> Result<(), TensorError> {
    autograd::backward(&[tensor], &[Some(&tensor.ones_like()?)], BackwardOptions::default())
}

fn lead(from: &Stream, to: &Stream) {
    from.lead_to(to).unwrap();
}

fn numbers(count: usize, device: Device) -> Tensor {
    Tensor::arange(0, count as i64, 1, DType::F32, Device::CPU).unwrap().to_device(device).unwrap()
}

#[test]
fn backward_runs_on_the_streams_of_forward_with_the_waits_between() {
    for (device, memory) in devices(0) {
        let (x, y) = square_on_the_side(device, memory);
        // Both parts of the gradient meet at `x`, one from each stream.
        let z = y.mul(&x).unwrap().add(&y.relu().unwrap()).unwrap();
        backward(&z).unwrap();
        let found = x.grad().unwrap().to_vec::<f32>().unwrap();
        let expected: Vec<f32> = (0..100).map(|x| (3 * x * x + 2 * x) as f32).collect();
        assert_eq!(found, expected);
    }
}

fn assert_grad(x: &Tensor, factor: f32) {
    let found = x.grad().unwrap().to_vec::<f32>().unwrap();
    assert!(found.iter().enumerate().all(|(number, found)| *found == factor * number as f32));
}

/// Returns a leaf, and its square computed on another stream.
fn square_on_the_side(device: Device, memory: &DeviceMemory) -> (Tensor, Tensor) {
    let side = memory.streams().pooled(Priority::Default).unwrap();
    let main = memory.streams().current();
    let x = numbers(100, device).requires_grad_(true).unwrap();
    lead(&main, &side);
    let y = {
        let _side = StreamGuard::new(&side);
        x.mul(&x).unwrap()
    };
    lead(&side, &main);
    (x, y)
}

#[test]
fn backward_waits_where_gradients_change_the_device() {
    // The path goes over the CPU, from where the gradient comes in another dtype and is still to be summed up.
    for (device, memory) in devices(11) {
        let (x, y) = square_on_the_side(device, memory);
        let copy = Tensor::zeros(&[5, 100], DType::F64, Device::CPU).unwrap();
        copy.copy_(&y).unwrap();
        copy.sum_all().unwrap().backward().unwrap();
        assert_grad(&x, 10.0);
    }
    for ((device, memory), (other, _)) in devices(12).zip(devices(13)).filter(|_| !is_real()) {
        let (x, y) = square_on_the_side(device, memory);
        backward(&y.to_device(other).unwrap().mul(3.0).unwrap()).unwrap();
        assert_grad(&x, 6.0);
    }
}

#[test]
fn streams_wait_for_the_recomputation_of_a_checkpoint() {
    for (device, memory) in devices(14) {
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let x = numbers(100, device).requires_grad_(true).unwrap();
        let squares = autograd::checkpoint(&[&x], move |x: &[Tensor]| -> Result<Vec<Tensor>, TensorError> {
            lead(&memory.streams().current(), &side);
            let on_the_side = |work: &dyn Fn() -> Result<Tensor, TensorError>| {
                let _side = StreamGuard::new(&side);
                work()
            };
            let third = on_the_side(&|| x[0].mul(3.0))?;
            let second = x[0].mul(2.0)?;
            let squares = vec![second.mul(&second)?, on_the_side(&|| third.mul(&third))?];
            lead(&side, &memory.streams().current());
            Ok(squares)
        })
        .unwrap();
        backward(&squares[0].add(&squares[1]).unwrap()).unwrap();
        let found = x.grad().unwrap().to_vec::<f32>().unwrap();
        assert!(found.iter().enumerate().all(|(number, found)| *found == 26.0 * number as f32));
    }
}

#[test]
fn memory_is_not_reused_before_another_stream_is_done() {
    for (device, memory) in devices(1) {
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let main = memory.streams().current();
        let mut results = Vec::new();
        for round in 0..8 {
            let x = Tensor::full(&[64], round, DType::F32, device).unwrap();
            lead(&main, &side);
            {
                let _side = StreamGuard::new(&side);
                results.push(x.add(1).unwrap());
            }
            // The memory of `x` is freed here and allocated again at once; the other stream may still read it.
            drop(x);
            let other = Tensor::full(&[64], -1, DType::F32, device).unwrap();
            drop(other);
        }
        lead(&side, &main);
        for (round, result) in results.iter().enumerate() {
            assert_eq!(result.to_vec::<f32>().unwrap(), [round as f32 + 1.0; 64]);
        }
    }
}

#[test]
fn a_missing_wait_is_found() {
    if is_real() {
        return;
    }
    let (device, memory) = devices(2).next().unwrap();
    let side = memory.streams().pooled(Priority::Default).unwrap();
    let x = Tensor::full(&[64], 1, DType::F32, device).unwrap();
    let _side = StreamGuard::new(&side);
    let error = x.add(1).map(drop).unwrap_err().to_string();
    assert!(error.contains("race: `full`") && error.contains("`add`"), "{error}");
}

#[test]
fn threads_have_streams_of_their_own() {
    for (device, memory) in devices(3) {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let stream = memory.streams().pooled(Priority::Default).unwrap();
                    let _current = StreamGuard::new(&stream);
                    let x = Tensor::full(&[1000], thread, DType::F32, device).unwrap().requires_grad_(true).unwrap();
                    for _ in 0..5 {
                        let y = x.square().unwrap().add(&x).unwrap();
                        backward(&y).unwrap();
                    }
                    let expected = 5.0 * (2.0 * thread as f32 + 1.0);
                    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [expected; 1000]);
                });
            }
        });
    }
}

#[test]
fn a_captured_step_is_launched_with_new_inputs() {
    for (device, memory) in devices(4) {
        let input = Tensor::zeros(&[10], DType::F32, device).unwrap();
        let weight = numbers(10, device).requires_grad_(true).unwrap();
        let (graph, (loss, grad)) = Graph::capture(memory, |_: &Stream| {
            let loss = input.mul(&weight)?.square()?;
            backward(&loss)?;
            let grad = weight.set_grad(None)?.expect("it requires one");
            Ok::<_, TensorError>((loss, grad))
        })
        .unwrap();
        for round in 1..4_i16 {
            input.fill_(i32::from(round)).unwrap();
            graph.launch().unwrap();
            let at = |value: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..10).map(|w| value(f32::from(round), w as f32)).collect()
            };
            assert_eq!(loss.to_vec::<f32>().unwrap(), at(|x, w| x * x * w * w));
            assert_eq!(grad.to_vec::<f32>().unwrap(), at(|x, w| 2.0 * x * x * w));
        }
    }
}

#[test]
fn a_device_error_is_returned_by_a_later_call_and_ends_nothing() {
    let (device, _) = devices(5).next().unwrap();
    let x = Tensor::from_slice(&[1, 2, 3], &[3]).unwrap().to_device(device).unwrap();
    let zero = Tensor::zeros(&[3], DType::I32, device).unwrap();
    let quotient = x.div_floor(&zero).unwrap();
    let error = quotient.to_vec::<i32>().unwrap_err().to_string();
    assert_eq!(
        error,
        "div_floor: an integer was divided by zero (found by the device, after the operation had returned)"
    );
    assert_eq!(x.add(1).unwrap().to_vec::<i32>().unwrap(), [2, 3, 4]);
}

#[test]
fn uploads_arrive_while_the_host_goes_on_and_their_memory_is_not_reused_early() {
    for (device, memory) in devices(6) {
        let uploader = Uploader::new(device, 16 << 20).unwrap();
        let before = waits(memory);
        let mut sum = Tensor::zeros(&[3, 2], DType::F32, device).unwrap();
        for round in 0..8 {
            let batch = Tensor::full(&[2, 3], round, DType::F32, Device::CPU).unwrap().transpose(0, 1).unwrap();
            let upload = uploader.upload(&batch).unwrap();
            // The host may change its own elements at once.
            batch.fill_(-1).unwrap();
            sum = sum.add(&upload.take().unwrap()).unwrap();
        }
        assert_eq!(waits(memory), before);
        assert_eq!(sum.to_vec::<f32>().unwrap(), [28.0; 6]);
    }
}

#[test]
fn a_failure_to_pin_memory_is_reported_as_such() {
    for (device, memory) in devices(9) {
        let uploader = Uploader::new(device, 16 << 20).unwrap();
        let pinned = |mib: usize| {
            let tensor = Tensor::zeros(&[mib << 20], DType::U8, Device::CPU).unwrap();
            uploader.upload(&tensor).map(drop).map_err(|error| match error {
                TensorError::Memory { error, .. } => *error,
                other => panic!("{other}"),
            })
        };
        let error = pinned(17).unwrap_err();
        assert!(matches!(error, MemoryError::Pinned(PinnedError::LimitReached { .. })), "{error}");
        assert!(error.to_string().contains("raise the limit"), "{error}");
        let Executor::Sim(sim) = memory.driver().executor() else { continue };
        sim.inject(Failure::of(Call::RegisterHost, 1));
        let error = pinned(1).unwrap_err();
        assert!(matches!(error, MemoryError::Pinned(PinnedError::NotPinned { .. })), "{error}");
        pinned(1).unwrap();
    }
}

#[test]
fn tensors_go_from_device_to_device_while_the_host_goes_on() {
    let all: Vec<(Device, &DeviceMemory)> = devices(10).collect();
    for pair in all.chunks_exact(2) {
        let [(first, _), (second, memory)] = pair else { unreachable!("seeds are even") };
        let waits = || pair.iter().map(|(_, memory)| waits(memory)).sum::<u64>();
        let side = memory.streams().pooled(Priority::Default).unwrap();
        let before = waits();
        let sum = Tensor::zeros(&[3, 2], DType::F32, *second).unwrap();
        for round in 0..8 {
            let there = Tensor::full(&[2, 3], round, DType::F32, *first).unwrap();
            // The memory of `there` is reused at once on its device, and that of `here` after the copy.
            let here = there.transpose(0, 1).unwrap().to_device(*second).unwrap();
            drop(there);
            assert_eq!(here.sizes(), [3, 2]);
            sum.copy_(&sum.add(&here).unwrap().to_device(*first).unwrap()).unwrap();
        }
        // The copy back is on a stream that is not the memory's own.
        lead(&memory.streams().current(), &side);
        let back = {
            let _side = StreamGuard::new(&side);
            sum.to_device(*first).unwrap()
        };
        drop(sum);
        let _reused = Tensor::zeros(&[3, 2], DType::F32, *second).unwrap();
        assert_eq!(waits(), before);
        assert_eq!(back.to_vec::<f32>().unwrap(), [28.0; 6]);
    }
}

#[test]
fn devices_exchange_tensors_beside_what_they_compute() {
    let all: Vec<Device> = devices(7).map(|(device, _)| device).collect();
    for pair in all.chunks_exact(2) {
        std::thread::scope(|scope| {
            for part in Collective::group(pair).unwrap() {
                scope.spawn(move || {
                    let rank = part.rank() as f32;
                    let ours = |rank: f32| Tensor::full(&[100], rank, DType::F32, part.device()).unwrap();
                    let [sum, root, left] = [rank, rank, rank].map(ours);
                    part.all_reduce(std::slice::from_ref(&sum), ReduceOp::Sum).unwrap();
                    part.broadcast(std::slice::from_ref(&root), 1).unwrap();
                    let beside = left.add(1.0).unwrap();
                    part.join().unwrap();
                    let sums = sum.add(&root).unwrap().to_vec::<f32>().unwrap();
                    assert_eq!(sums, [2.0; 100]);
                    assert_eq!(beside.to_vec::<f32>().unwrap(), [rank + 1.0; 100]);
                    // A tensor in an exchange may be dropped, and its memory allocated again.
                    part.all_reduce(&[left], ReduceOp::Average).unwrap();
                    part.join().unwrap();
                    assert_eq!(ours(7.0).to_vec::<f32>().unwrap(), [7.0; 100]);
                    let gaps = ours(1.0).slice(0, 0, 100, 2).unwrap();
                    part.all_reduce(&[gaps], ReduceOp::Sum).unwrap_err();
                });
            }
        });
    }
}

#[test]
fn use_before_a_join_is_found() {
    if is_real() {
        return;
    }
    let pair: Vec<Device> = devices(8).take(2).map(|(device, _)| device).collect();
    let mut group = Collective::group(&pair).unwrap().into_iter();
    let part = group.next().unwrap();
    let x = Tensor::full(&[64], 1, DType::F32, part.device()).unwrap();
    part.all_reduce(std::slice::from_ref(&x), ReduceOp::Sum).unwrap();
    let error = x.add(1).map(drop).unwrap_err().to_string();
    assert!(error.contains("race") && error.contains("all_reduce"), "{error}");
    part.abort();
    let other = group.next().unwrap();
    let x = Tensor::full(&[64], 1, DType::F32, other.device()).unwrap();
    let error = other.all_reduce(&[x], ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.starts_with("all_reduce: another device of the group"), "{error}");
}
