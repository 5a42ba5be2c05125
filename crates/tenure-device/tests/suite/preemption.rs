//! Preemption: a process that yields its device, on the simulated driver and a manual clock.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_alloc::Request;
use tenure_core::StreamId;
use tenure_device::background::{self, Background};
use tenure_device::graph::Graph;
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError, Preemption};
use tenure_device::sim::{Failure, SimDriver};
use tenure_device::{Call, Clock, Priority, Stream, StreamCalls};

use crate::common::sim;

/// A device whose process can be preempted.
struct Preempted {
    driver: Arc<SimDriver>,
    memory: &'static DeviceMemory,
    preemption: Arc<Preemption>,
    clock: Clock,
    /// The time at which the work on each stream will be done, in ms.
    ends: Mutex<HashMap<StreamId, u64>>,
}

impl Preempted {
    fn new() -> Self {
        let driver = sim(0);
        let clock = Clock::manual();
        let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
        let memory: &'static DeviceMemory = Box::leak(Box::new(memory));
        let preemption = Arc::new(Preemption::new(|wait| wait(), clock.clone()));
        memory.preempt(Arc::clone(&preemption));
        Self { driver, memory, preemption, clock, ends: Mutex::default() }
    }

    fn stream(&self) -> StreamId {
        self.driver.create_stream(Priority::Default).unwrap()
    }

    fn now_ms(&self) -> u64 {
        self.driver.now_us() / 1000
    }

    fn allocate(&self, stream: StreamId) {
        let block = self.memory.allocate(Request::new(512, stream)).unwrap();
        self.memory.free(block.address).unwrap();
    }

    /// Allocates, puts work of `ms` on the stream, and returns the time until the stream's end, in ms.
    fn operation(&self, stream: StreamId, ms: u64) -> u64 {
        self.allocate(stream);
        let mut ends = self.ends.lock();
        let end = ends.entry(stream).or_default();
        *end = self.now_ms().max(*end) + ms;
        self.driver.busy_until(stream, *end * 1000).unwrap();
        end.saturating_sub(self.now_ms())
    }

    /// Lets a millisecond pass.
    fn tick(&self) {
        self.clock.advance(Duration::from_millis(1));
        self.driver.advance(1000);
        self.driver.run().unwrap();
    }

    fn is_idle(&self) -> bool {
        self.ends.lock().values().all(|end| *end <= self.now_ms())
    }

