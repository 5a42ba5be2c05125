//! Tests of replays on a device that the caller gives: a simulated one, which replays treat like a real one.

use std::ops::ControlFlow;
use std::sync::Arc;

use tenure::Error;
use tenure::core::StreamId;
use tenure::device::sim::{SimConfig, SimDriver};
use tenure::device::{Driver, MemoryCalls};
use tenure::plan::{Settings, Trace, TraceAction, TraceEvent};
use tenure::replay::{AllocatorKind, Replay};

const MIB: u64 = 1 << 20;

fn sample() -> Trace {
    Trace::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz")).unwrap()
}

fn device() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = Arc::new(SimDriver::new(SimConfig { other_bytes: 600 * MIB, ..SimConfig::default() }));
    (Arc::clone(&sim), sim)
}

#[test]
fn memory_and_calls_are_those_that_the_driver_saw() {
    for &allocator in AllocatorKind::ALL {
        let (sim, driver) = device();
        let outcome = Replay::new(allocator).run_on(&driver, &sample(), |_| ControlFlow::Continue(())).unwrap();
        let calls = outcome.driver_calls;
        let seen = sim.counters();
        assert_eq!(
            (calls.create, calls.map, calls.set_access),
            (seen.create, seen.map, seen.set_access),
            "{allocator}"
        );
        assert_eq!(calls.malloc, seen.malloc - 1, "{allocator}: all but the warm-up's");
        assert_eq!(outcome.peak_reserved_bytes, sim.peak_bytes() - 600 * MIB, "{allocator}");
        assert_eq!(outcome.mismatched_addresses, None, "{allocator}");
    }
}

#[test]
fn the_device_counts_what_the_allocator_holds_and_gets_it_all_back() {
    for &allocator in AllocatorKind::ALL {
        let (sim, driver) = device();
        let before = sim.memory_info().unwrap();
        let outcome = Replay { repeat: 2, ..Replay::new(allocator) }
            .run_on(&driver, &sample(), |_| ControlFlow::Continue(()))
            .unwrap();
        let device = outcome.device.unwrap();
        assert_eq!(device.at_peak.reserved_bytes, outcome.peak_reserved_bytes, "{allocator}");
        assert_eq!([device.at_peak, device.at_end].map(|held| held.difference_bytes()), [0, 0], "{allocator}");
        assert_eq!(device.at_end.used_bytes, 0, "{allocator}");
        assert_eq!(sim.memory_info().unwrap(), before, "{allocator}");
        assert!(device.agrees() && device.blocks_checked > 100, "{allocator}");
    }
}

#[test]
fn measured_time_stands_beside_the_model() {
    let (_, driver) = device();
    let outcome = Replay::new(AllocatorKind::Paged).run_on(&driver, &sample(), |_| ControlFlow::Continue(())).unwrap();
    let device = outcome.device.as_ref().unwrap();
    let modelled: f64 = device.calls.iter().filter_map(|call| call.modelled_us).sum();
    assert!((modelled - outcome.modelled_driver_us).abs() < 1e-6);
    let create = device.calls.iter().find(|call| call.call == "cuMemCreate").unwrap();
    assert!(create.count == outcome.driver_calls.create && create.measured_us > 0.0);
    assert!(device.measured_driver_us >= create.measured_us);
}

#[test]
fn blocks_of_several_streams_are_written_without_a_race() {
    let event = |time_us, name, address, stream| TraceEvent {
        time_us,
        address,
        bytes: 30 * MIB,
        stream: StreamId(stream),
        action: TraceAction::from_name(name).unwrap(),
    };
    let mut events = Vec::new();
    for round in 0..50 {
        for stream in [0, 7, 99] {
            let address = (stream + 1) << 32;
            events.push(event(round, "alloc", address, stream));
            events.push(event(round, "free_requested", address, stream));
            events.push(event(round, "free_completed", address, stream));
        }
    }
    let trace = Trace::new("three streams", 0, Settings::default(), events).unwrap();
    for &allocator in AllocatorKind::ALL {
        let (sim, driver) = device();
        Replay { repeat: 2, ..Replay::new(allocator) }.run_on(&driver, &trace, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(sim.fault(), None, "{allocator}");
    }
}

#[test]
fn a_full_device_is_an_error_after_which_nothing_is_left_on_it() {
    let sim = Arc::new(SimDriver::new(SimConfig { capacity_bytes: 2 << 30, ..SimConfig::default() }));
    let driver: Arc<dyn Driver> = sim.clone();
    for &allocator in AllocatorKind::ALL {
        let error = Replay::new(allocator).run_on(&driver, &sample(), |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, Error::Replay { .. }), "{error}");
        assert_eq!(sim.memory_info().unwrap().free, 2 << 30, "{allocator}");
    }
}
