//! The race detector: it finds unordered accesses with every seed, and never reports ordered ones.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tenure_alloc::Address;
use tenure_core::StreamId;
use tenure_device::sim::{SimDriver, SimKernel};
use tenure_device::{
    AccessMode, CallError, CopyCalls, Driver, ErrorKind, Event, EventCalls, EventId, EventKind, GraphCalls,
    MemoryCalls, Priority, StreamCalls, Streams,
};

use crate::common::{GRANULE, kind, mapped_chunk, sim};

const SEEDS: std::ops::Range<u64> = 0..32;

/// An allocator that knows streams, as small as can be: blocks of one size, and a free list for each stream.
struct TinyAllocator {
    driver: Arc<SimDriver>,
    free: HashMap<StreamId, Vec<Address>>,
    recorded: HashMap<Address, Vec<StreamId>>,
    /// Freed blocks and the events that must be passed before they are reused.
    pending: Vec<(StreamId, Address, Vec<EventId>)>,
}

impl TinyAllocator {
    const BLOCK: u64 = 512;

    fn new(driver: &Arc<SimDriver>) -> Self {
        Self { driver: Arc::clone(driver), free: HashMap::new(), recorded: HashMap::new(), pending: Vec::new() }
    }

    fn allocate(&mut self, stream: StreamId) -> Address {
        let driver = &self.driver;
        let passed = self
            .pending
            .extract_if(.., |(_, _, events)| events.iter().all(|&event| driver.query_event(event).unwrap()));
        for (stream, address, _) in passed {
            self.free.entry(stream).or_default().push(address);
        }
        let block = self.free.entry(stream).or_default().pop();
        block.unwrap_or_else(|| driver.malloc(Self::BLOCK).unwrap())
    }

    fn record_stream(&mut self, address: Address, stream: StreamId) {
        self.recorded.entry(address).or_default().push(stream);
    }

    fn free(&mut self, address: Address, stream: StreamId) {
        let events = self
            .recorded
            .remove(&address)
            .unwrap_or_default()
            .into_iter()
            .map(|user| {
                let event = self.driver.create_event(EventKind::Timing).unwrap();
                self.driver.record_event(event, user).unwrap();
                event
            })
            .collect();
        self.pending.push((stream, address, events));
    }
}

/// Makes a tensor on one stream, reads it on another and frees it at once, then makes the next one.
fn producer_and_consumer(seed: u64, record_stream: bool) -> Result<(), CallError> {
    let driver = sim(seed);
    let mut allocator = TinyAllocator::new(&driver);
    let compute = driver.create_stream(Priority::Default)?;
    let side = driver.create_stream(Priority::Default)?;
    let made = driver.create_event(EventKind::Timing)?;
    for _ in 0..10 {
        let tensor = allocator.allocate(compute);
        driver.launch(SimKernel::new("produce", compute).writes(tensor, TinyAllocator::BLOCK))?;
        driver.record_event(made, compute)?;
        driver.wait_event(side, made)?;
        driver.launch(SimKernel::new("consume", side).reads(tensor, TinyAllocator::BLOCK))?;
        if record_stream {
            allocator.record_stream(tensor, side);
        }
        allocator.free(tensor, compute);
    }
    driver.synchronize()
}

#[test]
fn a_forgotten_record_stream_is_caught_with_every_seed() {
    for seed in SEEDS {
        let error = producer_and_consumer(seed, false).unwrap_err();
        let ErrorKind::Race { first, second, .. } = &error.kind else { panic!("seed {seed}: {error}") };
        assert_eq!((first.name, second.name), ("consume", "produce"));
        assert!(error.to_string().contains(file!()), "{error}");
    }
}

#[test]
fn with_record_stream_the_same_program_passes_with_every_seed() {
    for seed in SEEDS {
        producer_and_consumer(seed, true).unwrap();
    }
}

#[test]
fn a_race_is_reported_though_the_first_work_has_run() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(16).unwrap();
    driver.memset(address, 0, 16, a).unwrap();
    driver.run().unwrap();
    assert!(matches!(kind(driver.memset(address + 15, 0, 1, StreamId::NULL)), ErrorKind::Race { .. }));
}

