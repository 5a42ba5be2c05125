//! The registry of kernel launches, and the checks after launches and calls.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::thread;

use tenure_core::StreamId;
use tenure_device::sim::SimKernel;
use tenure_device::{
    Call, CallError, ErrorKind, Launch, LaunchRegistry, MemoryCalls, Priority, RECENT_LAUNCHES, StreamCalls,
    check_launch, check_warn,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::common::{GRANULE, drivers, kind, mapped_chunk, sim};

const NAMES: [&str; 3] = ["axpy", "matmul", "softmax"];

/// Records a launch in which every part shows the launch's number.
fn record(registry: &LaunchRegistry, i: u32) -> u64 {
    let grid = [i, i + 1, i + 2];
    let block = [i + 3, i + 4, i + 5];
    registry.record(NAMES[i as usize % 3], StreamId(i.into()), grid, block, Location::caller())
}

/// Returns whether all parts of `launch` belong to one launch.
fn is_whole(launch: &Launch) -> bool {
    let i = launch.stream.0 as u32;
    launch.name == NAMES[i as usize % 3]
        && launch.grid == Some([i, i + 1, i + 2])
        && launch.block == Some([i + 3, i + 4, i + 5])
        && launch.at.is_some_and(|at| at.file() == file!())
}

#[test]
fn a_launch_comes_back_as_it_was_noted() {
    let registry = LaunchRegistry::new();
    let at = Location::caller();
    assert_eq!(registry.recent(10), []);
    let grid = [u32::MAX, 65_535, 65_534];
    let block = [1024, 2, 64];
    let number = registry.record("axpy", StreamId(u64::MAX), grid, block, at);
    let grid = Some(grid);
    let block = Some(block);
    let launch = Launch { name: "axpy", stream: StreamId(u64::MAX), number, grid, block, at: Some(at) };
    assert_eq!(registry.recent(10), [launch]);
}

fn streams_of(launches: Vec<Launch>) -> Vec<u32> {
    launches.iter().map(|launch| launch.stream.0 as u32).collect()
}

#[test]
fn the_newest_come_first_and_the_oldest_are_forgotten() {
    let registry = LaunchRegistry::new();
    let count = RECENT_LAUNCHES as u32 + 10;
    (0..count).for_each(|i| _ = record(&registry, i));
    assert_eq!(streams_of(registry.recent(3)), [count - 1, count - 2, count - 3]);
    assert_eq!(streams_of(registry.recent(usize::MAX)), (10..count).rev().collect::<Vec<_>>());
}

#[test]
fn numbers_grow_and_differ_between_threads() {
    let registry = LaunchRegistry::new();
    let numbers: Vec<Vec<u64>> = thread::scope(|scope| {
        let handles: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..5_000).map(|i| record(&registry, i)).collect::<Vec<_>>())).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    assert!(numbers.iter().all(|numbers| numbers.is_sorted_by(|a, b| a < b)));
    assert_eq!(numbers.concat().into_iter().collect::<BTreeSet<_>>().len(), 20_000);
}

#[test]
fn no_launch_is_torn_while_threads_go_round_the_buffer() {
    let registry = LaunchRegistry::new();
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..50_000).for_each(|i| _ = record(&registry, i)))).collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let launches = registry.recent(RECENT_LAUNCHES);
            assert!(launches.iter().all(is_whole));
            assert!(launches.is_sorted_by(|a, b| a.number > b.number));
        }
    });
    assert!(registry.recent(RECENT_LAUNCHES).iter().all(is_whole));
}

/// Returns a launch of `axpy`.
#[track_caller]
fn axpy(stream: StreamId) -> Launch {
    let grid = Some([128, 1, 1]);
    let block = Some([256, 1, 1]);
    Launch { name: "axpy", stream, number: 17, grid, block, at: Some(Location::caller()) }
}

#[test]
fn a_launch_is_written_with_all_that_is_known_of_it() {
    let line = line!() + 1;
    let text = axpy(StreamId(0x10)).to_string();
    let stream = StreamId(0x10);
    let place = format!("{}:{line}:", file!());
    assert!(text.starts_with(&format!("`axpy` (launch 17 on stream {stream}, grid 128x1x1, block 256x1x1, {place}")));
}