    /// Stops the process, while time passes only for work on the device. Returns how many ms that took.
    fn stop(&self) -> u64 {
        let mut ms = 0;
        thread::scope(|scope| {
            let yielding = scope.spawn(|| self.preemption.yield_now());
            wait_for(|| self.preemption.is_stopped());
            while !yielding.is_finished() {
                if self.is_idle() {
                    // A thread may have made a mark after the work that is done.
                    self.driver.run().unwrap();
                    thread::yield_now();
                } else {
                    self.tick();
                    ms += 1;
                }
            }
            assert!(yielding.join().unwrap());
        });
        ms
    }
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn the_host_is_never_far_ahead_of_the_device() {
    for ms in [1, 3, 8] {
        let device = Preempted::new();
        let stream = device.stream();
        thread::scope(|scope| {
            let ahead = scope.spawn(|| (0..300).map(|_| device.operation(stream, ms)).skip(100).max().unwrap());
            wait_for(|| {
                device.tick();
                ahead.is_finished()
            });
            let ahead = ahead.join().unwrap();
            assert!(ahead <= 50, "{ahead} ms with operations of {ms} ms");
        });
    }
}

#[test]
fn a_process_yields_within_its_bound_and_goes_on_with_nothing_lost() {
    let device = Preempted::new();
    let done = AtomicUsize::new(0);
    let is_ending = AtomicBool::new(false);
    let (mut took, mut went_on) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = [1, 2].map(|ms| (device.stream(), ms)).into();
        let threads = threads.into_iter().map(|(stream, ms)| {
            let device = &device;
            let done = &done;
            let is_ending = &is_ending;
            scope.spawn(move || {
                while !is_ending.load(Ordering::SeqCst) {
                    device.operation(stream, ms);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        for _ in 0..20 {
            let before = done.load(Ordering::SeqCst);
            wait_for(|| {
                device.tick();
                done.load(Ordering::SeqCst) >= before + 100
            });
            took.push(device.stop());
            let stopped = done.load(Ordering::SeqCst);
            (0..200).for_each(|_| device.tick());
            went_on.push(done.load(Ordering::SeqCst) - stopped);
            device.preemption.resume();
        }
        is_ending.store(true, Ordering::SeqCst);
        wait_for(|| {
            device.tick();
            threads.iter().all(|thread| thread.is_finished())
        });
    });
    assert!(took.iter().all(|ms| *ms <= 50), "{took:?} ms");
    // A thread may have been between its allocation and its launch.
    assert!(went_on.iter().all(|operations| *operations <= 2), "{went_on:?}");
}

#[test]
fn a_process_that_allocates_nothing_has_yielded_after_10_ms() {
    let device = Preempted::new();
    thread::scope(|scope| {
        let yielding = scope.spawn(|| device.preemption.yield_now());
        wait_for(|| device.preemption.is_stopped());
        assert!(!yielding.is_finished());
        device.clock.advance(Duration::from_millis(10));
        assert!(yielding.join().unwrap());
    });
}

#[test]
fn a_process_that_may_run_again_has_not_yielded() {
    let device = Preempted::new();
    thread::scope(|scope| {
        let yielding = scope.spawn(|| device.preemption.yield_now());
        wait_for(|| device.preemption.is_stopped());
        device.preemption.resume();
        assert!(!yielding.join().unwrap());
    });
    device.allocate(StreamId::NULL);
}

#[test]
fn a_capture_is_never_stopped_and_a_launch_of_its_graph_is() {
    let device = Preempted::new();
    thread::scope(|scope| {
        let yielding = scope.spawn(|| device.preemption.yield_now());
        wait_for(|| device.preemption.is_stopped());
        let (graph, ()) = Graph::capture(device.memory, |stream: &Stream| {
            (0..100).for_each(|_| device.allocate(stream.id()));
            Ok::<_, MemoryError>(())
        })
        .unwrap();
        let launching = scope.spawn(move || graph.launch().unwrap());
        // The clock stands still, so a thread has stopped.
        wait_for(|| {
            device.driver.run().unwrap();
            yielding.is_finished()
        });
        assert!(yielding.join().unwrap());
        assert_eq!(device.driver.calls(Some(Call::LaunchGraph)), 0);
        device.preemption.resume();
        launching.join().unwrap();
        assert_eq!(device.driver.calls(Some(Call::LaunchGraph)), 1);
    });
}

#[test]
fn a_thread_that_is_stopped_goes_on_when_its_device_has_failed() {
    let device = Preempted::new();
    let stream = device.stream();
    thread::scope(|scope| {
        let yielding = scope.spawn(|| device.preemption.yield_now());
        wait_for(|| device.preemption.is_stopped());
        let stopped = scope.spawn(|| device.allocate(stream));
        wait_for(|| {
            device.driver.run().unwrap();
            yielding.is_finished()
        });
        device.driver.inject(Failure::of(Call::QueryStream, 1).lasting());
        stopped.join().unwrap();
    });
}

#[test]
fn without_preemption_allocations_call_no_driver() {
    let driver = sim(0);
    let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
    let allocate = || memory.free(memory.allocate(Request::new(512, StreamId::NULL)).unwrap().address).unwrap();
    allocate();
    let calls = driver.calls(None);
    (0..1000).for_each(|_| allocate());
    assert_eq!(driver.calls(None), calls);
    memory.preempt(Arc::default());
    (0..4).for_each(|_| allocate());
    assert_eq!(driver.calls(Some(Call::HostFunction)), 1);
}

/// A program that records the calls of its server.
#[derive(Default)]
struct Told(Mutex<Vec<&'static str>>);

impl Background for Told {
    fn stop(&self) {
        self.0.lock().push("yield");
    }

    fn go_on(&self) {
        self.0.lock().push("run");
    }
}

#[test]
fn a_program_does_what_its_server_says_and_goes_on_without_one() {
    let (mut server, client) = UnixStream::pair().unwrap();
    let told = Told::default();
    thread::scope(|scope| {
        let following = scope.spawn(|| background::follow(&client, &told));
        server.write_all(b"yield\nnews\nrun\nyield\n").unwrap();
        let mut lines = BufReader::new(&server).lines();
        assert_eq!([lines.next(), lines.next()].map(|line| line.unwrap().unwrap()), ["yielded", "yielded"]);
        drop(lines);
        drop(server);
        following.join().unwrap();
    });
    assert_eq!(*told.0.lock(), ["yield", "run", "yield", "run"]);
}