#[test]
fn a_race_names_the_bytes_both_touch() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(64).unwrap();
    driver.launch(SimKernel::new("first", a).writes(address, 40)).unwrap();
    let error = kind(driver.launch(SimKernel::new("second", StreamId::NULL).reads(address + 30, 30)));
    assert!(matches!(&error, ErrorKind::Race { range, .. } if *range == (address + 30..address + 40)), "{error}");
}

#[test]
fn two_reads_do_not_race() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(16).unwrap();
    for stream in [a, StreamId::NULL, a] {
        driver.launch(SimKernel::new("read", stream).reads(address, 16)).unwrap();
    }
}

#[test]
fn a_write_races_with_the_reads_of_every_stream() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let b = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(16).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.launch(SimKernel::new("read", a).reads(address, 16)).unwrap();
    driver.launch(SimKernel::new("read", b).reads(address, 16)).unwrap();
    driver.record_event(event, b).unwrap();
    driver.wait_event(StreamId::NULL, event).unwrap();
    let error = kind(driver.launch(SimKernel::new("write", StreamId::NULL).writes(address, 16)));
    assert!(matches!(&error, ErrorKind::Race { first, .. } if first.stream == a), "{error}");
}

#[test]
fn an_event_orders_only_what_came_before_its_record() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(16).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.record_event(event, a).unwrap();
    driver.memset(address, 0, 16, a).unwrap();
    driver.wait_event(StreamId::NULL, event).unwrap();
    assert!(matches!(kind(driver.memset(address, 1, 16, StreamId::NULL)), ErrorKind::Race { .. }));
}

#[test]
fn a_wait_keeps_to_the_record_it_was_put_after() {
    let driver = sim(0);
    let a = driver.create_stream(Priority::Default).unwrap();
    let b = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(16).unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    driver.memset(address, 0, 16, a).unwrap();
    driver.record_event(event, a).unwrap();
    driver.wait_event(b, event).unwrap();
    driver.record_event(event, StreamId::NULL).unwrap();
    driver.memset(address, 1, 16, b).unwrap();
    driver.synchronize().unwrap();
}

#[test]
fn order_passes_through_a_third_stream_and_through_the_host() {
    for seed in SEEDS {
        let driver = sim(seed);
        let streams: Vec<_> = (0..4).map(|_| driver.create_stream(Priority::Default).unwrap()).collect();
        let address = driver.malloc(16).unwrap();
        let event = driver.create_event(EventKind::Timing).unwrap();
        driver.memset(address, 0, 16, streams[0]).unwrap();
        for hop in [0, 1] {
            driver.record_event(event, streams[hop]).unwrap();
            driver.wait_event(streams[hop + 1], event).unwrap();
        }
        driver.memset(address, 1, 16, streams[2]).unwrap();
        driver.synchronize_stream(streams[2]).unwrap();
        driver.memset(address, 2, 16, streams[3]).unwrap();
    }
}

#[test]
fn addresses_of_one_chunk_race_with_each_other() {
    let driver = sim(0);
    let (first, chunk) = mapped_chunk(&*driver, GRANULE);
    let second = driver.reserve(GRANULE).unwrap();
    driver.map(second, chunk).unwrap();
    driver.set_access(second, GRANULE, AccessMode::ReadWrite).unwrap();
    let a = driver.create_stream(Priority::Default).unwrap();
    driver.memset(first, 0, 16, a).unwrap();
    assert!(matches!(kind(driver.memset(second + 8, 0, 1, StreamId::NULL)), ErrorKind::Race { .. }));
}

/// One step of a random program with two events, three streams and sixteen bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Touch { stream: usize, start: u64, len: u64, write: bool },
    Record { event: usize, stream: usize },
    Wait { stream: usize, event: usize },
    Synchronize { stream: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, 0..12u64, 1..5u64, any::<bool>())
            .prop_map(|(stream, start, len, write)| Step::Touch { stream, start, len, write }),
        2 => (0..2usize, 0..3usize).prop_map(|(event, stream)| Step::Record { event, stream }),
        2 => (0..3usize, 0..2usize).prop_map(|(stream, event)| Step::Wait { stream, event }),
        1 => (0..3usize).prop_map(|stream| Step::Synchronize { stream }),
    ]
}

