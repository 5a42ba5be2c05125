//! Borrowing a model while it is still being copied: two simulated drivers stand for two processes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tenure_core::StreamId;
use tenure_device::graph::Graph;
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{EventHandle, Executor, Stream};
use tenure_switch::{
    Borrowed, Entry, Images, Lent, Manifest, Model, Origin, Stopped, Switch, SwitchError, SwitchOptions,
};

type Memory = &'static DeviceMemory;

const CHUNK: u64 = 64 << 10;

fn simulated() -> (Arc<SimDriver>, Memory) {
    let config = SimConfig { granularity_bytes: CHUNK, capacity_bytes: 1 << 30, ..SimConfig::default() };
    let driver = Arc::new(SimDriver::new(config));
    let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
    (driver, Box::leak(Box::new(memory)))
}

/// Returns a manifest of three groups with a little more than three chunks; each tensor is full of one value.
fn manifest(first: u8) -> Arc<Manifest> {
    let sizes = [1, CHUNK + 17, 0, 2 * CHUNK + 300];
    Arc::new(
        Manifest::new(
            "lent",
            (first..)
                .zip(sizes)
                .map(|(value, bytes)| {
                    let origin = Origin::Made(Arc::new(move |target: &mut [u8]| target.fill(value)));
                    Entry { name: value.to_string(), bytes, origin }
                })
                .collect(),
            vec![1, 2, 4],
        )
        .unwrap(),
    )
}

/// A process that has models, with room for one of them, and a process that borrows.
struct Processes {
    lender: Arc<SimDriver>,
    images: Images,
    switch: Switch,
    borrower: Arc<SimDriver>,
    memory: Memory,
    borrowing: Switch,
}

impl Processes {
    fn new() -> Self {
        let [(lender, lent_from), (borrower, memory)] = [simulated(), simulated()];
        let images = Images::new(20 * CHUNK, Some(Arc::clone(lent_from.driver()))).unwrap();
        let options = |bytes, is_lending| SwitchOptions { chunk_bytes: CHUNK, is_lending, ..SwitchOptions::new(bytes) };
        let switch = Switch::new(lent_from, options(4 * CHUNK, true)).unwrap();
        let borrowing = Switch::new(memory, options(1 << 40, false)).unwrap();
        Self { lender, images, switch, borrower, memory, borrowing }
    }

    fn register(&self, first: u8) -> [Arc<Model>; 2] {
        [&self.switch, &self.borrowing].map(|switch| Arc::new(switch.register(&manifest(first)).unwrap()))
    }

    fn load(&self, model: &Model) {
        model.load(&self.images.acquire(model.manifest()).unwrap()).unwrap();
    }

    /// Checks the values of all tensors, as a stream of the borrower sees them.
    fn expect(&self, model: &Model, first: u8) {
        let stream = self.memory.streams().current();
        (0..model.manifest().groups().len()).for_each(|group| model.wait(group, &stream).unwrap());
        for (index, value) in (0..4).zip(first..) {
            let place = model.place(index);
            let mut bytes = vec![0; (place.end - place.start) as usize];
            if !bytes.is_empty() {
                self.memory.driver().copy_from_device(&mut bytes, place.start, stream.id()).unwrap();
            }
            assert!(bytes.iter().all(|byte| *byte == value), "tensor {value}");
        }
        model.used_by(&stream).unwrap();
    }
}

fn descriptors(lent: &Lent) -> Vec<OwnedFd> {
    lent.descriptors().collect::<Result<_, _>>().unwrap()
}

fn borrow(lent: &Lent, model: &Arc<Model>) -> Result<Borrowed, SwitchError> {
    model.borrow(&lent.terms(), &lent.signals()?, lent.descriptors().collect::<Result<Vec<_>, _>>()?)
}

#[test]
fn work_of_the_borrower_waits_for_groups_that_are_still_copied() {
    let processes = Processes::new();
    let [model, other] = processes.register(1);
    processes.lender.busy_until(processes.switch.copies().id(), 1_000_000).unwrap();
    processes.load(&model);
    let lent = model.lend_ahead().unwrap();
    let borrowed = borrow(&lent, &other).unwrap();
    let stream = processes.memory.streams().current();
    other.wait(0, &stream).unwrap();
    processes.borrower.run().unwrap();
    assert!(!stream.query().unwrap(), "nothing is there yet");
    model.settle().unwrap();
    assert!(stream.synchronize().is_ok());
    processes.expect(&other, 1);
    assert_eq!((model.evict(usize::MAX), other.evict(usize::MAX)), (0, 0));
    drop((borrowed, lent));
    assert_eq!(model.evict(usize::MAX), 4 * CHUNK);
    assert_eq!((processes.lender.fault(), processes.borrower.fault()), (None, None));
}

