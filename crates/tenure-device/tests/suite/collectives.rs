//! Collective operations between devices: simulated ones, and real ones where there are two.
#![expect(clippy::disallowed_methods, reason = "on a GPU, NCCL does not tell that it waits; the test holds either way")]

use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use tenure_core::{DType, StreamId};
use tenure_device::collective::{CollectiveError, Communicator, ReduceOp};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Call, Driver, Executor, Platform, cuda};

use crate::common::eventually;

/// Returns groups of devices to test.
fn groups() -> Vec<Vec<Arc<dyn Driver>>> {
    let chosen = env::var("TENURE_TEST_DRIVER").unwrap_or_else(|_| "all".to_owned());
    let mut groups = Vec::new();
    if chosen != "cuda" {
        for seed in 0..4 {
            let platform = SimPlatform::new(vec![SimConfig { seed, ..SimConfig::default() }; 3]);
            groups.push((0..3).map(|device| platform.driver(device).unwrap()).collect());
        }
    }
    if chosen != "sim" && cuda::platform().device_count().is_ok_and(|count| count > 1) {
        groups.push((0..2).map(|device| cuda::platform().driver(device).unwrap()).collect());
    }
    groups
}

/// Runs `rank` on a thread for each device of a group.
fn each(drivers: &[Arc<dyn Driver>], rank: impl Fn(&dyn Driver, &Communicator) + Sync) {
    let group = Communicator::group(drivers).unwrap();
    thread::scope(|scope| {
        for (driver, communicator) in drivers.iter().zip(&group) {
            scope.spawn(|| rank(&**driver, communicator));
        }
    });
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn all_devices_have_the_sum_the_average_or_the_largest() {
    for drivers in groups() {
        let size = drivers.len() as f32;
        each(&drivers, |driver, communicator| {
            assert_eq!(communicator.device(), driver.device());
            let rank = communicator.rank() as f32;
            let address = driver.malloc(4000).unwrap();
            let all: f32 = (0..communicator.size()).map(|rank| rank as f32).sum();
            let expected = [(ReduceOp::Sum, all), (ReduceOp::Average, all / size), (ReduceOp::Max, size - 1.0)];
            for (reduction, expected) in expected {
                let own: Vec<u8> = (0..1000).flat_map(|i| (rank + i as f32).to_le_bytes()).collect();
                driver.copy_to_device(address, &own, StreamId::NULL).unwrap();
                communicator.all_reduce(address, 1000, DType::F32, reduction, StreamId::NULL).unwrap();
                let mut bytes = vec![0; 4000];
                driver.copy_from_device(&mut bytes, address, StreamId::NULL).unwrap();
                let weight = if reduction == ReduceOp::Sum { size } else { 1.0 };
                let expected: Vec<f32> = (0..1000).map(|i| expected + weight * i as f32).collect();
                assert_eq!(floats(&bytes), expected, "{reduction:?}");
            }
            driver.free(address).unwrap();
        });
    }
}

#[test]
fn all_devices_have_what_one_of_them_had() {
    for drivers in groups() {
        each(&drivers, |driver, communicator| {
            let address = driver.malloc(100).unwrap();
            for root in 0..communicator.size() {
                driver.memset(address, communicator.rank() as u8, 100, StreamId::NULL).unwrap();
                communicator.broadcast(address, 100, root, StreamId::NULL).unwrap();
                let mut bytes = [9; 100];
                driver.copy_from_device(&mut bytes, address, StreamId::NULL).unwrap();
                assert_eq!(bytes, [root as u8; 100]);
            }
            driver.free(address).unwrap();
        });
    }
}

/// Returns when the host waits for a device that waits for the others of its group.
fn waits_for_others(driver: &dyn Driver) {
    match driver.executor() {
        Executor::Sim(driver) => eventually("it waits", || driver.calls(Some(Call::Synchronize)) > 0),
        // The driver does not tell. Most likely it waits after a while; if not, the test passes all the same.
        Executor::Cuda(_) => thread::sleep(Duration::from_millis(500)),
    }
}

#[test]
fn a_device_that_ends_the_group_leaves_none_waiting() {
    for drivers in groups() {
        each(&drivers, |driver, communicator| {
            let address = driver.malloc(4000).unwrap();
            let sum = || communicator.all_reduce(address, 1000, DType::F32, ReduceOp::Sum, StreamId::NULL);
            if communicator.rank() == 0 {
                // The others are in their first call, in which they connect to this device.
                drivers[1..].iter().for_each(|other| waits_for_others(&**other));
                communicator.abort();
            } else {
                let put = communicator.together(sum);
                assert!(matches!(put, Ok(()) | Err(CollectiveError::Alone)), "{put:?}");
                driver.synchronize().unwrap();
            }
            assert!(matches!(communicator.together(sum), Err(CollectiveError::Alone)));
            communicator.abort();
            driver.free(address).unwrap();
        });
    }
}

#[test]
fn an_invalid_device_group_is_refused() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 2]);
    let driver = platform.driver(0).unwrap();
    assert!(matches!(Communicator::group(&[]), Err(CollectiveError::NoGroup { .. })));
    let twice = [Arc::clone(&driver), driver];
    assert!(matches!(Communicator::group(&twice), Err(CollectiveError::NoGroup { .. })));
}