/// Returns the index of the first step that races, by the definition: each step's set of earlier steps.
fn first_race(steps: &[Step]) -> Option<usize> {
    let mut streams = [0u64; 3];
    let mut events = [0u64; 2];
    let mut host = 0u64;
    for (index, &step) in steps.iter().enumerate() {
        match step {
            Step::Touch { stream, start, len, write } => {
                streams[stream] |= host;
                let races = steps[..index].iter().enumerate().any(|(earlier, &other)| match other {
                    Step::Touch { start: from, len: count, write: wrote, .. } => {
                        let overlap = start < from + count && from < start + len;
                        overlap && (write || wrote) && streams[stream] >> earlier & 1 == 0
                    }
                    _ => false,
                });
                if races {
                    return Some(index);
                }
                streams[stream] |= 1 << index;
            }
            Step::Record { event, stream } => events[event] = streams[stream],
            Step::Wait { stream, event } => streams[stream] |= events[event],
            Step::Synchronize { stream } => host |= streams[stream],
        }
    }
    None
}

proptest! {
    #[test]
    fn exactly_what_the_definition_calls_a_race_is_reported(
        steps in prop::collection::vec(step(), 1..50),
        seed: u64,
    ) {
        let driver = sim(seed);
        let address = driver.malloc(16).unwrap();
        let streams: Vec<_> = (0..3).map(|_| driver.create_stream(Priority::Default).unwrap()).collect();
        let events: Vec<_> = (0..2).map(|_| driver.create_event(EventKind::Timing).unwrap()).collect();
        let failed = steps.iter().map(|&step| match step {
            Step::Touch { stream, start, len, write: true } => {
                driver.launch(SimKernel::new("write", streams[stream]).writes(address + start, len)).map(drop)
            }
            Step::Touch { stream, start, len, write: false } => {
                driver.launch(SimKernel::new("read", streams[stream]).reads(address + start, len)).map(drop)
            }
            Step::Record { event, stream } => driver.record_event(events[event], streams[stream]),
            Step::Wait { stream, event } => driver.wait_event(streams[stream], events[event]),
            Step::Synchronize { stream } => driver.synchronize_stream(streams[stream]),
        }).position(|result| result.is_err());
        prop_assert_eq!(failed, first_race(&steps));
    }
}

/// Writes to bytes that a copy on another stream reads. The copy is noted while `is_noted`, for the bytes at `offset`.
fn write_during_copy(offset: u64, is_noted: bool) -> Result<(), CallError> {
    let driver: Arc<SimDriver> = sim(0);
    let streams = Streams::new(Arc::clone(&driver) as Arc<dyn Driver>);
    let compute = streams.null();
    let outward = streams.pooled(Priority::Low).unwrap();
    let [source, target] = [(); 2].map(|()| driver.malloc(64).unwrap());
    driver.copy_on_device(target, source, 64, outward.id()).unwrap();
    let mut event = Event::new(Arc::clone(&driver) as Arc<dyn Driver>, EventKind::Order);
    event.record(&outward).unwrap();
    let copying = compute.note_copy(source + offset, Arc::new(event));
    let _copying = is_noted.then_some(copying);
    streams.wait_for_copies(source, compute.id()).unwrap();
    driver.memset(source, 1, 64, compute.id())
}

#[test]
fn a_write_waits_for_noted_copies_of_its_bytes_and_for_no_others() {
    write_during_copy(0, true).unwrap();
    for (offset, is_noted) in [(0, false), (64, true)] {
        assert!(matches!(kind(write_during_copy(offset, is_noted)), ErrorKind::Race { .. }));
    }
}

#[test]
fn captured_work_does_not_wait_for_a_noted_copy() {
    let driver: Arc<SimDriver> = sim(0);
    let streams = Streams::new(Arc::clone(&driver) as Arc<dyn Driver>);
    let compute = streams.pooled(Priority::Default).unwrap();
    let [source, target] = [(); 2].map(|()| driver.malloc(64).unwrap());
    let mut event = Event::new(Arc::clone(&driver) as Arc<dyn Driver>, EventKind::Order);
    event.record(&streams.null()).unwrap();
    let _copying = compute.note_copy(source, Arc::new(event));
    driver.begin_capture(compute.id()).unwrap();
    streams.wait_for_copies(source, compute.id()).unwrap();
    driver.memset(target, 1, 64, compute.id()).unwrap();
    driver.end_capture(compute.id()).unwrap();
}
