//! Tests of the benchmark of allocators: it measures the cases that it names. They do not test speed.

use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::alloc::{AllocError, MemoryReports, PagedAllocator};
use tenure::bench::{Bench, Case, Churn};
use tenure::core::StreamId;
use tenure::device::sim::{SimConfig, SimDriver};
use tenure::device::{DeviceBacking, Driver, MemoryCalls};
use tenure::replay::AllocatorKind;

fn device() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = Arc::new(SimDriver::new(SimConfig::default()));
    (Arc::clone(&sim), sim)
}

#[test]
fn every_case_runs_on_every_allocator_and_leaves_nothing() {
    let (sim, driver) = device();
    let bench = Bench { repeats: 3, repeat_time: Duration::from_micros(100) };
    for case in Case::all(&[1, 4]) {
        for &allocator in AllocatorKind::ALL {
            let figure = bench.run(case, allocator, &driver).unwrap();
            assert!(figure.fastest_ns > 0.0 && figure.fastest_ns <= figure.median_ns, "{figure:?}");
            assert!(figure.median_ns <= figure.slowest_ns && figure.pairs >= 64, "{figure:?}");
            assert_eq!(sim.memory_info().unwrap().free, sim.memory_info().unwrap().total, "{figure:?}");
        }
    }
    assert_eq!(sim.fault(), None);
}

#[test]
fn cases_have_names_to_be_found_by() {
    let names: Vec<_> = Case::all(&[1, 16]).iter().map(ToString::to_string).collect();
    #[rustfmt::skip]
    let expected = ["pair 512 B", "pair 64 KiB", "pair 1 MiB", "pair 16 MiB", "pair 256 MiB",
        "churn 100", "churn 1000", "churn 10000", "threads 1", "threads 16", "record_stream"];
    assert_eq!(names, expected);
}

#[test]
fn churn_keeps_as_many_blocks_live_as_it_says() {
    let (_, driver) = device();
    let allocator = PagedAllocator::new(Arc::new(DeviceBacking::new(driver)), Default::default()).unwrap();
    let live = || allocator.statistics().all.allocation.current;
    let mut churn = Churn::new(&allocator, StreamId::NULL, None, 1, 100).unwrap();
    assert_eq!(live(), 100);
    churn.run(1000).unwrap();
    assert_eq!(live(), 100);
    drop(churn);
    assert_eq!(live(), 0);
}

#[test]
fn a_full_device_is_an_error() {
    let small = SimConfig { capacity_bytes: 64 << 20, ..SimConfig::default() };
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(small));
    let error = Bench::default().run(Case::Pair { bytes: 256 << 20 }, AllocatorKind::Paged, &driver).unwrap_err();
    assert!(matches!(error, Error::Alloc(AllocError::OutOfMemory { .. })), "{error}");
}