#[test]
fn a_graph_is_right_each_time_that_its_model_is_borrowed() {
    let processes = Processes::new();
    let ([model, other], [rival, _]) = (processes.register(1), processes.register(11));
    let driver = processes.memory.driver();
    let target = driver.malloc(1 << 20).unwrap();
    let place = other.place(3);
    let bytes = place.end - place.start;
    let copy = |stream: &Stream| {
        other.wait(2, stream).unwrap();
        driver.copy_on_device(target, place.start, bytes, stream.id()).map_err(MemoryError::from)
    };
    let mut graph = None;
    for _ in 0..3 {
        processes.load(&model);
        let lent = model.lend_ahead().unwrap();
        let borrowed = borrow(&lent, &other).unwrap();
        driver.memset(target, 0, bytes, processes.memory.streams().current_id()).unwrap();
        // The first time, the copy is captured at the addresses where the model is mapped.
        let graph = graph.get_or_insert_with(|| Graph::capture(processes.memory, copy).unwrap().0);
        graph.launch().unwrap();
        other.used_by(&processes.memory.streams().current()).unwrap();
        let mut copied = vec![0; bytes as usize];
        driver.copy_from_device(&mut copied, target, processes.memory.streams().current_id()).unwrap();
        assert!(copied.iter().all(|byte| *byte == 4));
        drop((borrowed, lent));
        assert_eq!(model.evict(usize::MAX), 4 * CHUNK);
        // Meanwhile another model has its chunks, in another order.
        processes.load(&rival);
        rival.settle().unwrap();
        assert!((0..3).map(|_| rival.evict(1)).all(|bytes| bytes == CHUNK) && rival.evict(1) == CHUNK);
    }
    drop(graph);
    driver.free(target).unwrap();
    assert_eq!((processes.lender.fault(), processes.borrower.fault()), (None, None));
}

#[test]
fn an_invalid_loan_is_not_borrowed() {
    let processes = Processes::new();
    let [model, other] = processes.register(1);
    let said = |result: Result<Borrowed, SwitchError>| result.err().unwrap().to_string();
    assert!(model.lend_ahead().err().unwrap().to_string().contains("not on the device"));
    processes.load(&model);
    let lent = model.lend_ahead().unwrap();
    let terms = lent.terms();
    let signals = lent.signals().unwrap();
    let mut fewer = descriptors(&lent);
    fewer.pop();
    assert!(said(other.borrow(&terms, &signals, fewer)).contains("chunks: 3, and here it is 4"));
    assert!(said(other.borrow(&terms, &signals[1..], descriptors(&lent))).contains("signals: 2, and here it is 3"));
    let strange = [EventHandle([7; 64]); 3];
    said(other.borrow(&terms, &strange, descriptors(&lent)));
    let [_, third] = processes.register(2);
    assert!(said(third.borrow(&terms, &signals, descriptors(&lent))).contains("layout"));
    let borrowed = borrow(&lent, &other).unwrap();
    assert!(said(borrow(&lent, &other)).contains("there already"));
    processes.expect(&other, 1);
    drop(borrowed);
    assert_eq!(other.resident_bytes(), 0);
    assert_eq!(processes.borrower.fault(), None);
}

#[test]
fn no_failing_call_of_the_borrower_leaves_anything() {
    let processes = Processes::new();
    let [model, other] = processes.register(1);
    processes.load(&model);
    let mut failures = 0;
    for call in 1.. {
        let lent = model.lend_ahead().unwrap();
        processes.borrower.inject(Failure::of_any(call));
        let first = borrow(&lent, &other);
        processes.borrower.clear_failures();
        let has_failed = first.is_err();
        drop(first);
        assert_eq!(other.resident_bytes(), 0);
        let borrowed = borrow(&lent, &other).unwrap();
        processes.expect(&other, 1);
        drop((borrowed, lent));
        assert_eq!(model.evict(usize::MAX), 4 * CHUNK);
        processes.load(&model);
        if !has_failed {
            break;
        }
        failures += 1;
    }
    // Four chunks take an import and a mapping each, and one access; each group takes an event, opened once, a wait and
    // a record.
    assert!(failures >= 9 + 2 * 3, "{failures}");
    assert_eq!(processes.borrower.fault(), None);
}

#[test]
fn no_thread_uses_a_model_that_is_stopped() {
    let processes = Processes::new();
    let [model, _] = processes.register(1);
    processes.load(&model);
    let storage = model.storage(1);
    drop(storage.lock());
    model.stop();
    let stopped = catch_unwind(AssertUnwindSafe(|| drop(storage.lock())));
    assert!(stopped.unwrap_err().is::<Stopped>());
    model.go_on();
    drop(storage.lock());
    let Executor::Sim(driver) = processes.memory.driver().executor() else { unreachable!("it is simulated") };
    assert_eq!(driver.fault(), None);
    processes.switch.settle().unwrap();
    processes.lender.run().unwrap();
    assert!(processes.memory.driver().synchronize_stream(StreamId::NULL).is_ok());
}