#[test]
fn after_work_without_fault_the_launch_check_finds_nothing() {
    for driver in drivers() {
        let stream = driver.create_stream(Priority::Default).unwrap();
        let address = driver.malloc(64).unwrap();
        driver.memset(address, 1, 64, stream).unwrap();
        check_launch(&*driver, &axpy(stream)).unwrap();
        driver.synchronize_stream(stream).unwrap();
        check_launch(&*driver, &axpy(stream)).unwrap();
        driver.free(address).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_launch_that_was_taken_back_is_not_shown() {
    let registry = LaunchRegistry::new();
    let numbers: Vec<u64> = (0..3).map(|i| record(&registry, i)).collect();
    registry.withdraw(numbers[1]);
    let left: Vec<u64> = registry.recent(10).iter().map(|launch| launch.number).collect();
    assert_eq!(left, [numbers[2], numbers[0]]);
    (0..RECENT_LAUNCHES as u32).for_each(|i| _ = record(&registry, i));
    registry.withdraw(numbers[0]);
    assert_eq!(registry.recent(usize::MAX).len(), RECENT_LAUNCHES, "one that is forgotten takes no other along");
}

#[test]
fn the_launch_check_takes_what_a_launch_returns() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let line = line!() + 1;
    let launch = driver.launch(SimKernel::new("fine", stream)).unwrap();
    assert_eq!((launch.name, launch.stream, launch.at.unwrap().line()), ("fine", stream, line));
    check_launch(&*driver, &launch).unwrap();
    let next = driver.launch(SimKernel::new("stray", stream).body(|memory| memory.write(0x1000, &[1]))).unwrap();
    assert!(next.number > launch.number);
    driver.run().unwrap_err();
    let error = check_launch(&*driver, &next).unwrap_err();
    assert_eq!(*error.launch, next);
}

#[test]
fn the_launch_check_does_not_tell_the_host_that_work_has_passed() {
    let driver = sim(0);
    let (address, _) = mapped_chunk(&*driver, GRANULE);
    let launch = driver.launch(SimKernel::new("late", StreamId::NULL).reads(address, 8)).unwrap();
    driver.run().unwrap();
    check_launch(&*driver, &launch).unwrap();
    assert!(matches!(kind(driver.unmap(address, GRANULE)), ErrorKind::UnmappedInUse { .. }));
}

#[test]
fn the_launch_check_names_the_launch_and_the_error_and_its_own_place() {
    let driver = sim(0);
    let stream = driver.create_stream(Priority::Default).unwrap();
    let stray = SimKernel::new("stray", stream).body(|memory| memory.write(0x1000, &[1]));
    driver.launch(stray).unwrap();
    driver.run().unwrap_err();
    let error = check_launch(&*driver, &axpy(stream)).unwrap_err();
    assert_eq!((error.launch.name, error.launch.stream), ("axpy", stream));
    assert!(matches!(error.error.error.kind, ErrorKind::ContextLost(_)), "{error}");
    let text = error.to_string();
    for part in ["after `axpy` (launch 17", "`stray`", "cuStreamQuery", "called at", file!()] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

/// A log that keeps each record: its level, and its fields and message in one line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

#[test]
fn the_warn_only_check_logs_an_error_and_carries_on() {
    let log = Log::default();
    let (fine, failed) = tracing::subscriber::with_default(log.clone(), || {
        let failed = Err::<u32, _>(CallError { call: Call::Unmap, kind: ErrorKind::Injected });
        (check_warn(Ok(3)), check_warn(failed))
    });
    assert_eq!((fine, failed), (Some(3), None));
    let [(level, line)] = &log.0.lock().unwrap()[..] else { panic!("one line, for the call that failed") };
    assert_eq!(*level, Level::WARN);
    for part in ["cuMemUnmap: error 999: injected failure", &format!("file={:?}", file!()), "line="] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}
